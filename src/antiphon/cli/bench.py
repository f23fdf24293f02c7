"""`antiphon bench` and `antiphon bench summarize`."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from antiphon.cli.groups import PeopleOptions, grouped
from antiphon.cli.options import (
    LOCAL_URL,
    Acks,
    AcksOption,
    ApiKey,
    ContinuityLeast,
    Seed,
    TtfpMost,
    TtftMost,
    Url,
)
from antiphon.cli.shared import console
from antiphon.core.errors import AntiphonError, ConfigError

if TYPE_CHECKING:
    from antiphon.bench.target import DrivenServer, Pace
    from antiphon.workload.spec import Workload

SLO_MISSED = 1
RUN_FAILED = 2
STOPPED = 130
FAILURES = ("server_lost", "failed")
NO_BOUNDS = {"ttfp_p90_s": math.inf, "continuity": 0.0, "ttft_s": math.inf, "tpot_s": math.inf}


app = typer.Typer(help="Measure a realtime server with people who speak, listen, read and interrupt.")

AsJson = Annotated[bool, typer.Option("--json", help="Figures as JSON on standard output, and no table.")]


@dataclass(frozen=True)
class BoundOptions:
    """What a run is held to."""

    slo_ttfp_p90: Annotated[float | None, TtfpMost] = None
    slo_continuity: Annotated[float | None, ContinuityLeast] = None
    slo_ttft_p90: Annotated[float | None, TtftMost] = None

    @property
    def given(self) -> dict[str, float]:
        """By the names of `metrics.slo.Slo`."""
        bounds = {
            "ttfp_p90_s": self.slo_ttfp_p90,
            "continuity": self.slo_continuity,
            "ttft_s": self.slo_ttft_p90,
        }
        return {name: bound for name, bound in bounds.items() if bound is not None}


@dataclass(frozen=True)
class MeasuredServer:
    """Which server is measured, what it is asked for, and what it is called."""

    url: Url = LOCAL_URL
    label: Annotated[str, typer.Option(help="What is measured, in a word; the model by default.")] = ""
    model: Annotated[str, typer.Option(help="Model name; the first that the server lists by default.")] = ""
    api_key: ApiKey = ""
    acks: Acks = AcksOption.auto
    all_metrics: Annotated[
        bool, typer.Option(help="Log all of the server's Prometheus counters, not only antiphon's.")
    ] = False

    def driven(self) -> DrivenServer:
        """Asks the server for its model, where none is named. Raises AntiphonError."""
        from antiphon.bench.target import DrivenServer, model_of, root

        hint = ", or name a model with --model"
        name = self.model or asyncio.run(model_of(self.url, self.api_key, hint))
        label = self.label or name.rsplit("/", 1)[-1]
        return DrivenServer(root(self.url), name, self.api_key, label, self.acks.value, self.all_metrics)


@app.callback(invoke_without_command=True)
@grouped
def bench(
    context: typer.Context,
    server: MeasuredServer = MeasuredServer(),
    people: PeopleOptions = PeopleOptions(),
    seed: Seed = 0,
    log: Annotated[
        Path | None, typer.Option(help="Event log to write; bench-LABEL-SEED.jsonl by default.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the log if it exists.")] = False,
    voices: Annotated[
        Path | None, typer.Option(help="Directory of recordings to speak with, not synthetic voices.")
    ] = None,
    as_json: AsJson = False,
    bounds: BoundOptions = BoundOptions(),
) -> None:
    """Play a workload to a server and say what its people met.

    Exit status: 0, 1 if a bound given with --slo-… was missed, 2 if the run failed.
    """
    if context.invoked_subcommand is not None:
        return
    from antiphon.bench.target import Pace

    try:
        played = people.played
        target = server.driven()
        path = log or _unused(f"bench-{target.label}-{seed}", force)
        reason = _play(path, force, played, seed, target, Pace(patience_s=people.patience, voices=voices))
        status = report(path, bounds, as_json)
    except AntiphonError as error:
        _fail(error)
    raise typer.Exit(RUN_FAILED if reason in FAILURES else status)


@app.command()
@grouped
def summarize(
    log: Annotated[Path, typer.Argument(help="Event log of a run.")],
    as_json: AsJson = False,
    bounds: BoundOptions = BoundOptions(),
) -> None:
    """Figures of a run, from its log alone; also of a run that was cut short."""
    try:
        status = report(log, bounds, as_json)
    except AntiphonError as error:
        _fail(error)
    raise typer.Exit(status)


def _unused(name: str, force: bool) -> Path:
    """A log of this name, with a number behind it where there is one already."""
    path, number = Path(f"{name}.jsonl"), 1
    while path.exists() and not force:
        number += 1
        path = Path(f"{name}-{number}.jsonl")
    return path


def _play(path: Path, force: bool, workload: Workload, seed: int, target: DrivenServer, pace: Pace) -> str:
    """Run, with progress; say what went wrong. Returns why it ended."""
    from antiphon.bench.experiment import measure
    from antiphon.bench.logfile import LogWriter
    from antiphon.bench.progress import RunProgress

    with RunProgress(console) as progress, LogWriter(path, watch=progress.saw, force=force) as log:
        reason = asyncio.run(measure(workload, seed, target, pace, log, progress))
    if reason == "interrupted":
        console.print("interrupted: the figures are of what was measured until then")
    for line in progress.warnings():
        console.print(f"[bold yellow]warning:[/] {escape(line)}", soft_wrap=True)
    console.print(f"log: {path}", soft_wrap=True)
    return reason


def report(path: Path, bounds: BoundOptions, as_json: bool, policies: dict[str, Any] | None = None) -> int:
    """Print the figures of a log. Returns the exit status that its bounds ask for. `policies`: what the JSON
    says of them beside the figures."""
    from antiphon.bench.logfile import read
    from antiphon.bench.tables import figures_tables
    from antiphon.metrics.recorder import fold
    from antiphon.metrics.slo import Slo
    from antiphon.metrics.summary import figures

    run = fold(read(path))
    if run.started is None:
        raise ConfigError(f"{path} is not the log of a run: it does not begin with RunStarted")
    given = bounds.given
    found = figures(run, Slo(**given))
    missed = Slo(**NO_BOUNDS | given).misses(found) if given else []
    started, ended = run.started, run.ended
    if ended is not None and ended.message:
        console.print(f"[bold red]the run ended early:[/] {escape(ended.message)}", soft_wrap=True)
    for sentence in missed:
        console.print(f"[bold yellow]missed:[/] {escape(sentence)}", soft_wrap=True)
    if as_json:
        about = msgspec.to_builtins(started) if started is not None else {}
        more = {} if policies is None else {"policies": policies}
        typer.echo(json.dumps({"run": about, "figures": found, "missed": missed, **more}, indent=2))
    else:
        title = f"{started.label}: {started.workload}, seed {started.seed}" if started else str(path)
        Console().print(figures_tables(title, found))
    return SLO_MISSED if missed else 0


def _fail(error: Exception) -> NoReturn:
    console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    raise typer.Exit(RUN_FAILED)
