"""`antiphon tune`: which settings of the urgency policy suit a workload, on virtual time or on servers."""

from __future__ import annotations

import asyncio
import functools
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from antiphon.cli.compare import Asked, WireOptions, refuse_idle, stopped_or_failed, words_of
from antiphon.cli.groups import ChatOptions, KeptOptions, grouped
from antiphon.cli.machine import MachineOptions, announce, machine_of
from antiphon.cli.options import PRESETS
from antiphon.cli.shared import PAGE_COLUMNS, check_out, console, say, split
from antiphon.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from antiphon.bench.compare import Plan, Reachable, Runner
    from antiphon.bench.servers import Target
    from antiphon.bench.tune import Tuned, Tuning
    from antiphon.metrics.log import RunStarted
    from antiphon.sim.run import Setup

RESULT_FILE = "tuned.yaml"


@dataclass(frozen=True)
class SweepOptions:
    """What is tried."""

    stages: Annotated[str, typer.Option(help="Stages that are tuned, in this order.")] = "thinker,talker"
    safe_s: Annotated[str, typer.Option(help="Values of P_safe, in seconds; empty: it stays as it is.")] = (
        "0.5,1,2,4"
    )
    ratios: Annotated[
        str, typer.Option(help="Values of beta/alpha, of which only the ratio counts; empty: as it is.")
    ] = "0,1,10,40"
    brink_s: Annotated[
        str, typer.Option(help="Values of brink_s, in seconds, for the step; empty: it stays as it is.")
    ] = ""
    spare_s: Annotated[
        str,
        typer.Option(
            help="Values of spare_s, in seconds or inf, of the device's policy most-urgent; empty: it stays "
            "as it is."
        ),
    ] = ""
    objective: Annotated[str, typer.Option(help="Figure that is to fall; of text models, ttft_s.p90.")] = (
        "ttfp_s.p90"
    )
    seeds: Annotated[int, typer.Option(min=1, help="Runs by which each setting is judged.")] = 3
    held_out: Annotated[
        int, typer.Option(min=2, help="Runs, of other seeds, by which the result is judged.")
    ] = 5
    first_seed: Annotated[int, typer.Option(min=0, help="The seeds count up from here.")] = 0


@dataclass(frozen=True)
class TuningOptions(KeptOptions):
    """Where runs, presets and the result are kept."""

    out: Annotated[
        Path,
        typer.Option(help=f"Directory of logs, of presets that are tried and of the result, {RESULT_FILE}."),
    ] = Path("tuning")


@grouped
def tune(
    context: typer.Context,
    preset: Annotated[str, typer.Option(help=f"Where to start from: {PRESETS}.")] = "liveserve",
    model: Annotated[
        str, typer.Option(help="The model on a datasheet; with --live, the checkpoint that is served.")
    ] = "",
    live: Annotated[
        bool, typer.Option("--live", help="On servers that are started here, in real time.")
    ] = False,
    people: ChatOptions = ChatOptions(),
    swept: SweepOptions = SweepOptions(),
    kept: TuningOptions = TuningOptions(),
    wire: WireOptions = WireOptions(),
    machine: MachineOptions = MachineOptions(),
) -> None:
    """Sweep P_safe and beta/alpha of the urgency policy on a workload, stage by stage (LiveServe §4.1), and
    write a preset for --preset.

    A value is taken if the mean of the objective falls by 1 % or more over the same seeds, while continuity
    falls by no more than 0.005 and waste rises by no more than 0.01 against the start preset. The result is
    then held to the start preset on seeds that decided nothing; unless it is better there beyond noise, the
    start preset is written. Exit status: 0, 1 for an error, 130 if stopped.
    """
    out = kept.out
    with stopped_or_failed(out):
        check_out(out)
        refuse_idle(context, not live, "is of a simulated machine; with --live there is none")
        sweep = _sweep(preset, swept)
        asked = Asked((), model, people.workload, people.played, sweep.seeds, people.patience)
        sweep, plays = _served(asked, sweep, wire, out) if live else _simulated(asked, sweep, machine)
        found = asyncio.run(_tuned(plays, sweep, out, kept.resume))
    _report(found, out, plays.where, asked)


@dataclass(frozen=True)
class Plays:
    """What plays the runs.

    servers  have a preset answer, where one is served
    where    the machine or the served model, as the result's comment names it
    """

    plan: Plan
    servers: Reachable
    runner: Runner
    where: str


def _sweep(preset: str, swept: SweepOptions) -> Tuning:
    """Raises ConfigError."""
    from antiphon.bench.knobs import knobs
    from antiphon.bench.tune import Tuning

    safe_s, ratios = _numbers("safe-s", swept.safe_s), _numbers("ratios", swept.ratios)
    brink_s, spare_s = _numbers("brink-s", swept.brink_s), _numbers("spare-s", swept.spare_s)
    first, last = swept.first_seed, swept.first_seed + swept.seeds
    return Tuning(
        preset,
        knobs(preset, tuple(split(swept.stages)), safe_s, ratios, brink_s, spare_s),
        tuple(range(first, last)),
        tuple(range(last, last + swept.held_out)),
        swept.objective,
    )


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(value) for value in split(text))
    except ValueError:
        raise ConfigError(
            f"--{option} {text}: expected numbers with commas between them, such as 0.5,1"
        ) from None


def _plan(asked: Asked, sweep: Tuning, options: dict[str, Any]) -> Plan:
    from antiphon.bench.compare import Plan
    from antiphon.bench.knobs import choices_of, preset_digest

    kept = asked.alike | options
    kept |= {
        "start": preset_digest(choices_of(sweep.preset, "")),
        "tried": [[str(setting) for setting in group] for group in sweep.groups],
        "objective": sweep.objective,
        "tuning seeds": list(sweep.seeds),
    }
    return Plan((sweep.start,), (*sweep.seeds, *sweep.held_out), asked.name, kept)


def _check_stages(sweep: Tuning, known: Sequence[str]) -> None:
    """Raises ConfigError for stages that the model does not have."""
    for setting in (setting for group in sweep.groups for setting in group):
        if setting.stage and setting.stage not in known:
            raise ConfigError(
                f"--stages {setting.stage}: this model has {', '.join(known)}; name some of these"
            )


def _simulated(asked: Asked, sweep: Tuning, options: MachineOptions) -> tuple[Tuning, Plays]:
    """Raises ConfigError, also for stages that the model does not have."""
    from antiphon.bench.simulated import PlaySimulated, Simulators
    from antiphon.cli.simulated import first_line

    machine = functools.cache(lambda preset: machine_of(options, preset, asked.model))
    start = machine(sweep.preset)
    start.setup(asked.workload, 0)  # a workload that it cannot serve is refused before any run
    node = start.engine.node
    _check_stages(sweep, (*node.ar, *node.codec))
    announce(start)

    def made(target: Target, seed: int) -> tuple[Setup, RunStarted]:
        setup = machine(target.preset).setup(asked.workload, seed, asked.patience_s)
        return setup, first_line(setup, target.name, start.title)

    plan = _plan(asked, sweep, {"machine": asdict(options)})
    plays = Plays(plan, Simulators(), PlaySimulated(made, console), f"simulated: {start.title}")
    return replace(sweep, graph=node.graph), plays


def _served(asked: Asked, sweep: Tuning, wire: WireOptions, out: Path) -> tuple[Tuning, Plays]:
    """One server at a time: there is one for each setting. Raises ConfigError, also for stages that the model
    does not have, and CheckpointError where its config cannot be read."""
    from antiphon.bench.compared import PlayWorkload
    from antiphon.bench.servers import Launch, Servers
    from antiphon.bench.target import Pace
    from antiphon.cli.deployments import checkpoint_facts

    if not asked.model:
        raise ConfigError("--live serves the presets that are tried: --model says what checkpoint with")
    facts = checkpoint_facts(asked.model, say)
    _check_stages(sweep, [stage for stage in facts.graph.reply_stages if stage in facts.stages])
    pace = Pace(patience_s=asked.patience_s)
    runner = PlayWorkload(asked.workload, pace, console, wire.api_key, wire.acks.value)
    servers = Servers(Launch(asked.model, words_of(wire.serve), out / "servers"), keep=False, say=say)
    plan = _plan(asked, sweep, {"serve": wire.serve, "acks": wire.acks.value})
    plays = Plays(plan, servers, runner, f"served: {asked.model} {wire.serve}".strip())
    return replace(sweep, graph=facts.graph.family, is_live=True), plays


async def _tuned(plays: Plays, sweep: Tuning, out: Path, resume: bool) -> Tuned:
    from antiphon.bench.compare import Work, prepare
    from antiphon.bench.compared import figures_of, stop_on_signals
    from antiphon.bench.servers import Servers
    from antiphon.bench.tune import tune as tuned

    prepare(plays.plan, out, resume)
    presets = out / "presets"
    presets.mkdir(exist_ok=True)
    work = Work(plays.servers, plays.runner, figures_of, plays.plan, out, say)
    if not isinstance(plays.servers, Servers):
        return await tuned(sweep, work, presets)
    stop_on_signals()
    async with plays.servers:
        return await tuned(sweep, work, presets)


def _report(found: Tuned, out: Path, where: str, asked: Asked) -> None:
    from antiphon.bench.tune_report import tried_table, tuned_text, verdict

    path = out / RESULT_FILE
    path.write_text(tuned_text(found, where, asked.name), encoding="utf-8")
    Console(width=None if sys.stdout.isatty() else PAGE_COLUMNS).print(tried_table(found))
    for line in verdict(found):
        typer.echo(line)
    console.print(f"preset: {path}; try it with --preset {path}", soft_wrap=True)
