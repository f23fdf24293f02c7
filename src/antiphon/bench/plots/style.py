"""How all plots look: size, colours that colour-blind people can tell apart, labels beside what they name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.core.errors import ConfigError, system_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, "Color Universal Design" (2008), from the darkest; yellow is left out: it is lost on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#8A8A8A"
ALARM = "#D55E00"
MARKERS = "osD^vPX"
DPI = 150
INCH_PER_LINE = 0.17

RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E8E8E8",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "lines.linewidth": 1.6,
    "savefig.dpi": DPI,
    "figure.dpi": DPI,
}


@contextmanager
def page(path: Path, width: float = 7.0, height: float = 4.0) -> Iterator[Figure]:
    """A figure of this size in inches, written to `path` at the end. Raises ConfigError without matplotlib,
    for a file name of a kind that it can't write, and for a place that can't be written to."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError('plots need matplotlib: pip install "antiphon[plot]"') from None
    with mpl.rc_context(RC):
        figure = Figure((width, height), layout="constrained")
        kinds = figure.canvas.get_supported_filetypes()
        if path.suffix[1:] not in kinds:
            raise ConfigError(f"cannot draw {path}: the name must end in one of .{', .'.join(sorted(kinds))}")
        yield figure
        try:
            figure.savefig(path)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {system_words(error)}") from None


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def halo() -> list[Any]:
    """A white rim that keeps a text readable over lines."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground="white")]


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """A text beside each (x, y), in its colour, pushed apart where they would lie on each other.

    For curves whose ends are in data coordinates; call after the limits are set.
    """
    height = axes.get_window_extent().height / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    step = INCH_PER_LINE / max(height, INCH_PER_LINE)
    spots = []
    for x, y, text, ink in ends:
        place = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
        spots.append([float(place[1]), float(place[0]), text, ink])
    spots.sort(key=lambda spot: spot[0])
    for lower, upper in itertools.pairwise(spots):
        upper[0] = max(upper[0], lower[0] + step)
    over = max(0.0, spots[-1][0] - 1.0) if spots else 0.0
    for up, across, text, ink in spots:
        axes.text(
            across + 0.012, up - over, text, color=ink, va="center", transform=axes.transAxes, clip_on=False
        )


def note(axes: Axes, text: str, *, right: bool = False) -> None:
    """A remark in grey above the axes' right end, or at the left under the title."""
    axes.set_title(text, loc="right" if right else "left", color="#555555", fontsize=8)
