"""`antiphon compare`: servers over the wire, or machines on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from antiphon.assembly.preset import preset_label, read_preset
from antiphon.cli.bench import STOPPED
from antiphon.cli.groups import KeptOptions, PeopleOptions, grouped
from antiphon.cli.machine import MachineOptions, SimMachine, announce, machine_of, varied
from antiphon.cli.options import PRESETS, Acks, AcksOption
from antiphon.cli.shared import PAGE_COLUMNS, check_out, console, fail, given_options, say
from antiphon.core.errors import AntiphonError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from antiphon.bench.compare import Plan, Reachable, Runner
    from antiphon.bench.comparison import Comparison
    from antiphon.bench.servers import Target
    from antiphon.metrics.log import RunStarted
    from antiphon.sim.run import Setup
    from antiphon.workload.spec import Workload

RESULT_FILE = "comparison.json"
TARGET = re.compile(r"\s*(?:([\w.-]+)=)?(\S+)\s*(.*)", re.DOTALL)
"""A name, a preset, and options."""
TARGETS = (
    f"Presets ({PRESETS}) or URLs; NAME=… names them. With --simulate presets, and behind "
    'each options of its own: "tiered=fcfs --host-kv-tokens 100000".'
)


@dataclass(frozen=True)
class WireOptions:
    """Of servers that are driven over the wire."""

    serve: Annotated[str, typer.Option(help='More options of `antiphon serve`: "--threads 1".')] = ""
    api_key: Annotated[
        str, typer.Option(envvar=["ANTIPHON_API_KEY", "OPENAI_API_KEY"], help="Sent as a Bearer token.")
    ] = ""
    acks: Acks = AcksOption.auto


@dataclass(frozen=True)
class ServersOptions(WireOptions):
    """Of several servers that stay up side by side."""

    one_at_a_time: Annotated[
        bool, typer.Option(help="Start each server for its run alone, where memory is short.")
    ] = False


@dataclass(frozen=True)
class SeedOptions:
    """How often each target is run."""

    seeds: Annotated[int, typer.Option(min=1, help="Runs of each target; five or more to judge by.")] = 5
    first_seed: Annotated[int, typer.Option(min=0, help="The seeds count up from here.")] = 0

    @property
    def chosen(self) -> tuple[int, ...]:
        return tuple(range(self.first_seed, self.first_seed + self.seeds))


@dataclass(frozen=True)
class VerdictOptions:
    """What counts as a difference, and what is shown of it."""

    matters: Annotated[
        float, typer.Option(help="The smallest difference that does, a share: less than 0.02 (2 %) is none.")
    ] = 0.0
    everything: Annotated[bool, typer.Option("--all", help="Show every figure.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON, and no table.")] = False


@dataclass(frozen=True)
class Asked:
    """What is compared by whom, whatever they are."""

    targets: Sequence[str]
    model: str
    name: str
    workload: Workload
    seeds: tuple[int, ...]
    patience_s: float
    matters: float = 0.0

    @property
    def alike(self) -> dict[str, Any]:
        """What makes two runs alike, and is kept with the plan."""
        return {
            "load": self.workload.load.model_dump(mode="json", exclude_none=True),
            "turn_detection": self.workload.turn_detection,
            "model": self.model,
            "patience_s": self.patience_s,
        }


@grouped
def compare(
    context: typer.Context,
    targets: Annotated[list[str], typer.Argument(help=TARGETS)],
    model: Annotated[
        str,
        typer.Option(
            help="Checkpoint that presets are served with; with --simulate, the model on a datasheet."
        ),
    ] = "",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="On virtual time, on the machine that the options describe.")
    ] = False,
    people: PeopleOptions = PeopleOptions(),
    seeds: SeedOptions = SeedOptions(),
    kept: KeptOptions = KeptOptions(),
    wire: ServersOptions = ServersOptions(),
    machine: MachineOptions = MachineOptions(),
    verdict: VerdictOptions = VerdictOptions(),
) -> None:
    """Play the same people to several servers in turn, or to simulated ones, and say what differs.

    Each target is held to the first. Exit status: 0, 1 for an error, 130 if stopped.
    """
    with stopped_or_failed(kept.out):
        check_out(kept.out)
        refuse_idle(context, simulate)
        asked = Asked(
            targets, model, people.workload, people.played, seeds.chosen, people.patience, verdict.matters
        )
        if simulate:
            found = asyncio.run(_run_all(*_simulated(asked, machine), kept))
        else:
            found = asyncio.run(_served(asked, wire, kept))
    _report(found, kept.out, verdict)


@contextlib.contextmanager
def stopped_or_failed(out: Path) -> Iterator[None]:
    """Ends the command, in words, where its runs are stopped or fail. `out`: what they were written to."""
    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt):
        console.print(f"stopped: what was measured is in {out}; go on with --resume", soft_wrap=True)
        raise typer.Exit(STOPPED) from None
    except (AntiphonError, OSError) as error:
        fail(error)


def refuse_idle(context: typer.Context, is_simulated: bool, simulates: str = "goes with --simulate") -> None:
    """Raises ConfigError for options that were typed and would do nothing. `simulates`: what is said of those
    of a machine."""
    idle = ServersOptions if is_simulated else MachineOptions
    named = {field.name for field in fields(idle)} - {"api_key"}
    named &= given_options(context)
    typed = ["--" + name.replace("_", "-") for name in context.params if name in named]
    if typed:
        why = "is for servers over the wire" if is_simulated else simulates
        raise ConfigError(f"{', '.join(typed)}: that {why}; leave it out")


def _simulated(asked: Asked, base: MachineOptions) -> tuple[Plan, Reachable, Runner]:
    """The comparison, with the machine of each target made already. Raises ConfigError."""
    from antiphon.bench.compare import Plan
    from antiphon.bench.servers import distinct
    from antiphon.bench.simulated import PlaySimulated, Simulators
    from antiphon.cli.simulated import first_line

    targets = distinct(tuple(simulated_target(text) for text in asked.targets))
    machines = {target.name: _machine(target, base, asked.model) for target in targets}
    for name, machine in machines.items():
        machine.setup(asked.workload, 0)  # a workload that it cannot serve is refused before any run
        announce(machine, name)

    def made(target: Target, seed: int) -> tuple[Setup, RunStarted]:
        machine = machines[target.name]
        setup = machine.setup(asked.workload, seed, asked.patience_s)
        return setup, first_line(setup, target.name, machine.title)

    plan = Plan(targets, asked.seeds, asked.name, asked.alike | {"machine": asdict(base)}, asked.matters)
    return plan, Simulators(), PlaySimulated(made, console)


def simulated_target(text: str) -> Target:
    """Of a simulated target: `fcfs`, `NAME=fcfs`, `NAME=fcfs --host-kv-tokens 100000`. Raises ConfigError."""
    from antiphon.bench.servers import Target

    found = TARGET.fullmatch(text)
    name, preset, options = found.groups() if found is not None else (None, "", "")
    try:
        if "://" in preset:
            raise ConfigError(f"{preset!r} is not a preset; a server is not simulated")
        read_preset(preset)
    except ConfigError as error:
        raise ConfigError(f"target {text!r}: {error}") from None
    return Target(name or preset_label(preset), preset=preset, options=options.strip())


def _machine(target: Target, base: MachineOptions, model: str) -> SimMachine:
    try:
        options = varied(base, words_of(target.options))
        return machine_of(options, target.preset or "", model)
    except ConfigError as error:
        raise ConfigError(f"target {target.name}: {error}") from None


async def _served(asked: Asked, wire: ServersOptions, kept: KeptOptions) -> Comparison:
    from antiphon.bench.compare import Plan
    from antiphon.bench.compared import PlayWorkload, stop_on_signals
    from antiphon.bench.servers import Launch, Servers, parse_targets
    from antiphon.bench.target import Pace

    options = asked.alike | {"serve": wire.serve, "acks": wire.acks.value}
    plan = Plan(parse_targets(asked.targets), asked.seeds, asked.name, options, asked.matters)
    pace = Pace(patience_s=asked.patience_s)
    runner = PlayWorkload(asked.workload, pace, console, wire.api_key, wire.acks.value)
    launch = Launch(asked.model, words_of(wire.serve), kept.out / "servers")
    stop_on_signals()
    async with Servers(launch if asked.model else None, keep=not wire.one_at_a_time, say=say) as servers:
        for target in plan.targets:
            servers.check(target)
        if not kept.resume:
            for target in plan.targets:
                await check_reachable(target, wire.api_key)
        return await _run_all(plan, servers, runner, kept)


async def check_reachable(target: Target, api_key: str) -> None:
    """Raises ConfigError unless the target's server answers and lists a model. A preset has none yet."""
    from antiphon.bench.target import model_of

    if target.url is not None:
        try:
            await model_of(target.url, api_key)
        except ConfigError as error:
            raise ConfigError(f"target {target.name}: {error}") from None


async def _run_all(plan: Plan, servers: Reachable, runner: Runner, kept: KeptOptions) -> Comparison:
    """Every run that is missing."""
    from antiphon.bench.compare import compare as compared
    from antiphon.bench.compared import figures_of

    for warning in plan.warnings:
        console.print(f"[bold yellow]warning:[/] {escape(warning)}", soft_wrap=True)
    return await compared(
        plan, servers, runner, kept.out, figures=figures_of, is_resumed=kept.resume, say=say
    )


def words_of(options: str) -> tuple[str, ...]:
    """As a shell would split them. Raises ConfigError."""
    try:
        return tuple(shlex.split(options))
    except ValueError as error:
        raise ConfigError(f"options {options!r}: {error}") from None


def _report(found: Comparison, out: Path, verdict: VerdictOptions) -> None:
    from antiphon.bench.compared import about
    from antiphon.bench.comparison import as_json as encoded
    from antiphon.bench.comparison_table import comparison_table

    text = encoded(found, about())
    (out / RESULT_FILE).write_bytes(text)
    if verdict.as_json:
        typer.echo(text.decode(), nl=False)
    else:
        for each in found.against:
            table = comparison_table(each, is_whole=verdict.everything)
            if table.row_count:
                Console(width=None if sys.stdout.isatty() else PAGE_COLUMNS).print(table)
            else:
                say(f"{each.b} against {each.a}: no seed was measured on both")
    console.print(f"result: {out / RESULT_FILE}", soft_wrap=True)
