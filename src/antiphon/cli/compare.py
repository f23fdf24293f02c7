"""`antiphon compare`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from antiphon.assembly.preset import preset_names
from antiphon.cli.bench import STOPPED
from antiphon.cli.groups import LoadOptions, grouped
from antiphon.cli.options import Acks, AcksOption, Patience, WorkloadName
from antiphon.cli.shared import console, fail
from antiphon.core.errors import AntiphonError, ConfigError

if TYPE_CHECKING:
    from antiphon.bench.compare import Plan
    from antiphon.bench.compared import PlayWorkload
    from antiphon.bench.comparison import Comparison
    from antiphon.bench.servers import Servers

PAGE_COLUMNS = 130
"""Width of the table where it does not go to a terminal."""
RESULT_FILE = "comparison.json"


@grouped
def compare(
    targets: Annotated[
        list[str], typer.Argument(help=f"Presets ({', '.join(preset_names())}) or URLs; NAME=… names them.")
    ],
    model: Annotated[str, typer.Option(help="Checkpoint that presets are served with.")] = "",
    workload: WorkloadName = "smoke",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each target; five or more to judge by.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The seeds count up from here.")] = 0,
    load: LoadOptions = LoadOptions(),
    out: Annotated[Path, typer.Option(help="Directory of logs and result.")] = Path("comparison"),
    resume: Annotated[bool, typer.Option(help="Go on with the comparison in --out.")] = False,
    serve: Annotated[str, typer.Option(help='More options of `antiphon serve`: "--threads 1".')] = "",
    one_at_a_time: Annotated[
        bool, typer.Option(help="Start each server for its run alone, where memory is short.")
    ] = False,
    api_key: Annotated[
        str, typer.Option(envvar=["ANTIPHON_API_KEY", "OPENAI_API_KEY"], help="Sent as a Bearer token.")
    ] = "",
    acks: Acks = AcksOption.auto,
    patience: Patience = 60.0,
    everything: Annotated[bool, typer.Option("--all", help="Show every figure.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON, and no table.")] = False,
) -> None:
    """Play the same people to several servers in turn, and say what differs by how much.

    Each target is held to the first. Exit status: 0, 1 for an error, 130 if stopped.
    """
    from antiphon.bench.compare import Plan
    from antiphon.bench.compared import PlayWorkload
    from antiphon.bench.experiment import workload_of
    from antiphon.bench.servers import Launch, Servers, parse_targets
    from antiphon.bench.target import Pace

    try:
        played = workload_of(workload, load.changes)
        options = {
            "load": played.load.model_dump(mode="json", exclude_none=True),
            "turn_detection": played.turn_detection,
            "model": model,
            "serve": serve,
            "acks": acks.value,
            "patience_s": patience,
        }
        plan = Plan(parse_targets(targets), tuple(range(first_seed, first_seed + seeds)), workload, options)
        runner = PlayWorkload(played, Pace(patience_s=patience), console, api_key, acks.value)
        launch = Launch(model, words_of(serve), out / "servers")
        servers = Servers(launch if model else None, keep=not one_at_a_time, say=_say)
        found = asyncio.run(_compare(plan, servers, runner, out, resume))
    except (asyncio.CancelledError, KeyboardInterrupt):
        console.print(f"stopped: what was measured is in {out}; go on with --resume", soft_wrap=True)
        raise typer.Exit(STOPPED) from None
    except (AntiphonError, OSError) as error:
        fail(error)
    _report(found, out, everything, as_json)


async def _compare(plan: Plan, servers: Servers, runner: PlayWorkload, out: Path, resume: bool) -> Comparison:
    from antiphon.bench.compare import compare as run_all
    from antiphon.bench.compared import figures_of, stop_on_signals

    stop_on_signals()
    for warning in plan.warnings:
        console.print(f"[bold yellow]warning:[/] {warning}")
    async with servers:
        return await run_all(plan, servers, runner, out, figures=figures_of, is_resumed=resume, say=_say)


def words_of(options: str) -> tuple[str, ...]:
    """As a shell would split them. Raises ConfigError."""
    try:
        return tuple(shlex.split(options))
    except ValueError as error:
        raise ConfigError(f"--serve {options!r}: {error}") from None


def _say(words: str) -> None:
    console.print(escape(words), soft_wrap=True)


def _report(found: Comparison, out: Path, everything: bool, as_json: bool) -> None:
    from antiphon.bench.compared import about
    from antiphon.bench.comparison import as_json as encoded
    from antiphon.bench.comparison_table import comparison_table

    text = encoded(found, about())
    (out / RESULT_FILE).write_bytes(text)
    if as_json:
        typer.echo(text.decode(), nl=False)
    else:
        for each in found.against:
            Console(width=None if sys.stdout.isatty() else PAGE_COLUMNS).print(
                comparison_table(each, is_whole=everything)
            )
    console.print(f"result: {out / RESULT_FILE}", soft_wrap=True)
