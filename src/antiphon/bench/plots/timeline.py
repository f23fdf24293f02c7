"""Audio generated and audio played, reply by reply (LiveServe Figure 15, right)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antiphon.bench.plots.style import ALARM, COLOURS, GREY, page
from antiphon.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 6
GENERATED, PLAYED, HEARD_OVER = COLOURS[0], COLOURS[2], COLOURS[3]
AUDIBLE_GAP_S = 0.1


@dataclass(frozen=True, slots=True)
class Reply:
    """One spoken reply. Times in seconds from the end of the person's turn.

    arrivals    (time, seconds of audio) of each piece that came
    gaps        (time at which playback ran dry, how long it was silent)
    stopped_s   when the person took the turn, or None
    noises      times of interjections that did not stop it (backchannels, failed barge-ins)
    """

    name: str
    arrivals: tuple[tuple[float, float], ...]
    gaps: tuple[tuple[float, float], ...]
    stopped_s: float | None = None
    noises: tuple[float, ...] = ()

    @property
    def received_s(self) -> float:
        return sum(audio_s for _, audio_s in self.arrivals)

    @property
    def interest(self) -> tuple[bool, float, float]:
        """Interrupted replies first, then those with the longest silence, then the longest."""
        return self.stopped_s is not None, sum(length for _, length in self.gaps), self.received_s

    def played(self) -> tuple[list[float], list[float]]:
        """Corners of the line of seconds played over time: slope 1, and level in a gap."""
        start_s = self.arrivals[0][0]
        times, heard, shift_s = [start_s], [0.0], start_s
        for at_s, length_s in self.gaps:
            times += [at_s, at_s + length_s]
            heard += [at_s - shift_s] * 2
            shift_s += length_s
        end_s = shift_s + self.received_s
        if self.stopped_s is not None:
            end_s = max(times[-1], min(end_s, self.stopped_s))
        return [*times, end_s], [*heard, end_s - shift_s]


def draw_timeline(replies: Sequence[Reply], path: Path, *, title: str = "") -> None:
    """Up to six replies, the most eventful first. Raises ConfigError if none has audio."""
    spoken = sorted((reply for reply in replies if reply.arrivals), key=lambda r: r.interest, reverse=True)
    if not spoken:
        raise ConfigError("nothing to plot: no reply has audio")
    shown = spoken[:MOST_PANELS]
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    with page(path, 1.0 + 3.0 * columns, 0.9 + 2.5 * rows) as figure:
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for axes, reply in zip(panels, shown, strict=False):
            _panel(axes, reply)
        for axes in panels[len(shown) :]:
            axes.remove()
        panels[0].set_xlim(0, max(max(reply.played()[0][-1], reply.arrivals[-1][0]) for reply in shown) * 1.03)
        panels[0].set_ylim(0, max(reply.received_s for reply in shown) * 1.12)
        figure.supxlabel("time since the person's turn ended (s)", fontsize=9)
        figure.supylabel("audio of the reply (s)", fontsize=9)
        count = f"{len(shown)} of {len(spoken)} replies, the most eventful first"
        figure.suptitle(f"{title or 'Generation and playback'}: {count}", x=0.01, ha="left", fontsize=10)
        handles = [axes.plot([], [], **look)[0] for axes, look in ((panels[0], look) for look in LEGEND)]
        figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)


LEGEND = (
    {"color": GENERATED, "label": "generated"},
    {"color": PLAYED, "label": "played"},
    {"color": ALARM, "linewidth": 5, "solid_capstyle": "butt", "label": "silence (gap)"},
    {"color": "black", "marker": "x", "linestyle": "", "label": "barge-in"},
    {"color": HEARD_OVER, "marker": "|", "markersize": 9, "linestyle": "", "label": "speech over it"},
)


def _panel(axes: Axes, reply: Reply) -> None:
    times = [at_s for at_s, _ in reply.arrivals]
    amounts = np.cumsum([audio_s for _, audio_s in reply.arrivals])
    played_t, played_s = reply.played()
    end_s = max(played_t[-1], times[-1])
    axes.step([times[0], *times, end_s], [0.0, *amounts, amounts[-1]], where="post", color=GENERATED)
    axes.plot(played_t, played_s, color=PLAYED)
    shift_s = times[0]
    for at_s, length_s in reply.gaps:
        level = at_s - shift_s
        shift_s += length_s
        if length_s >= AUDIBLE_GAP_S:
            silence = {"color": ALARM, "linewidth": 5, "solid_capstyle": "butt"}
            axes.plot([at_s, at_s + length_s], [level, level], **silence)  # type: ignore[arg-type]
    heard = [float(np.interp(at_s, played_t, played_s)) for at_s in reply.noises]
    axes.plot(reply.noises, heard, marker="|", markersize=9, linestyle="", color=HEARD_OVER)
    words = f"{reply.received_s:.1f} s"
    if reply.stopped_s is not None:
        axes.plot([played_t[-1]], [played_s[-1]], marker="x", color="black", zorder=5)
        unheard_s = reply.received_s - played_s[-1]
        axes.vlines(played_t[-1], played_s[-1], amounts[-1], color=GREY, linewidth=0.8, linestyle=":")
        words += f", {unheard_s:.1f} s unheard"
    axes.set_title(reply.name, fontsize=8)
    axes.set_title(words, fontsize=8, loc="right", color="#555555")
