"""What was made and never heard. Only settled replies count: what a run's end cut off might have been
heard.

Audio is what the client received. Tokens are what a stage made, sent or not: a stage that runs far ahead of
one that is paced wastes what it made, though little of it was received.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from antiphon.metrics.log import ServerSampled
from antiphon.metrics.names import Metric
from antiphon.metrics.rows import ResponseRow
from antiphon.metrics.samples import increases
from antiphon.metrics.tokens import TALKER, WRITER

SPEECH_TOKENS_PER_S = 4.0
"""Text tokens in a second of unhurried English, where no complete reply of a run tells better."""


def waste_audio_s(rows: Iterable[ResponseRow]) -> float | None:
    """Seconds of audio received and not heard. LiveServe §7.3 (generated but unheard). None: nothing came."""
    spoken = _spoken(rows)
    return (
        sum(row.received_s - row.heard_s for row in spoken) if any(row.received_s for row in spoken) else None
    )


def waste_ratio(rows: Iterable[ResponseRow]) -> float | None:
    """Audio received and not heard, as a share of all audio received."""
    spoken = _spoken(rows)
    received_s = sum(row.received_s for row in spoken)
    return sum(row.received_s - row.heard_s for row in spoken) / received_s if received_s else None


def waste_tokens(rows: Iterable[ResponseRow]) -> dict[str, float]:
    """Tokens by stage that nobody heard: those that it made (usage) less those that were heard, which are
    seconds heard times the reply's own rate (`heard_tokens`). LiveServe §7.3, Figure 16.

    Absent: a stage of which no usage speaks, and a talker that made no token of what was received: there is
    none.
    """
    rows = tuple(rows)
    wasted: dict[str, float] = {}
    for stage, counts in _counts(_spoken(rows)).items():
        rates = _Rates(stage, rows)
        wasted[stage] = sum(made - heard_tokens(row, made, rates.of(row.session)) for row, made in counts)
    return wasted


def heard_tokens(row: ResponseRow, made: int, usual_rate: float | None) -> float:
    """How many of the `made` tokens of a spoken reply were heard: seconds heard times tokens a second.

    A reply that came to its end has its own rate: all its tokens over all its audio. One that was cut may
    have text for more than was spoken, so its rate is the usual one; as what was received had been made, it
    is at most all tokens over what was received. Without any audio nothing was heard, unless the reply came
    to its end (one of a single token is not spoken).
    """
    if not row.received_s:
        return float(made) if row.is_answer else 0.0
    heard = made * (row.heard_s / row.received_s)
    return heard if row.is_answer or usual_rate is None else min(heard, row.heard_s * usual_rate)


def waste_token_ratio(rows: Iterable[ResponseRow]) -> dict[str, float]:
    """Wasted tokens by stage as a share of all its tokens for spoken replies: LiveServe's waste ratio."""
    rows = tuple(rows)
    wasted = waste_tokens(rows)
    made = {stage: sum(count for _, count in counts) for stage, counts in _counts(_spoken(rows)).items()}
    return {stage: wasted[stage] / made[stage] for stage in made if made[stage]}


def device_s_per_token(samples: Sequence[ServerSampled]) -> dict[str, float]:
    """Device seconds that a stage spent per token it emitted, from the first sample to the last. Replicas of
    a stage count together: `talker.1` is one of `talker`."""
    seconds = _by_stage(increases(samples, Metric.STEP_SECONDS))
    emitted = _by_stage(increases(samples, Metric.EMITTED))
    return {stage: seconds[stage] / emitted[stage] for stage in seconds if emitted.get(stage)}


def waste_device_s(wasted: Mapping[str, float], samples: Sequence[ServerSampled]) -> dict[str, float]:
    """Device seconds by stage that went into `wasted` tokens, at the run's mean cost of a token of that stage
    (its share of every prefill and of batching included)."""
    cost = device_s_per_token(samples)
    return {stage: count * cost[stage] for stage, count in wasted.items() if stage in cost}


def _by_stage(units: Mapping[str, float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for unit, value in units.items():
        stage = unit.partition(".")[0]
        sums[stage] = sums.get(stage, 0.0) + value
    return sums


def _spoken(rows: Iterable[ResponseRow]) -> list[ResponseRow]:
    return [row for row in rows if row.wants == "speech" and row.settled]


class _Rates:
    """Tokens of a stage in a second of speech, by the replies that came to their end."""

    def __init__(self, stage: str, rows: Iterable[ResponseRow]) -> None:
        self._stage = stage
        self._tokens: dict[str, float] = {}
        self._audio_s: dict[str, float] = {}
        whole = [row for row in rows if row.wants == "speech" and row.is_answer and row.received_s]
        for row, made in _counts(whole).get(stage, []):
            self._tokens[row.session] = self._tokens.get(row.session, 0.0) + made
            self._audio_s[row.session] = self._audio_s.get(row.session, 0.0) + row.received_s

    def of(self, session: str) -> float | None:
        """The session's own rate, else that of the whole run, else what speech has; None: not known."""
        if session in self._tokens:
            return self._tokens[session] / self._audio_s[session]
        if self._tokens:
            return sum(self._tokens.values()) / sum(self._audio_s.values())
        return SPEECH_TOKENS_PER_S if self._stage == WRITER else None


def _counts(rows: Iterable[ResponseRow]) -> dict[str, list[tuple[ResponseRow, int]]]:
    rows = tuple(rows)
    counts: dict[str, list[tuple[ResponseRow, int]]] = {}
    for row in rows:
        for stage, count in ((WRITER, row.output_text_tokens), (TALKER, row.output_audio_tokens)):
            if count is not None:
                counts.setdefault(stage, []).append((row, count))
    made = sum(count for _, count in counts.get(TALKER, []))
    if not made and any(row.received_s for row in rows):
        counts.pop(TALKER, None)
    return counts
