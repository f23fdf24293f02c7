"""How long messages take to an engine and back, and how its model talks, read from the record of a run and
its people's log.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

from fidelity_twin import Around, Habits

from antiphon.core.facts import ResponseRequested
from antiphon.core.plans import AudioOut
from antiphon.latency.profile import Profile
from antiphon.metrics.log import AudioDelta, Event, ResponseEnded, TurnEnded
from antiphon.runtime.record import Entry, read_record


def usual(times: list[float]) -> float:
    """The lower quartile, as a profile has it: what other processes and the step in progress add comes on
    top, and the simulator has the steps itself."""
    return quantiles(times, n=4)[0]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a twin is made of, beside the profile.

    message_s  one way between a client and the engine
    """

    message_s: float
    habits: Habits
    around: Around

    def told(self) -> dict[str, Any]:
        """In milliseconds."""
        return {
            "message_ms": round(1e3 * self.message_s, 3),
            "render_ms": round(1e3 * self.around.render_s, 3),
            "handoff_ms": round(1e3 * self.around.handoff_s, 3),
            "join_ms": {stage: round(1e3 * taken, 3) for stage, taken in self.around.joins_s.items()},
            "ends_per_token": round(self.habits.ends_per_token, 5),
            "extra_frames": round(mean(self.habits.extra_frames), 2),
        }


def calibrate(
    profile: Profile, beside: Around, record: Path, log: list[Event], clock_s: float
) -> Calibration:
    """`clock_s`: the engine's clock when the log's was zero."""
    entries = list(read_record(record)[1])
    up, down = going_up(entries, log, clock_s), going_down(entries, log, clock_s, profile.decide_s)
    message_s = (usual(up) + usual(down)) / 2
    return Calibration(message_s, habits(log), beside)


def going_up(entries: list[Entry], log: list[Event], clock_s: float) -> list[float]:
    """Seconds from a client's request for a reply to the decision that knows of it."""
    known: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        for fact in entry.facts:
            if isinstance(fact, ResponseRequested):
                known[fact.session].append(entry.now - clock_s)
    asked: dict[str, list[float]] = defaultdict(list)
    for event in log:
        if isinstance(event, TurnEnded):
            asked[event.session].append(event.t_s)
    return matched(list(asked.values()), list(known.values()))


def matched(sent: list[list[float]], came: list[list[float]]) -> list[float]:
    """Differences of times, session by session. Their names differ at both ends; their times tell them."""
    found: list[float] = []
    for times in sent:
        others = min(came, key=lambda one: apart(times, one))
        if apart(times, others) < 1.0:
            found += [b - a for a, b in zip(times, others, strict=True)]
    return found


def apart(sent: list[float], came: list[float]) -> float:
    if len(sent) != len(came):
        return float("inf")
    return max(abs(b - a) for a, b in zip(sent, came, strict=True))


def going_down(entries: list[Entry], log: list[Event], clock_s: float, decide_s: float) -> list[float]:
    """Seconds from the decision that has a reply's audio leave to its arrival."""
    left: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        for output in entry.decision.outputs:
            if isinstance(output, AudioOut):
                left[output.response].append(entry.now + decide_s - clock_s)
    came: dict[str, list[float]] = defaultdict(list)
    for event in log:
        if isinstance(event, AudioDelta):
            came[event.response].append(event.t_s)
    return [
        b - a for name, times in came.items() if name in left for a, b in zip(left[name], times, strict=False)
    ]


def habits(log: list[Event]) -> Habits:
    ended = [event for event in log if isinstance(event, ResponseEnded) and event.output_audio_tokens]
    texts = sum(event.output_text_tokens for event in ended)
    by_themselves = sum(event.status == "completed" for event in ended)
    extra = tuple(event.output_audio_tokens - event.output_text_tokens for event in ended)
    return Habits(by_themselves / texts, extra)
