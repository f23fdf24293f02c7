"""`antiphon plan`: how many conversations a machine carries, and what breaks first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antiphon.cli.bench import RUN_FAILED, SLO_MISSED, AsJson
from antiphon.cli.groups import grouped
from antiphon.cli.options import ContinuityLeast, TtfpMost, TtftMost, TurnEnd, WorkloadName, finite
from antiphon.cli.shared import console
from antiphon.cli.simulated import MachineOptions, ModelName, PresetName, Seed, first_line, machine_of
from antiphon.core.errors import AntiphonError

if TYPE_CHECKING:
    from antiphon.sim.plan import Tried

PAGE_COLUMNS = 160
COLUMNS = ("ttfp_s.p90", "turn_latency_s.p90", "ttft_s.p90", "continuity", "completed_rps")


@grouped
def plan(
    workload: WorkloadName = "voice-chat",
    preset: PresetName = "baseline",
    model: ModelName = "",
    machine: MachineOptions = MachineOptions(),
    duration: Annotated[
        float, typer.Option(min=1, callback=finite, help="Virtual seconds of each run.")
    ] = 90.0,
    first: Annotated[int, typer.Option(min=1, help="Conversations to begin the search with.")] = 8,
    most: Annotated[int, typer.Option(min=1, help="Conversations to end it with.")] = 4096,
    turn_detection: TurnEnd = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    slo_ttfp_p90: Annotated[float, TtfpMost] = 1.0,
    slo_continuity: Annotated[float, ContinuityLeast] = 0.95,
    slo_ttft_p90: Annotated[float, TtftMost] = 2.0,
) -> None:
    """How many conversations at a time keep within the bounds, and what breaks first beyond that.

    Exit status: 0, 1 if not even one does, 2 if a run failed.
    """
    from antiphon.bench.experiment import Changes, workload_of
    from antiphon.metrics.slo import Slo
    from antiphon.sim.plan import run_with, search

    slo = Slo(ttfp_p90_s=slo_ttfp_p90, continuity=slo_continuity, ttft_s=slo_ttft_p90)
    tried: list[Tried] = []
    try:
        found = machine_of(machine, preset, model)
        made = found.setup(workload_of(workload, Changes(turn_detection=turn_detection)), seed)
        started = first_line(made, preset, found.title)
        for one in search(lambda number: run_with(made, number, duration, slo, started), first, most):
            tried.append(one)
            console.print(_line(one), soft_wrap=True)
    except AntiphonError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(RUN_FAILED) from None
    except KeyboardInterrupt:
        console.print("stopped: what was tried is below")
    result = plan_result(tried)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins({"run": started, **result}), indent=2))
    else:
        Console(width=PAGE_COLUMNS).print(plan_table(f"{workload} on {found.title}", tried))
        for sentence in result["says"]:
            typer.echo(sentence)
    raise typer.Exit(0 if result["conversations"] else SLO_MISSED)


def plan_result(tried: list[Tried]) -> dict[str, Any]:
    """JSON-ready: the answer, in a number and in words, and every try."""
    holding = [one.conversations for one in tried if one.holds]
    answer = max(holding, default=0)
    beyond = min((one for one in tried if not one.holds), key=lambda one: one.conversations, default=None)
    says = [f"{answer} conversations at a time hold the bounds."]
    if beyond is None:
        says.append("No bound was missed by any number that was tried; raise --most.")
    else:
        says.append(f"At {beyond.conversations}: {'; '.join(beyond.missed)}.")
        says.append(f"Shortest was {beyond.short}.")
    return {"conversations": answer, "says": says, "tried": tried}


def plan_table(title: str, tried: list[Tried]) -> Table:
    from antiphon.bench.tables import shown

    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    seen = [key for key in COLUMNS if any(key in one.figures for one in tried)]
    stages = [load.stage for load in tried[0].loads] if tried else []
    for name in ("conversations", *seen, *(f"{stage} busy" for stage in stages), "KV full", "holds"):
        table.add_column(name, justify="right")
    for one in sorted(tried, key=lambda one: one.conversations):
        cells = [shown(one.figures[key]) if key in one.figures else "–" for key in seen]
        busy = [f"{load.busy_share:.0%}" for load in one.loads]
        full = f"{max(load.kv_full_share for load in one.loads):.0%}"
        table.add_row(str(one.conversations), *cells, *busy, full, "yes" if one.holds else "no")
    return table


def _line(one: Tried) -> str:
    outcome = "hold the bounds" if one.holds else "; ".join(one.missed)
    return f"{one.conversations} conversations: {outcome}"
