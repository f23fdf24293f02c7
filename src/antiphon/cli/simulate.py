"""`antiphon simulate`: the server's own scheduling on a machine that is not at hand, on virtual time."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from antiphon.assembly.preset import preset_label
from antiphon.cli.bench import RUN_FAILED, STOPPED, AsJson, BoundOptions, report
from antiphon.cli.groups import ChatOptions, grouped
from antiphon.cli.machine import MachineOptions, ModelName, PresetName, announce, machine_of
from antiphon.cli.shared import check_out, console
from antiphon.cli.simulated import Seed, first_line
from antiphon.core.errors import AntiphonError, ConfigError

if TYPE_CHECKING:
    from antiphon.metrics.log import RunStarted
    from antiphon.sim.run import Outcome, Setup


@grouped
def simulate(
    people: ChatOptions = ChatOptions(),
    preset: PresetName = "",
    model: ModelName = "",
    machine: MachineOptions = MachineOptions(),
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Directory of the event log.")] = Path(),
    force: Annotated[bool, typer.Option(help="Overwrite the log if it exists.")] = False,
    label: Annotated[str, typer.Option(help="What is simulated, in a word; the preset by default.")] = "",
    record: Annotated[
        Path | None, typer.Option(help="Record the node's facts and decisions, as `serve` does.")
    ] = None,
    as_json: AsJson = False,
    bounds: BoundOptions = BoundOptions(),
) -> None:
    """Play a workload to the server's own scheduling on virtual time, and say what its people would meet.

    Log and figures are those of `antiphon bench`. Exit status: 0, 1 if a bound given with --slo-… was missed,
    2 if the run failed, 130 if stopped.
    """
    try:
        check_out(out)
        found = machine_of(machine, preset, model)
        label = label or preset_label(found.engine.node.preset)
        path = out / f"simulate-{label}-{seed}.jsonl"
        if path.parent != out:
            raise ConfigError(
                f"--label {label}: it names the log, so it has no / in it; --out is where that goes"
            )
        announce(found)
        made = found.setup(people.played, seed, people.patience)
        if path.exists() and not force:
            raise ConfigError(f"{path} exists; name another --out or --label, or overwrite it with --force")
        out.mkdir(parents=True, exist_ok=True)
        outcome = _play(made, first_line(made, label, found.title), record)
        path.write_bytes(outcome.log)
        console.print(f"log: {path}", soft_wrap=True)
        policies = {
            "overruled": [str(one) for one in outcome.overruled],
            "refused": outcome.refused,
            "observed": [str(one) for one in outcome.observed],
        }
        status = report(path, bounds, as_json, policies)
    except (AntiphonError, OSError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(RUN_FAILED) from None
    except KeyboardInterrupt:
        console.print("stopped: the run has no log, since it was not played to its end", soft_wrap=True)
        raise typer.Exit(STOPPED) from None
    raise typer.Exit(status)


def _play(setup: Setup, started: RunStarted, record: Path | None) -> Outcome:
    """Run, with its record where one is asked for."""
    import dataclasses

    from antiphon.bench.simulated import played
    from antiphon.runtime.record import RecordWriter

    if record is None:
        return played(setup, started, console)
    writer = RecordWriter(record, setup.engine.node, setup.engine.depth)
    with contextlib.closing(writer):
        return played(dataclasses.replace(setup, recorder=writer), started, console)
