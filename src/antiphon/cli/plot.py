"""`antiphon plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli.options import RecordPreset
from antiphon.cli.shared import console, fail
from antiphon.core.errors import AntiphonError, ConfigError

app = typer.Typer(no_args_is_help=True, help="Draw what was measured, from logs of runs and record files.")

Files = Annotated[list[Path], typer.Argument(help="Logs of runs.")]
File = Annotated[Path, typer.Argument(help="A log of a run, or a record of `antiphon serve --record`.")]
Record = Annotated[Path, typer.Argument(help="A record of `antiphon serve --record`.")]
Out = Annotated[Path, typer.Option(help="File to write; its ending says how (.png, .svg, .pdf).")]
Title = Annotated[str, typer.Option(help="Title instead of the plot's own.")]


@app.command()
def frontier(files: Files, out: Out = Path("frontier.png"), title: Title = "") -> None:
    """Completed requests against P90 TTFP: a curve per label, a point per concurrency."""
    from antiphon.bench.plots import sources
    from antiphon.bench.plots.frontier import draw_frontier

    try:
        draw_frontier(sources.points(files), out, title=title)
    except AntiphonError as error:
        fail(error)
    console.print(f"wrote {out}")


@app.command()
def cdf(
    files: Files,
    out: Out = Path("cdf.png"),
    figure: Annotated[str, typer.Option(help="A figure with one value a response.")] = "ttfp_s",
    title: Title = "",
) -> None:
    """How a figure is spread over the responses: a curve per label."""
    from antiphon.bench.plots import sources
    from antiphon.bench.plots.cdf import draw_cdf
    from antiphon.metrics.names import Figure

    try:
        draw_cdf(sources.spreads(files, figure), Figure(figure), out, title=title)
    except AntiphonError as error:
        fail(error)
    console.print(f"wrote {out}")


@app.command()
def timeline(
    files: Files,
    out: Out = Path("timeline.png"),
    response: Annotated[str | None, typer.Option(help="One response by its id.")] = None,
    title: Title = "",
) -> None:
    """Audio generated and audio played, of the most eventful replies."""
    from antiphon.bench.plots import sources
    from antiphon.bench.plots.timeline import draw_timeline

    try:
        draw_timeline(sources.replies(files, response), out, title=title)
    except AntiphonError as error:
        fail(error)
    console.print(f"wrote {out}")


@app.command()
def kv(file: File, out: Out = Path("kv.png"), title: Title = "", preset: RecordPreset = "") -> None:
    """KV blocks of every stage over time: used, idle, free."""
    from antiphon.bench.plots import sources
    from antiphon.bench.plots.kv import draw_kv

    try:
        draw_kv(sources.residency(file, preset), out, title=title)
    except AntiphonError as error:
        fail(error)
    console.print(f"wrote {out}")


@app.command()
def gantt(
    record: Record,
    out: Out = Path("gantt.png"),
    begin_s: Annotated[float | None, typer.Option("--from", help="Seconds of the record.")] = None,
    end_s: Annotated[float | None, typer.Option("--to", help="Seconds of the record.")] = None,
    title: Title = "",
) -> None:
    """Steps of every stage as bars; the busiest second unless --from and --to say which."""
    from antiphon.bench.plots.gantt import draw_gantt
    from antiphon.bench.trace import read_trace

    try:
        draw_gantt(read_trace(record), out, window=_window(begin_s, end_s), title=title)
    except (AntiphonError, OSError) as error:
        fail(error)
    console.print(f"wrote {out}")


@app.command()
def perfetto(record: Record, out: Out = Path("trace.json"), preset: RecordPreset = "") -> None:
    """Steps, KV blocks and responses as a trace for https://ui.perfetto.dev."""
    from antiphon.bench.plots.perfetto import write_perfetto
    from antiphon.bench.trace import read_residency, read_trace

    try:
        write_perfetto(read_trace(record), read_residency(record, preset), out)
    except (AntiphonError, OSError) as error:
        fail(error)
    console.print(f"wrote {out}: open it in https://ui.perfetto.dev")


def _window(begin_s: float | None, end_s: float | None) -> tuple[float, float] | None:
    if begin_s is None and end_s is None:
        return None
    if begin_s is None or end_s is None or end_s <= begin_s:
        raise ConfigError("--from and --to come together, and --to is later")
    return begin_s, end_s
