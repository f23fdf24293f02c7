"""LiveServe's offline sweep (§4.1): P_safe and beta/alpha of the urgency policy, per stage, on a workload.

    start preset --each group of values in turn, tuning seeds--> the best so far --held-out seeds--> tuned, or
    the start preset again

Groups go one after the other (stage, decision, option), each from the best setting so far. A value is taken
if it lowers the objective by LEAST_GAIN or more, the mean over the same seeds, and none of KEPT is worse than
with the start preset. What was found by luck does not last: the result is held to the start preset on seeds
that decided nothing, and is kept only if the objective is better there beyond noise (95 %) and none of KEPT
is worse.

The presets of a group are played seed by seed, in an order that turns round with every seed, and so are the
two that are held to each other. Of a live sweep the best so far is played again with each group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from antiphon.bench.compare import Work, in_turn
from antiphon.bench.knobs import (
    Choices,
    Setting,
    changed,
    choices_of,
    preset_digest,
    preset_text,
    value_of,
)
from antiphon.bench.servers import Target
from antiphon.bench.statistics import Contrast, contrast, direction
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.metrics.names import Figure

OBJECTIVE = Figure.TTFP_S.at("p90")
LEAST_GAIN = 0.01
"""Of the objective; less is no gain."""
KEPT: Mapping[str, float] = {
    Figure.CONTINUITY.value: 0.005,
    Figure.WASTE_RATIO.value: 0.01,
}
"""What may not become worse, and by how much it may differ all the same."""
START = "start"

Column = Mapping[int, Mapping[str, float]]
"""Figures by seed."""
Outcome = Literal["taken", "no gain", "worse for people", "failed"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is swept. Raises ConfigError.

    groups   values that are tried against each other, one group after the other
    graph    of the model; "": any
    is_live  runs take place on a machine whose pace drifts, and not on virtual time
    """

    preset: str
    groups: Sequence[Sequence[Setting]]
    seeds: tuple[int, ...]
    held_out: tuple[int, ...]
    objective: str = OBJECTIVE
    graph: str = ""
    is_live: bool = False

    def __post_init__(self) -> None:
        if direction(self.objective) != "lower":
            raise ConfigError(f"objective {self.objective}: less of it must be better, as of {OBJECTIVE}")

    @property
    def start(self) -> Target:
        return Target(START, preset=self.preset)

    @property
    def figures(self) -> tuple[str, ...]:
        """What is told of every setting: the objective, and what may not become worse."""
        return tuple(dict.fromkeys((self.objective, *KEPT)))


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting beside the best so far. `figures`: means over the tuning seeds, the objective first."""

    setting: Setting
    outcome: Outcome
    gain: float | None
    figures: dict[str, float]


@dataclass(slots=True)
class Tuned:
    """What was found. `held_out`: the tuned preset against the start preset, the objective first; empty where
    nothing was taken."""

    sweep: Tuning
    start: dict[str, float]
    choices: Choices
    tried: list[Tried] = field(default_factory=list[Tried])
    held_out: tuple[Contrast, ...] = ()
    is_better: bool = False

    @property
    def taken(self) -> list[Setting]:
        """The last one taken of each stage, decision and option: it replaced those before it."""
        settings = [one.setting for one in self.tried if one.outcome == "taken"]
        return list({(one.stage, one.decision, one.option): one for one in settings}.values())


async def tune(sweep: Tuning, work: Work, folder: Path) -> Tuned:
    """Presets that are tried are written to `folder`. Raises AntiphonError if the start preset cannot be
    measured, ConfigError for what no run could be made of."""
    await _play(work, (sweep.start,), sweep.seeds)
    start = _column_of(work, sweep.start, sweep)
    if start is None:
        raise AntiphonError(f"the start preset could not be measured: {_why_not(work, sweep)}")
    found = Tuned(sweep, _means(start, sweep), choices_of(sweep.preset, sweep.graph))
    best, target = start, sweep.start
    for number, group in enumerate(sweep.groups, start=1):
        choices = found.choices
        candidates = {one: changed(choices, one) for one in group if value_of(choices, one) != one.value}
        targets = {one: _written(each, one, work, folder) for one, each in candidates.items()}
        again = msgspec.structs.replace(target, name=f"{target.name}-again-{number}")
        beside = (again,) if sweep.is_live and targets else ()
        await _play(work, (*beside, *targets.values()), sweep.seeds)
        origin = best = _column_of(work, again, sweep) or best
        for setting, candidate in candidates.items():
            column = _column_of(work, targets[setting], sweep)
            one = _judged(setting, column, start, origin, best, sweep)
            found.tried.append(one)
            if one.outcome == "taken" and column is not None:
                best, target, found.choices = column, targets[setting], candidate
    if found.taken:
        await _hold_out(found, work, target)
    if not found.is_better:
        found.choices = choices_of(sweep.preset, sweep.graph)
    return found


def _written(choices: Choices, setting: Setting, work: Work, folder: Path) -> Target:
    """A target with a preset file, both named by what the preset says: `Work` counts a log that is there by
    the target's name, so a name may never mean another preset."""
    name = preset_digest(choices)
    path = folder / f"{name}.yaml"
    path.write_text(preset_text(choices, str(setting)), encoding="utf-8")
    work.say(f"{name}: {setting}")
    return Target(name, preset=str(path))


async def _play(work: Work, targets: tuple[Target, ...], seeds: tuple[int, ...]) -> None:
    for index, seed in enumerate(seeds):
        for target in in_turn(targets, index):
            await work.measure(target, seed)


def _column_of(work: Work, target: Target, sweep: Tuning) -> Column | None:
    """Figures of the tuning seeds. None: a run failed, or lacks the objective."""
    runs = work.runs.get(target.name, {})
    if any(sweep.objective not in runs.get(seed, {}) for seed in sweep.seeds):
        return None
    return {seed: runs[seed] for seed in sweep.seeds}


def _why_not(work: Work, sweep: Tuning) -> str:
    """What went wrong with the start preset's runs, or which figures could be asked for."""
    runs = work.runs.get(START, {})
    known = dict.fromkeys(name for figures in runs.values() for name in figures if direction(name) == "lower")
    lacking = f"not every run has {sweep.objective}; there are {', '.join(known) or 'none'}"
    return "; ".join(one.message for one in work.dropped) or lacking


def _judged(
    setting: Setting, column: Column | None, start: Column, origin: Column, best: Column, sweep: Tuning
) -> Tried:
    """`gain`: share by which the objective is less than before the group."""
    if column is None:
        return Tried(setting, "failed", None, {})
    figures, least = _means(column, sweep), _means(best, sweep)[sweep.objective]
    before = _means(origin, sweep)[sweep.objective]
    gain = 1 - figures[sweep.objective] / before if before else 0.0
    is_less = figures[sweep.objective] < least * (1 - LEAST_GAIN)
    outcome: Outcome = "taken" if is_less else "no gain"
    first = _means(start, sweep)
    if is_less and any(_is_worse(name, figures.get(name), first.get(name)) for name in KEPT):
        outcome = "worse for people"
    return Tried(setting, outcome, gain, figures)


def _is_worse(figure: str, after: float | None, before: float | None) -> bool:
    """By more than it may. What is not known any more is; what was not known before is not."""
    if after is None or before is None:
        return before is not None
    more = after - before if direction(figure) == "lower" else before - after
    return more > KEPT[figure]


async def _hold_out(found: Tuned, work: Work, target: Target) -> None:
    """The result against the start preset, on seeds that decided nothing."""
    sweep = found.sweep
    columns: list[Column] = []
    await _play(work, (sweep.start, target), sweep.held_out)
    for one in (sweep.start, target):
        runs = work.runs.get(one.name, {})
        columns.append({seed: runs[seed] for seed in sweep.held_out if seed in runs})
    a, b = columns
    names = [name for name in sweep.figures if any(name in each for each in (*a.values(), *b.values()))]
    found.held_out = tuple(contrast(name, _column(a, name), _column(b, name)) for name in names)
    is_less = any(one.figure == sweep.objective and one.verdict == "better" for one in found.held_out)
    does_harm = any(one.figure in KEPT and _is_worse(one.figure, one.b, one.a) for one in found.held_out)
    found.is_better = is_less and not does_harm


def _column(column: Column, figure: str) -> dict[int, float]:
    return {seed: figures[figure] for seed, figures in column.items() if figure in figures}


def _means(column: Column, sweep: Tuning) -> dict[str, float]:
    """Over the seeds that have a figure."""
    found = {name: list(_column(column, name).values()) for name in sweep.figures}
    return {name: sum(values) / len(values) for name, values in found.items() if values}
