"""The command line: parses, calls one function, prints. A command a file, put together here."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon import __version__
from antiphon.cli import bench, checkpoint, config, plot, workload
from antiphon.cli.compare import compare
from antiphon.cli.doctor import doctor
from antiphon.cli.explain import explain
from antiphon.cli.plan import plan
from antiphon.cli.profile import profile
from antiphon.cli.serve import lift, replay, serve
from antiphon.cli.simulate import simulate
from antiphon.cli.sweep import sweep
from antiphon.cli.tune import tune

app = typer.Typer(
    name="antiphon",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"antiphon {__version__}")
        raise typer.Exit


@app.callback()
def antiphon(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say the version, and no more."),
    ] = False,
) -> None:
    """Serve realtime omni-modal models: people speak to it, it speaks back, and they interrupt it."""


app.command()(serve)
app.command()(replay)
app.command()(explain)
app.command()(lift)
app.command()(doctor)
app.command()(profile)
app.add_typer(bench.app, name="bench")
bench.app.command()(sweep)
app.command()(compare)
app.command()(simulate)
app.command()(plan)
app.command()(tune)
app.add_typer(plot.app, name="plot")
app.add_typer(workload.app, name="workload")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(config.app, name="config")
