"""What drawn scripts amount to: samples by quantity, for people to look at before a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from antiphon.workload.script import Interjection, PersonScript, Script, TurnScript


class Quantity(msgspec.Struct, frozen=True):
    """Something measured in a unit, and every value of it that was drawn."""

    name: str
    unit: str
    values: tuple[float, ...]

    def percentiles(self, *which: float) -> tuple[float, ...]:
        """Needs at least one value."""
        return tuple(float(value) for value in np.percentile(self.values, which))

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))


class Summary(msgspec.Struct, frozen=True):
    """`groups`: sessions and jobs by group. `interjections`: by kind. `quantities`: those with values."""

    sessions: int
    jobs: int
    turns: int
    spoken_replies: int
    groups: dict[str, int]
    interjections: dict[str, int]
    arrivals_s: tuple[float, ...]
    quantities: tuple[Quantity, ...]

    def quantity(self, name: str) -> Quantity | None:
        return next((one for one in self.quantities if one.name == name), None)


def summary(scripts: Iterable[Script]) -> Summary:
    everyone = tuple(scripts)
    people = [script for script in everyone if isinstance(script, PersonScript)]
    turns = [turn for script in people for turn in script.turns]
    said = [one for turn in turns for one in turn.interjections]
    return Summary(
        sessions=len(people),
        jobs=len(everyone) - len(people),
        turns=len(turns),
        spoken_replies=sum(turn.wants == "speech" for turn in turns),
        groups=_counted(script.name.rpartition("-")[0] for script in everyone),
        interjections=_counted(one.kind for one in said),
        arrivals_s=tuple(script.arrival_s for script in everyone),
        quantities=tuple(
            one for one in (*_of_people(people, turns, said), *_of_jobs(everyone)) if one.values
        ),
    )


def _of_people(
    people: Sequence[PersonScript], turns: Sequence[TurnScript], said: Sequence[Interjection]
) -> list[Quantity]:
    cuts = [one.after_s for one in said if one.kind == "barge_in"]
    backchannels = [one.speech_s for one in said if one.kind != "barge_in"]
    return [
        Quantity("turns", "per session", tuple(float(len(person.turns)) for person in people)),
        Quantity("speech", "s", tuple(turn.speech_s for turn in turns if turn.voice)),
        Quantity("think", "s", tuple(turn.think_s for person in people for turn in person.turns[1:])),
        Quantity("typed words", "words", tuple(float(len(turn.text.split())) for turn in turns if turn.text)),
        Quantity("typing", "s", tuple(turn.typing_s for turn in turns if turn.text)),
        Quantity("pictures", "per turn", tuple(float(len(turn.pictures)) for turn in turns if turn.pictures)),
        Quantity("clips", "frames", tuple(float(c.num_frames) for turn in turns for c in turn.clips)),
        Quantity(
            "reply limit", "tokens", tuple(float(t.max_output_tokens) for t in turns if t.max_output_tokens)
        ),
        Quantity("barge-in at", "s after first audio", tuple(cuts)),
        Quantity("backchannel length", "s", tuple(backchannels)),
        Quantity("reading", "tokens/s", tuple(p.reading_tokens_per_s for p in people if _reads(p))),
    ]


def _reads(person: PersonScript) -> bool:
    return any(turn.wants == "text" for turn in person.turns)


def _of_jobs(everyone: Sequence[Script]) -> list[Quantity]:
    jobs = [script for script in everyone if not isinstance(script, PersonScript)]
    calls = [call for job in jobs for call in job.calls]
    return [
        Quantity("calls", "per job", tuple(float(len(job.calls)) for job in jobs)),
        Quantity("prompt", "words", tuple(float(len(call.prompt.split())) for call in calls)),
        Quantity("call limit", "tokens", tuple(float(call.max_output_tokens) for call in calls)),
        Quantity("tool", "s", tuple(call.wait_s for call in calls if call.wait_s)),
    ]


def _counted(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts
