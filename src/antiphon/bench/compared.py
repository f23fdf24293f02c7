"""Where comparisons meet measured runs: one seed of a workload, played to one server, read as figures."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from antiphon.bench import provenance
from antiphon.bench.experiment import measure
from antiphon.bench.logfile import LogWriter, read
from antiphon.bench.progress import RunProgress
from antiphon.bench.servers import Target
from antiphon.bench.target import DrivenServer, Pace, model_of, root
from antiphon.metrics.recorder import fold
from antiphon.metrics.summary import figures
from antiphon.workload.spec import Workload


@dataclass(slots=True)
class PlayWorkload:
    """Implements `compare.Runner`. A run that is interrupted by a signal cancels the comparison."""

    workload: Workload
    pace: Pace
    console: Console
    api_key: str = ""
    acks: Literal["auto", "always", "never"] = "auto"
    _models: dict[str, str] = field(default_factory=dict)

    async def __call__(self, target: Target, seed: int, log: Path) -> dict[str, float]:
        assert target.url is not None
        if target.name not in self._models:
            self._models[target.name] = await model_of(target.url, self.api_key)
        driven = DrivenServer(
            root(target.url), self._models[target.name], self.api_key, target.name, self.acks
        )
        try:
            with (
                RunProgress(self.console) as progress,
                LogWriter(log, watch=progress.saw, force=True) as writer,
            ):
                reason = await measure(self.workload, seed, driven, self.pace, writer, progress)
        finally:
            stop_on_signals()
        if reason == "interrupted":
            raise asyncio.CancelledError
        return figures_of(log)


def figures_of(log: Path) -> dict[str, float]:
    """All figures of a log. Raises ConfigError for what is none."""
    return figures(fold(read(log)))


def stop_on_signals() -> None:
    """SIGINT and SIGTERM cancel the task that calls this, so that every server is stopped. To be called again
    after each run, which has handlers of its own."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)


def about() -> dict[str, Any]:
    """Where a result comes from."""
    return {
        "command": provenance.command(),
        "commit": provenance.commit(),
        "machine": provenance.machine(),
        "version": provenance.package_version(),
        "unix_s": time.time(),
    }
