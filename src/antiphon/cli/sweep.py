"""`antiphon bench sweep`."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from antiphon.cli.bench import STOPPED
from antiphon.cli.groups import SpeechBounds, grouped
from antiphon.cli.options import (
    LOCAL_URL,
    ApiKey,
    MaxConcurrency,
    TurnEnd,
    Url,
    WorkloadName,
    finite,
)
from antiphon.cli.shared import PAGE_COLUMNS, check_out, console, fail, split
from antiphon.core.errors import AntiphonError, ConfigError

if TYPE_CHECKING:
    from antiphon.bench.experiment import Changes
    from antiphon.bench.sweep import LoadPoint, OfferedLoad

RESULT_FILE = "sweep.json"


@dataclass(frozen=True)
class SweptServer:
    """Which server is measured, and what it is called."""

    url: Url = LOCAL_URL
    label: Annotated[str, typer.Option(help="What is measured, in a word.")] = "server"
    api_key: ApiKey = ""


@dataclass(frozen=True)
class SweptLoads:
    """Who comes in each run, where the command line says otherwise than the workload."""

    concurrency: Annotated[str, typer.Option(help="Sessions kept open, a run each: 1,2,4,8.")] = ""
    rate: Annotated[str, typer.Option(help="Or sessions that come per second, a run each: 0.5,1,2.")] = ""
    max_concurrency: MaxConcurrency = None
    duration: Annotated[float | None, typer.Option(min=0, callback=finite, help="Seconds of each run.")] = (
        None
    )
    turn_detection: TurnEnd = None

    @property
    def changes(self) -> Changes:
        from antiphon.bench.experiment import Changes

        return Changes(
            max_concurrency=self.max_concurrency,
            duration_s=self.duration,
            turn_detection=self.turn_detection,
        )


@grouped
def sweep(
    server: SweptServer = SweptServer(),
    workload: WorkloadName = "voice-chat",
    offered: SweptLoads = SweptLoads(),
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same people.")] = 0,
    bounds: SpeechBounds = SpeechBounds(),
    out: Annotated[Path, typer.Option(help="Directory of logs and result.")] = Path("sweep"),
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON, and no table.")] = False,
) -> None:
    """Play a workload at rising loads and say up to which one speech holds its bounds (useful_rps)."""
    from antiphon.bench import sweep as room
    from antiphon.bench.servers import Target
    from antiphon.bench.target import Pace

    points: list[LoadPoint] = []
    is_stopped = False
    try:
        check_out(out)
        loads = _loads(offered.concurrency, offered.rate)
        plan = room.Sweep(Target(server.label, server.url), workload, loads, offered.changes, seed, out)
        out.mkdir(parents=True, exist_ok=True)
        asyncio.run(room.sweep(plan, points, console, Pace(), server.api_key))
    except (asyncio.CancelledError, KeyboardInterrupt):
        is_stopped = True
        if not points:
            console.print("stopped before a load was measured: nothing is concluded")
            raise typer.Exit(STOPPED) from None
        console.print(
            "stopped: the loads that were measured are below, and others may hold the bounds", soft_wrap=True
        )
    except (AntiphonError, OSError) as error:
        if not points:
            fail(error)
        console.print(f"[bold red]stopped:[/] {error}", soft_wrap=True)
    slo = bounds.slo
    result = room.sweep_result(points, slo)
    (out / RESULT_FILE).write_text(json.dumps(result, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        raise typer.Exit(STOPPED if is_stopped else 0)
    title = f"{server.label}: {workload}, seed {seed}"
    Console(width=PAGE_COLUMNS).print(room.sweep_table(title, points, slo))
    console.print(f"useful_rps: {result.get('useful_rps', 'none: no load held the bounds')}")
    console.print(f"result: {out / RESULT_FILE}", soft_wrap=True)
    if is_stopped:
        raise typer.Exit(STOPPED)


def _loads(concurrency: str, rate: str) -> tuple[OfferedLoad, ...]:
    from antiphon.bench.sweep import OfferedLoad

    if bool(concurrency) == bool(rate):
        raise ConfigError("give loads by --concurrency 1,2,4 or by --rate 0.5,1,2")
    try:
        numbers = [int(value) for value in split(concurrency)] or [float(value) for value in split(rate)]
    except ValueError:
        kind = "whole numbers" if concurrency else "numbers"
        raise ConfigError(f"loads are {kind} with commas between them, not {concurrency or rate!r}") from None
    wrong = [one for one in numbers if not 0 < one < math.inf]
    if wrong:
        raise ConfigError(f"a load is {wrong[0]:g}; it must be above 0")
    return tuple(
        OfferedLoad(concurrency=int(one)) if concurrency else OfferedLoad(rate_per_s=float(one))
        for one in numbers
    )
