"""A server that a benchmark starts, and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon.bench.servers import READY

START_S, STOP_S, POLL_S = 900.0, 60.0, 0.2


@dataclass(frozen=True, slots=True)
class Served:
    """url: without a slash at its end; pid: of the server's process."""

    url: str
    pid: int


@contextlib.contextmanager
def served(
    log: Path, *words: str, before: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """`antiphon serve WORDS` on a free port, once it is ready; in the end it is gone with what it started.
    What it says goes to `log`; `before` are words before the command. Raises RuntimeError if it is not ready
    within `START_S`."""
    command = (*before, sys.executable, "-m", "antiphon", "serve", *words, "--port", "0")
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, start_new_session=True, env={**os.environ, **(environment or {})}
        )
    try:
        yield Served(_address(process, log), process.pid)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + START_S
    while not (ready := READY.search(log.read_text(errors="replace"))):
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the server is not ready: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(POLL_S)
    return ready[1]
