"""What tuning found, as tables and as the comment above the preset that it writes."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE
from rich.table import Table

from antiphon.bench.knobs import preset_text
from antiphon.bench.statistics import Contrast
from antiphon.bench.tables import shown
from antiphon.bench.tune import LEAST_GAIN, Tuned


def tried_table(found: Tuned) -> Table:
    """A row for each setting, in the order in which they were tried."""
    sweep = found.sweep
    columns = sweep.figures
    table = Table(title=f"from {sweep.preset}, {_counted(sweep.seeds)}", title_justify="left", box=SIMPLE)
    table.add_column("tried", overflow="fold")
    for name in (*columns, "gain"):
        table.add_column(name, justify="right")
    table.add_column("outcome", no_wrap=True)
    table.add_row("the start preset", *_cells(found.start, columns), "", "")
    for one in found.tried:
        gain = "–" if one.gain is None else f"{one.gain:+.1%}"
        outcome: str = one.outcome
        if one.outcome == "taken":
            outcome = "[green]taken[/]" if one.setting in found.taken else "taken, then replaced"
        table.add_row(str(one.setting), *_cells(one.figures, columns), gain, outcome)
    return table


def _cells(figures: dict[str, float], columns: tuple[str, ...]) -> Iterator[str]:
    return (shown(figures[name]) if name in figures else "–" for name in columns)


def verdict(found: Tuned) -> list[str]:
    """The result in sentences: what is chosen, and what it is worth on held-out seeds."""
    sweep = found.sweep
    if not found.held_out:
        return [
            f"no setting lowered {sweep.objective} by {LEAST_GAIN:.0%} or more without harm: "
            "the start preset is kept"
        ]
    lines = [_held_out(one) for one in found.held_out]
    lines[0] = f"on {_counted(sweep.held_out)} that decided nothing, tuned against start: {lines[0]}"
    if found.is_better:
        return [*(f"taken: {setting}" for setting in found.taken), *lines]
    return [*lines, "that is not a gain beyond noise, or does harm: the start preset is kept"]


def _held_out(one: Contrast) -> str:
    if one.a is None or one.b is None or one.estimate is None:
        return f"{one.figure}: not measured on both sides"
    estimate = one.estimate
    words = f"{one.figure} {shown(one.b)} for {shown(one.a)}, {one.kind} {shown(estimate.mean)}"
    if estimate.low is not None and estimate.high is not None:
        words += f" ({shown(estimate.low)} to {shown(estimate.high)}, 95 %)"
    return f"{words}: {one.verdict}"


def tuned_text(found: Tuned, where: str, workload: str) -> str:
    """The preset's file. where: the machine, or what was served."""
    lines = [
        f"Written by `antiphon tune` from preset {found.sweep.preset}.",
        f"Workload {workload}, {where}; {len(found.tried)} settings, {_counted(found.sweep.seeds)} each.",
        *verdict(found),
    ]
    return preset_text(found.choices, "\n".join(lines))


def _counted(seeds: tuple[int, ...]) -> str:
    return f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''}"
