"""Short logs of people and jobs, event by event, for tests of figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from antiphon.metrics.log import (
    AudioDelta,
    Event,
    ResponseEnded,
    ResponseStarted,
    ServerSampled,
    SessionEnded,
    SessionStarted,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from antiphon.metrics.recorder import fold
from antiphon.metrics.rows import ResponseRow, Run


def session(
    name: str = "a", start_s: float = 0.0, end_s: float | None = None, reason: str = "done", **more: Any
) -> list[Event]:
    """A person, or whatever `more` of SessionStarted says."""
    start: list[Event] = [SessionStarted(t_s=start_s, session=name, **{"kind": "person", **more})]
    return start if end_s is None else [*start, SessionEnded(t_s=end_s, session=name, reason=reason)]


def turn(
    name: str = "a",
    number: int = 0,
    *,
    start_s: float = 0.0,
    end_s: float = 1.0,
    voice_end_s: float | None = None,
    manual: bool = True,
) -> list[Event]:
    """A spoken turn; the voice ends with it unless said otherwise."""
    voice_s = end_s if voice_end_s is None else voice_end_s
    return [
        TurnStarted(t_s=start_s, session=name, turn=number, modality="speech"),
        TurnEnded(t_s=end_s, session=name, turn=number, speech_end_s=voice_s, manual=manual),
    ]


def reply(
    name: str = "a",
    number: int = 0,
    response: str = "r",
    *,
    start_s: float = 1.0,
    audio: Sequence[tuple[float, float]] = (),
    text: Sequence[tuple[float, int]] = (),
    wants: Literal["speech", "text"] = "speech",
    end_s: float | None = None,
    status: str = "completed",
    **ended: Any,
) -> list[Event]:
    """A response with its deltas as (time, seconds) and (time, characters); without `end_s` it stays open."""
    events: list[Event] = [
        ResponseStarted(t_s=start_s, session=name, turn=number, response=response, wants=wants)
    ]
    events += [TextDelta(t_s=at, session=name, response=response, chars=chars) for at, chars in text]
    events += [AudioDelta(t_s=at, session=name, response=response, audio_s=seconds) for at, seconds in audio]
    if end_s is not None:
        events.append(ResponseEnded(t_s=end_s, session=name, response=response, status=status, **ended))
    return events


def run(*parts: Iterable[Event]) -> Run:
    """The parts as one log, in the order of their times."""
    events = [event for part in parts for event in part]
    return fold(sorted(events, key=lambda event: event.t_s))


def rows(*parts: Iterable[Event]) -> tuple[ResponseRow, ...]:
    """The responses of such a log."""
    return run(*parts).responses


def sample(t_s: float, **values: float) -> ServerSampled:
    """Counters of the stage "talker", by their names without `antiphon_`."""
    return ServerSampled(
        t_s=t_s, values={f'antiphon_{key}{{stage="talker"}}': value for key, value in values.items()}
    )
