"""Audio generated and audio played, reply by reply (LiveServe Figure 15, right)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from antiphon.bench.plots.style import ALARM, COLOURS, GREY, page
from antiphon.core.errors import ConfigError
from antiphon.metrics.continuity import GAP_S
from antiphon.metrics.rows import ResponseRow
from antiphon.metrics.timeline import Timeline, timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 6
SAME_S = 1e-6
GENERATED, PLAYED, SPOKEN_OVER = COLOURS[0], COLOURS[2], COLOURS[3]
SILENCE = {"color": ALARM, "linewidth": 5, "solid_capstyle": "butt"}
BARGE_IN = {"color": "black", "marker": "x", "linestyle": "", "zorder": 5}
SPEECH = {"color": SPOKEN_OVER, "marker": "|", "markersize": 10, "markeredgewidth": 2, "linestyle": ""}


def draw_timeline(rows: Sequence[ResponseRow], path: Path, *, title: str = "") -> None:
    """Up to six replies: interrupted ones first, then those with the longest silence, then the longest.

    Raises ConfigError if none has audio.
    """
    spoken = sorted((row for row in rows if row.audio_at_s.size), key=_interest, reverse=True)
    if not spoken:
        raise ConfigError("nothing to plot: no reply has audio")
    shown = [(row, timeline(row), _origin(row)) for row in spoken[:MOST_PANELS]]
    columns = min(3, len(shown))
    lines = math.ceil(len(shown) / columns)
    with page(path, max(4.5, 1.0 + 2.9 * columns), 1.1 + 2.3 * lines) as figure:
        panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for axes, (row, line, origin_s) in zip(panels, shown, strict=False):
            _panel(axes, row, line, line.at_s - origin_s)
        for axes in panels[len(shown) :]:
            axes.remove()
        panels[0].set_xlim(0, max(float(line.at_s[-1]) - origin_s for _, line, origin_s in shown) * 1.03)
        panels[0].set_ylim(0, max(row.received_s for row, _, _ in shown) * 1.12)
        for axes in panels[max(0, len(shown) - columns) : len(shown)]:
            axes.set_xlabel("time since the turn's end (s)")
            axes.tick_params(labelbottom=True)
        figure.supylabel("audio of the reply (s)", fontsize=9)
        count = (
            "" if len(shown) == len(spoken) else f", the {len(shown)} most eventful of {len(spoken)} replies"
        )
        figure.suptitle(f"{title or 'Generation and playback'}{count}", x=0.01, ha="left", fontsize=10)
        keys = [panels[0].plot([], [], **look, label=label)[0] for look, label in _legend()]
        figure.legend(handles=keys, loc="outside lower center", ncols=5, frameon=False, fontsize=8)


def _legend() -> tuple[tuple[dict, str], ...]:
    return (
        ({"color": GENERATED}, "generated"),
        ({"color": PLAYED}, "played"),
        (SILENCE, f"silence of {GAP_S * 1000:.0f} ms or more"),
        (BARGE_IN, "barge-in"),
        (SPEECH, "speech over it"),
    )


def _interest(row: ResponseRow) -> tuple[bool, float, float]:
    return row.barged_in, sum(row.gaps), row.received_s


def _origin(row: ResponseRow) -> float:
    """The end of the turn that it answers; of one that nobody spoke, its own beginning."""
    return row.started_s if row.turn_ended_s is None else min(row.turn_ended_s, float(row.audio_at_s[0]))


def _silences(row: ResponseRow, line: Timeline) -> list[tuple[float, float, float]]:
    """Beginning, end and level of every silence of `GAP_S` or more before the reply was cut off."""
    stop_s = row.interrupted_at_s if row.barged_in and row.interrupted_at_s is not None else math.inf
    points = list(zip(line.at_s.tolist(), line.heard_s.tolist(), strict=True))
    return [
        (begin_s, end_s, level_s)
        for (begin_s, level_s), (end_s, next_s) in itertools.pairwise(points)
        if next_s - level_s < SAME_S and end_s - begin_s >= GAP_S and end_s <= stop_s
    ]


def _panel(axes: Axes, row: ResponseRow, line: Timeline, at_s: NDArray[np.float64]) -> None:
    received_s = np.concatenate([[0.0], line.received_s])
    axes.step(np.concatenate([at_s[:1], at_s]), received_s, where="post", color=GENERATED)
    axes.plot(at_s, line.heard_s, color=PLAYED)
    for begin_s, end_s, level_s in _silences(row, line):
        shift_s = line.at_s[0] - at_s[0]
        axes.plot([begin_s - shift_s, end_s - shift_s], [level_s, level_s], **SILENCE)
    words = f"{row.received_s:.1f} s"
    if row.interrupted_at_s is not None:
        cut_s = row.interrupted_at_s - (line.at_s[0] - at_s[0])
        heard_s = float(np.interp(cut_s, at_s, line.heard_s))
        axes.plot([cut_s], [heard_s], **(BARGE_IN if row.barged_in else SPEECH))
        if row.barged_in:
            axes.vlines(cut_s, heard_s, received_s[-1], color=GREY, linewidth=0.8, linestyle=":")
            words += f", {row.received_s - heard_s:.1f} s unheard"
    axes.set_title(f"{row.session}, turn {row.turn}", fontsize=8)
    axes.set_title(words, fontsize=8, loc="right", color="#555555")
