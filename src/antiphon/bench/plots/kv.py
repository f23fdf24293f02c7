"""Where the KV blocks of every stage are over time: used, idle, free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antiphon.bench.plots.style import COLOURS, GREY, note, page
from antiphon.bench.trace import KvSample
from antiphon.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

USED, IDLE = COLOURS[0], COLOURS[5]


def draw_kv(samples: Sequence[KvSample], path: Path, *, title: str = "") -> None:
    """A panel per stage, stacked. Raises ConfigError without samples."""
    if not samples:
        raise ConfigError(
            "nothing to plot: the log has no server samples of KV blocks; plot a record instead"
        )
    stages = list(dict.fromkeys(sample.stage for sample in samples))
    end_s = max(sample.t_s for sample in samples)
    with page(path, 7.0, 0.8 + 1.9 * len(stages)) as figure:
        panels = figure.subplots(len(stages), 1, squeeze=False, sharex=True).ravel()
        for axes, stage in zip(panels, stages, strict=True):
            _panel(axes, [sample for sample in samples if sample.stage == stage], end_s)
        panels[-1].set_xlabel("time (s)")
        panels[-1].set_xlim(min(sample.t_s for sample in samples), end_s)
        keys = panels[0].get_legend_handles_labels()
        figure.legend(*keys, loc="outside lower left", ncols=2, frameon=False, fontsize=8, handlelength=1.2)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=10)


def _panel(axes: Axes, samples: Sequence[KvSample], end_s: float) -> None:
    last = samples[-1]
    times = np.array([*(sample.t_s for sample in samples), end_s])
    used = np.array([*(sample.used for sample in samples), last.used])
    held = used + np.array([*(sample.idle for sample in samples), last.idle])
    total = last.used + last.idle + last.free
    axes.fill_between(times, 0, used, step="post", color=USED, linewidth=0, label="used by running responses")
    axes.fill_between(
        times, used, held, step="post", color=IDLE, linewidth=0, label="idle: a past to come back to"
    )
    peak = max(int(held.max()), 1)
    is_crowded = peak > total / 2
    if is_crowded:
        axes.axhline(total, color=GREY, linewidth=1, linestyle="--")
    axes.set_ylim(0, total * 1.05 if is_crowded else peak * 1.15)
    axes.set_ylabel("KV (blocks)")
    axes.set_title(samples[0].stage)
    rest = "free up to the dashed line" if is_crowded else "the rest is free"
    note(axes, f"peak {peak} of {total} blocks, {rest}", right=True)
