"""Comparisons on virtual time: a target is a simulated machine, which needs no server and no warming up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from antiphon.bench.compared import figures_of
from antiphon.bench.progress import RunProgress
from antiphon.bench.servers import Ready, Target
from antiphon.metrics.log import Event, RunStarted, ServerSampled
from antiphon.sim.run import Outcome, Setup, simulate


class Simulators:
    """Implements `compare.Reachable`."""

    @contextlib.asynccontextmanager
    async def ready(self, target: Target) -> AsyncIterator[Ready]:
        yield Ready("", is_fresh=False)

    def why_ended(self, target: Target) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class PlaySimulated:
    """Implements `compare.Runner`. Nothing in a run waits, so it is Ctrl-C itself that ends it.

    made  of a target and a seed: what is simulated, and the first line of its log
    """

    made: Callable[[Target, int], tuple[Setup, RunStarted]]
    console: Console

    async def __call__(self, target: Target, seed: int, log: Path) -> dict[str, float]:
        return self._play(target, seed, log)

    def _play(self, target: Target, seed: int, log: Path) -> dict[str, float]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log.write_bytes(played(*self.made(target, seed), self.console).log)
        return figures_of(log)


def played(setup: Setup, started: RunStarted, console: Console) -> Outcome:
    """Simulate, with progress by the virtual clock."""
    with RunProgress(console) as progress:

        def saw(event: Event) -> None:
            progress.saw(event)
            if isinstance(event, ServerSampled):
                progress.show(event.t_s)

        outcome = simulate(setup, started, saw)
    for incident in outcome.incidents:
        console.print(f"[bold yellow]warning:[/] {escape(str(incident))}", soft_wrap=True)
    for one in (*outcome.overruled, *outcome.observed):
        console.print(
            f"[bold yellow]{escape(setup.engine.node.preset)}:[/] {escape(str(one))}", soft_wrap=True
        )
    return outcome
