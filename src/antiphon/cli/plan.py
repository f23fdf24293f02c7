"""`antiphon plan`: how many conversations a machine carries, and what breaks first."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antiphon.assembly.preset import preset_label
from antiphon.cli.bench import RUN_FAILED, SLO_MISSED, STOPPED, AsJson
from antiphon.cli.groups import SpeechBounds, grouped
from antiphon.cli.machine import MachineOptions, ModelName, PresetName, announce, machine_of
from antiphon.cli.options import TtftMost, TurnEnd, WorkloadName, finite
from antiphon.cli.shared import console, terminated_as_interrupted
from antiphon.cli.simulated import Seed, first_line
from antiphon.core.counted import counted
from antiphon.core.errors import AntiphonError

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.metrics.log import Event
    from antiphon.metrics.slo import Slo
    from antiphon.sim.plan import Tried

PAGE_COLUMNS = 160
TELL_EVERY_S = 10.0
"""Where nobody watches a terminal."""
COLUMNS = ("ttfp_s.p90", "turn_latency_s.p90", "ttft_s.p90", "continuity", "completed_rps")


@dataclass(frozen=True)
class SearchOptions:
    """Between which numbers of conversations is searched, and how long each is tried."""

    duration: Annotated[float, typer.Option(min=1, callback=finite, help="Virtual seconds of each run.")] = (
        90.0
    )
    first: Annotated[int, typer.Option(min=1, help="Conversations to begin the search with.")] = 8
    most: Annotated[int, typer.Option(min=1, help="Conversations to end it with.")] = 4096


@dataclass(frozen=True)
class PlanBounds(SpeechBounds):
    """What each number of conversations is held to."""

    slo_ttft_p90: Annotated[float, TtftMost] = 2.0

    @property
    def slo(self) -> Slo:
        return replace(super().slo, ttft_s=self.slo_ttft_p90)


@grouped
def plan(
    workload: WorkloadName = "voice-chat",
    preset: PresetName = "",
    model: ModelName = "",
    machine: MachineOptions = MachineOptions(),
    search: SearchOptions = SearchOptions(),
    turn_detection: TurnEnd = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    bounds: PlanBounds = PlanBounds(),
) -> None:
    """How many conversations at a time keep within the bounds, and what breaks first beyond that.

    Exit status: 0, 1 if not even one does, 2 if a run failed, 130 if stopped.
    """
    from antiphon.bench.experiment import Changes, workload_of
    from antiphon.sim.plan import run_with

    slo = bounds.slo
    try:
        found = machine_of(machine, preset, model)
        announce(found)
        made = found.setup(workload_of(workload, Changes(turn_detection=turn_detection)), seed)
        started = first_line(made, preset_label(found.engine.node.preset), found.title)
        with Trying(search.duration) as trying:
            tried, is_complete = searched(
                lambda number: run_with(made, number, search.duration, slo, started, trying.saw),
                trying,
                search.first,
                search.most,
            )
    except AntiphonError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(RUN_FAILED) from None
    result = plan_result(tried, is_complete)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins({"run": started, **result}), indent=2))
    else:
        if tried:
            Console(width=PAGE_COLUMNS).print(plan_table(f"{workload} on {found.title}", tried))
        for sentence in result["says"]:
            typer.echo(sentence)
    status = 0 if result["conversations"] else SLO_MISSED
    raise typer.Exit(status if is_complete else STOPPED)


def searched(
    attempt: Callable[[int], Tried], trying: Trying, first: int, most: int
) -> tuple[list[Tried], bool]:
    """All numbers that were tried to their end, and whether the search was over before it was stopped."""
    from antiphon.sim.plan import search

    def begin(number: int) -> Tried:
        trying.begin(number)
        return attempt(number)

    tried: list[Tried] = []
    try:
        with terminated_as_interrupted():
            for one in search(begin, first, most):
                tried.append(one)
                trying.end(tried)
    except KeyboardInterrupt:
        return tried, False
    return tried, True


class Trying:
    """Says which number is tried, how far its run is, and about how long it all takes: a run takes as long as
    there are conversations in it."""

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._status = console.status("")
        self._number = 0
        self._began_s = self._told_s = 0.0
        self._one_s = 0.0
        """Of a conversation, in the last run."""

    def __enter__(self) -> Trying:
        if console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def begin(self, number: int) -> None:
        self._number = number
        self._began_s = self._told_s = time.monotonic()
        about = f", about {_rounded(number * self._one_s)}" if self._one_s else ""
        self._tell(f"trying {counted(number, 'conversation')}{about}")

    def saw(self, event: Event) -> None:
        from antiphon.metrics.log import ServerSampled

        if not isinstance(event, ServerSampled) or not event.t_s:
            return
        now = time.monotonic()
        if console.is_terminal or now - self._told_s >= TELL_EVERY_S:
            self._told_s = now
            left_s = (now - self._began_s) * (self._duration_s / event.t_s - 1)
            self._tell(
                f"trying {counted(self._number, 'conversation')}: {event.t_s:.0f} of "
                f"{self._duration_s:g} s are simulated, about {_rounded(left_s)} to go"
            )

    def end(self, tried: list[Tried]) -> None:
        """The last of these is done."""
        from antiphon.sim.plan import num_left

        taken_s, left = time.monotonic() - self._began_s, num_left(tried)
        self._one_s = taken_s / self._number
        line = f"{_line(tried[-1])} ({_rounded(taken_s)})"
        if left:
            about_s = left * self._one_s * max(one.conversations for one in tried if not one.holds)
            line += f"; at most {left} more, {_rounded(about_s)} or less"
        console.print(line, soft_wrap=True)

    def _tell(self, words: str) -> None:
        if console.is_terminal:
            self._status.update(words)
        else:
            console.print(words, soft_wrap=True)


def plan_result(tried: list[Tried], is_complete: bool = True) -> dict[str, Any]:
    """JSON-ready: the answer, in a number and in words, and every try."""
    holding = [one.conversations for one in tried if one.holds]
    answer = max(holding, default=0)
    beyond = min((one for one in tried if not one.holds), key=lambda one: one.conversations, default=None)
    if is_complete:
        says = [f"{_holding(answer, 'at a time')} the bounds."]
    else:
        says = [f"Stopped before the search was over: {_holding(answer, 'or more')} the bounds."]
    if beyond is not None:
        says += [f"At {beyond.conversations}: {'; '.join(beyond.missed)}.", f"Shortest was {beyond.short}."]
    elif is_complete:
        says.append("No bound was missed by any number that was tried; raise --most.")
    return {"conversations": answer, "is_complete": is_complete, "says": says, "tried": tried}


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
    number = one.conversations
    outcome = "; ".join(one.missed)
    if one.holds:
        outcome = f"{'holds' if number == 1 else 'hold'} the bounds"
    return f"{counted(number, 'conversation')}: {outcome}"


def _holding(num: int, how: str) -> str:
    return f"{counted(num, 'conversation')} {how} {'holds' if num == 1 else 'hold'}"


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
