"""`antiphon workload`: look at a workload before anything is run."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antiphon.cli.shared import console, fail
from antiphon.core.counted import counted
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.workload.draw import draw
from antiphon.workload.load import changed, find, named, names
from antiphon.workload.spec import Workload
from antiphon.workload.summary import Summary, summary

SHOWN_SESSIONS = 1000
"""Of a load without an end, so many are drawn to be looked at."""

BARS = " ▁▂▃▄▅▆▇█"

app = typer.Typer(no_args_is_help=True, help="Look at workloads: when people arrive, and what they do.")


@app.callback()
def workload() -> None:
    """Look at workloads: when people arrive, and what they do."""


@app.command("list")
def list_workloads() -> None:
    """The workloads that ship with the package."""
    table = Table(box=None, header_style="bold")
    for column in ("name", "load", "what"):
        table.add_column(column, no_wrap=column == "name")
    for name in names():
        one = named(name)
        table.add_row(name, "open" if one.load.open else f"closed, {one.load.concurrency}", one.description)
    Console(highlight=False).print(table)


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="A workload's name (see `list`), or the path of a YAML file.")],
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other people.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value at a key, such as load.closed.concurrency=8; repeatable."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture (PNG) of arrivals and laws here.")
    ] = None,
) -> None:
    """What a workload amounts to once drawn: sessions, turns, speech, pauses, interruptions."""
    try:
        chosen = changed(find(what), parsed_settings(settings or []))
        drawn = summary(islice(draw(chosen, seed), SHOWN_SESSIONS))
        report(chosen, drawn, seed)
        if plot is not None:
            from antiphon.bench.workload_plot import plot_workload

            plot_workload(chosen.name, drawn, plot)
            console.print(f"wrote {plot}")
    except AntiphonError as error:
        fail(error)


def parsed_settings(written: list[str]) -> dict[str, Any]:
    """`key=value` with values as in YAML. Raises ConfigError."""
    settings: dict[str, Any] = {}
    for one in written:
        key, equals, value = one.partition("=")
        if not key or not equals:
            raise ConfigError(f"--set {one}: expected key=value, such as load.closed.concurrency=8")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {one}: the value is not valid YAML") from error
    return settings


def report(chosen: Workload, drawn: Summary, seed: int) -> None:
    out = Console(highlight=False)
    out.print(f"[bold]{escape(chosen.name)}[/]  {escape(chosen.description)}")
    out.print(f"load            {load_words(chosen)}; turn detection {chosen.turn_detection}")
    out.print(f"drawn (seed {seed})  {escape(drawn_words(drawn))}")
    if chosen.load.open and drawn.arrivals_s:
        end_s = chosen.load.duration_s or drawn.arrivals_s[-1]
        out.print(f"arrivals        {sparkline(drawn.arrivals_s, end_s)}  0 to {end_s:.4g} s")
    out.print(quantity_table(drawn))


def load_words(chosen: Workload) -> str:
    """`open, gamma arrivals, 32 sessions` and the like."""
    load = chosen.load
    if load.open:
        words = [f"open, {next(iter(type(load.open.arrivals).model_fields))} arrivals"]
        if load.max_concurrency is not None:
            words.append(f"at most {load.max_concurrency} at a time")
    else:
        words = [f"closed, {load.concurrency} at a time"]
    if load.sessions is not None:
        words.append(counted(load.sessions, "session"))
    if load.duration_s is not None:
        words.append(f"{load.duration_s:g} s")
    return ", ".join(words)


def drawn_words(drawn: Summary) -> str:
    groups = ", ".join(f"{count} {name}" for name, count in drawn.groups.items())
    words = [groups or "nobody comes", counted(drawn.turns, "turn")]
    for kind, count in drawn.interjections.items():
        share = count / max(1, drawn.spoken_replies)
        words.append(f"{count} {kind.replace('_', ' ')}s ({share:.2f} per spoken reply)")
    return "; ".join(words)


def sparkline(times_s: tuple[float, ...], end_s: float, width: int = 48) -> str:
    """Arrivals over time as a row of bars, the highest one full."""
    counts, _ = np.histogram(times_s, width, (0.0, max(end_s, 1e-9)))
    return "".join(BARS[-(-int(count) * (len(BARS) - 1) // max(1, int(counts.max())))] for count in counts)


def quantity_table(drawn: Summary) -> Table:
    table = Table(box=None, header_style="bold")
    for column in ("", "P50", "P90", "P99", "mean", "n", "unit"):
        table.add_column(column, justify="left" if column in ("", "unit") else "right")
    for one in drawn.quantities:
        figures = [figure(value) for value in (*one.percentiles(50, 90, 99), one.mean)]
        table.add_row(one.name, *figures, str(len(one.values)), one.unit)
    return table


def figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
