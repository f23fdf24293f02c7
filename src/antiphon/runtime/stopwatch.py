"""Seconds that work takes, without those in which other processes had the cores.

Linux says how long each thread stood in the queue of the scheduler (/proc/PID/task/TID/schedstat). What the
thread that waited longest stood there is taken off; elsewhere nothing is.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from pathlib import Path

LEAST_SHARE = 0.1
"""This share of the time stays: a thread's wait is counted when it ends, and may have begun before."""


class Stopwatch:
    """Knows the threads that there are when it is made; those that come later count as never waiting."""

    def __init__(self) -> None:
        self._files = _open_all()
        for file in self._files:
            weakref.finalize(self, os.close, file)
        self._queued = [0] * len(self._files)
        self._began = 0.0

    def start(self) -> None:
        self._queued = self._read()
        self._began = time.perf_counter()

    def stop(self) -> float:
        """Seconds since `start`."""
        seconds = time.perf_counter() - self._began
        waited = [after - before for before, after in zip(self._queued, self._read(), strict=True)]
        return max(seconds - max(waited, default=0) / 1e9, LEAST_SHARE * seconds)

    def _read(self) -> list[int]:
        """Nanoseconds in the queue, per thread; none of a thread that has ended."""
        return [_queued_ns(file) for file in self._files]


def _open_all() -> list[int]:
    files: list[int] = []
    with contextlib.suppress(OSError):
        for task in sorted(Path("/proc/self/task").iterdir()):
            with contextlib.suppress(OSError):
                files.append(os.open(task / "schedstat", os.O_RDONLY))
    return files


def _queued_ns(file: int) -> int:
    try:
        return int(os.pread(file, 128, 0).split()[1])
    except (OSError, IndexError):
        return 0
