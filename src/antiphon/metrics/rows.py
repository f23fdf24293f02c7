"""A run as rows: sessions, their turns, and the responses to them. `recorder.fold` makes them from a log.

All times are seconds since the run's start, as in the log; None is what did not happen before the log ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from antiphon.metrics.log import ClientSampled, ErrorSeen, RunEnded, RunStarted, ServerSampled

Kind = Literal["person", "job"]
Tier = Literal["latency", "best_effort"]
Modality = Literal["speech", "text"]
Interruption = Literal["barge_in", "failed_barge_in", "backchannel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """What a person said or typed, or a job's call. The times are those of `log.TurnStarted`,
    `log.TurnEnded`."""

    turn: int
    modality: Modality | None = None
    started_s: float | None = None
    ended_s: float | None = None
    speech_end_s: float | None = None
    manual: bool = True
    audio_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A person or a job.

    waited_s  for a place, before it started; None: the load has no bound on sessions
    reason    done | lost | failed | stopped; None: the log ends before the session does
    refused   the code with which the server refused it
    """

    session: str
    kind: Kind
    tier: Tier
    arrival_s: float | None
    waited_s: float | None = None
    started_s: float
    ended_s: float | None
    reason: str | None
    refused: str | None
    reading_tokens_per_s: float | None
    turns: tuple[TurnRow, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ResponseRow:
    """One response, as its listener (or reader) got it.

    status        as the server reported it; None: still open when the log ends
    text_at_s     [deltas] float64, when text came; text_chars [deltas] int64, how much
    audio_at_s    [deltas] float64, when audio came; audio_s [deltas] float64, how much
    gaps          seconds of silence in the midst of the reply, each time that playback had run dry
    heard_s       audio that was audible until the barge-in, the session's end, or the log's end
    settled       how much is heard can no longer change: it was played through or barged into, or its
                  listener is gone. False: the run ended (or was stopped) while it was playing
    interrupted_by, interrupted_at_s  the last interruption; only a barge_in stops the playback
    *_tokens      usage as the server reported it; None where it did not
    error         the first error that its session saw while it was open, "code: message"
    """

    session: str
    kind: Kind
    tier: Tier
    reading_tokens_per_s: float | None
    turn: int
    response: str
    wants: Modality
    manual: bool
    turn_ended_s: float | None
    speech_end_s: float | None
    started_s: float
    ended_s: float | None
    status: str | None
    reason: str
    text_at_s: NDArray[np.float64]
    text_chars: NDArray[np.int64]
    audio_at_s: NDArray[np.float64]
    audio_s: NDArray[np.float64]
    gaps: tuple[float, ...]
    heard_s: float
    settled: bool
    interrupted_by: Interruption | None
    interrupted_at_s: float | None
    input_tokens: int | None
    cached_tokens: int | None
    output_text_tokens: int | None
    output_audio_tokens: int | None
    error: str | None

    @property
    def first_text_s(self) -> float | None:
        return float(self.text_at_s[0]) if self.text_at_s.size else None

    @property
    def first_audio_s(self) -> float | None:
        return float(self.audio_at_s[0]) if self.audio_at_s.size else None

    @property
    def first_output_s(self) -> float | None:
        """Of the modality that was asked for."""
        return self.first_audio_s if self.wants == "speech" else self.first_text_s

    @property
    def received_s(self) -> float:
        """Seconds of audio that came, heard or not."""
        return float(sum(self.audio_s.tolist()))

    @property
    def barged_in(self) -> bool:
        return self.interrupted_by == "barge_in"

    @property
    def is_answer(self) -> bool:
        """It came to its end: all of it, or as much as the client's own max_output_tokens allowed."""
        return self.status == "completed" or (
            self.status == "incomplete" and self.reason == "max_output_tokens"
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Run:
    """A whole log. `span_s` is from the first event to the last, `last_s` the time of the last.

    queued_s  for so long each session has waited that had no place yet when the log ends
    """

    started: RunStarted | None
    ended: RunEnded | None
    responses: tuple[ResponseRow, ...]
    sessions: tuple[SessionRow, ...]
    samples: tuple[ServerSampled, ...]
    client_samples: tuple[ClientSampled, ...]
    errors: tuple[ErrorSeen, ...]
    queued_s: tuple[float, ...]
    span_s: float
    last_s: float


def of_tier(rows: Iterable[ResponseRow], tier: Tier) -> tuple[ResponseRow, ...]:
    """Responses to sessions of `tier`."""
    return tuple(row for row in rows if row.tier == tier)


def first_answers(rows: Iterable[ResponseRow]) -> list[ResponseRow]:
    """Per turn, the first response whose output (of the modality asked for) came after the voice had ended.

    A response that was asked for again after a failure, or that the server began anew, so counts with the
    whole wait; one that spoke into the turn is no answer to it.
    """
    first: dict[tuple[str, int], ResponseRow] = {}
    for row in rows:
        if row.first_output_s is None or row.speech_end_s is None or row.first_output_s < row.speech_end_s:
            continue
        first.setdefault((row.session, row.turn), row)
    return list(first.values())
