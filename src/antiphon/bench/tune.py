"""LiveServe's offline sweep (§4.1): P_safe and beta/alpha of the urgency policy, per stage, on a workload.

    start preset --each group of values in turn, tuning seeds--> the best so far --held-out seeds--> tuned, or
    the start preset again

Groups go one after the other (stage, decision, option), each from the best setting so far. A value is taken
if it lowers the objective by LEAST_GAIN or more, the mean over the same seeds, and none of KEPT is worse than
with the start preset. What was found by luck does not last: the result is held to the start preset on seeds
that decided nothing, and is kept only if the objective is better there beyond noise (95 %) and none of KEPT
is worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from antiphon.bench.compare import Work
from antiphon.bench.knobs import Choices, Setting, changed, choices_of, preset_text, value_of
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
class Sweep:
    """What is swept. Raises ConfigError.

    groups  values that are tried against each other, one group after the other
    graph   of the model; "": any
    """

    preset: str
    groups: Sequence[Sequence[Setting]]
    seeds: tuple[int, ...]
    held_out: tuple[int, ...]
    objective: str = OBJECTIVE
    graph: str = ""

    def __post_init__(self) -> None:
        if direction(self.objective) != "lower":
            raise ConfigError(f"objective {self.objective}: less of it must be better, as of {OBJECTIVE}")

    @property
    def start(self) -> Target:
        return Target(START, preset=self.preset)


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

    sweep: Sweep
    start: dict[str, float]
    choices: Choices
    tried: list[Tried] = field(default_factory=list[Tried])
    held_out: tuple[Contrast, ...] = ()
    is_better: bool = False

    @property
    def taken(self) -> list[Setting]:
        """The last of each group stands."""
        return [one.setting for one in self.tried if one.outcome == "taken"]


async def tune(sweep: Sweep, work: Work, folder: Path) -> Tuned:
    """Presets that are tried are written to `folder`. Raises AntiphonError if the start preset cannot be
    measured, ConfigError for what no run could be made of."""
    start = await _measured(work, sweep.start, sweep.seeds, sweep.objective)
    if start is None:
        raise AntiphonError(f"the start preset could not be measured: {_why_not(work, sweep)}")
    found = Tuned(sweep, _means(start, sweep), choices_of(sweep.preset, sweep.graph))
    best, target = start, sweep.start
    for group in sweep.groups:
        choices, origin = found.choices, best
        for setting in group:
            if value_of(choices, setting) == setting.value:
                continue
            tried = Target(
                f"{len(found.tried) + 1:03d}", preset=str(folder / f"{len(found.tried) + 1:03d}.yaml")
            )
            candidate = changed(choices, setting)
            _write(tried, candidate, str(setting))
            column = await _measured(work, tried, sweep.seeds, sweep.objective)
            one = _judged(setting, column, start, origin, best, sweep)
            found.tried.append(one)
            if one.outcome == "taken" and column is not None:
                best, target, found.choices = column, tried, candidate
    if found.taken:
        await _hold_out(found, work, target)
    if not found.is_better:
        found.choices = choices_of(sweep.preset, sweep.graph)
    return found


def _write(target: Target, choices: Choices, about: str) -> None:
    assert target.preset is not None
    Path(target.preset).write_text(preset_text(choices, about), encoding="utf-8")


async def _measured(work: Work, target: Target, seeds: tuple[int, ...], objective: str) -> Column | None:
    """None: a run failed, or lacks the objective."""
    for seed in seeds:
        await work.measure(target, seed)
    runs = work.runs.get(target.name, {})
    if any(objective not in runs.get(seed, {}) for seed in seeds):
        return None
    return {seed: runs[seed] for seed in seeds}


def _why_not(work: Work, sweep: Sweep) -> str:
    """What went wrong with the start preset's runs, or which figures could be asked for."""
    runs = work.runs.get(START, {})
    known = dict.fromkeys(name for figures in runs.values() for name in figures if direction(name) == "lower")
    lacking = f"not every run has {sweep.objective}; there are {', '.join(known) or 'none'}"
    return "; ".join(one.message for one in work.dropped) or lacking


def _judged(
    setting: Setting, column: Column | None, start: Column, origin: Column, best: Column, sweep: Sweep
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
    """By more than it may. What either lacks is not."""
    if after is None or before is None:
        return False
    more = after - before if direction(figure) == "lower" else before - after
    return more > KEPT[figure]


async def _hold_out(found: Tuned, work: Work, target: Target) -> None:
    """The result against the start preset, on seeds that decided nothing."""
    sweep = found.sweep
    columns: list[Column] = []
    for seed in sweep.held_out:
        for one in (sweep.start, target):
            await work.measure(one, seed)
    for one in (sweep.start, target):
        runs = work.runs.get(one.name, {})
        columns.append({seed: runs[seed] for seed in sweep.held_out if seed in runs})
    a, b = columns
    names = [name for name in _told(sweep) if any(name in each for each in (*a.values(), *b.values()))]
    found.held_out = tuple(contrast(name, _column(a, name), _column(b, name)) for name in names)
    is_less = any(one.figure == sweep.objective and one.verdict == "better" for one in found.held_out)
    does_harm = any(one.figure in KEPT and _is_worse(one.figure, one.b, one.a) for one in found.held_out)
    found.is_better = is_less and not does_harm


def _column(column: Column, figure: str) -> dict[int, float]:
    return {seed: figures[figure] for seed, figures in column.items() if figure in figures}


def _told(sweep: Sweep) -> tuple[str, ...]:
    return tuple(dict.fromkeys((sweep.objective, *KEPT)))


def _means(column: Column, sweep: Sweep) -> dict[str, float]:
    """Over the seeds that have a figure."""
    found = {name: list(_column(column, name).values()) for name in _told(sweep)}
    return {name: sum(values) / len(values) for name, values in found.items() if values}
