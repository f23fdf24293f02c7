"""Which stage ran when: stages as lanes, steps as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antiphon.bench.plots.style import COLOURS, note, page
from antiphon.bench.trace import StepBar, Trace
from antiphon.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAILED = "failed"
INKS = {
    "encode": COLOURS[3],
    "prefill": COLOURS[4],
    "prefill + decode": COLOURS[1],
    "decode": COLOURS[0],
    "codec": COLOURS[2],
    FAILED: "black",
}
WINDOW_S = 1.0


def draw_gantt(
    trace: Trace, path: Path, *, window: tuple[float, float] | None = None, title: str = ""
) -> None:
    """Steps within `window` (seconds of the record), or else within its busiest second.

    Raises ConfigError if no step lies there.
    """
    begin_s, end_s = window or busiest(trace)
    shown = [step for step in trace.steps if step.end_s > begin_s and step.start_s < end_s]
    if not shown:
        last_s = trace.steps[-1].end_s
        raise ConfigError(f"no step between {begin_s:g} s and {end_s:g} s; the record ends at {last_s:.1f} s")
    with page(path, 9.0, 1.3 + 0.55 * len(trace.stages)) as figure:
        axes = figure.add_subplot()
        for kind in INKS:
            _bars(axes, trace.stages, [step for step in shown if _kind(step) == kind], kind)
        asked = [span.start_s for span in trace.responses if begin_s <= span.start_s <= end_s]
        axes.plot(asked, [-0.5] * len(asked), "v", color="black", label="reply asked for")
        lanes = [_lane(stage, shown, begin_s, end_s) for stage in trace.stages]
        axes.set_xlim(begin_s, end_s)
        axes.set_yticks(range(len(lanes)), lanes)
        axes.set_ylim(len(lanes) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("time of the record (s)")
        when = "" if window else f" in the busiest {end_s - begin_s:.3g} s"
        axes.set_title(title or f"Steps of every stage{when}")
        note(axes, "share of the time in %", right=True)
        axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1), frameon=False, fontsize=8, handlelength=1)


def _bars(axes: Axes, stages: Sequence[str], steps: Sequence[StepBar], kind: str) -> None:
    """Steps of one kind, in their lanes; named in the legend once, if there are any."""
    look = {"facecolors": INKS[kind], "edgecolor": "white", "linewidth": 0.3}
    for lane, stage in enumerate(stages):
        bars = [(step.start_s, step.end_s - step.start_s) for step in steps if step.stage == stage]
        axes.broken_barh(bars, (lane - 0.38, 0.76), **look)
    if steps:
        axes.broken_barh([], (0, 0), facecolors=INKS[kind], label=kind)


def busiest(trace: Trace) -> tuple[float, float]:
    """The `WINDOW_S` seconds with most different kinds of work in them, then with most time in steps."""
    ends = np.array([step.end_s for step in trace.steps])
    busy = np.array([step.end_s - step.start_s for step in trace.steps])
    if ends[-1] <= WINDOW_S:
        return 0.0, float(ends[-1])
    best, found = (0, 0.0), 0.0
    for begin_s in np.arange(0, ends[-1] - WINDOW_S, WINDOW_S / 4):
        inside = (ends > begin_s) & (ends <= begin_s + WINDOW_S)
        works = {trace.steps[index].work for index in np.flatnonzero(inside)}
        score = (len(works), float(busy[inside].sum()))
        if score > best:
            best, found = score, float(begin_s)
    return found, found + WINDOW_S


def _kind(step: StepBar) -> str:
    return FAILED if step.is_failed else step.work


def _lane(stage: str, shown: list[StepBar], begin_s: float, end_s: float) -> str:
    busy_s = sum(min(step.end_s, end_s) - max(step.start_s, begin_s) for step in shown if step.stage == stage)
    return f"{stage}  {100 * busy_s / (end_s - begin_s):.0f} %"
