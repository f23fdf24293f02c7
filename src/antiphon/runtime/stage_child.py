"""A process of units as the engine's process sees it, one life after the other; and how a process ends with
its parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.runtime.messages import LoadProgress
from antiphon.runtime.queued_link import QueuedLink

REAP_WAIT_S = 1.0
DYING_S = 0.2
"""From the end of its link to the end of a process."""
MOST_PATIENCE = 10
"""Times the limit of silence, for a process that uses its cores meanwhile: a long step, a kernel compiled."""


FIRST_WAIT_S = 0.2
MOST_DEATHS = 5
WELL_S = 60.0


class Restarts:
    """Says when a process that has died is started again. Each death doubles the wait, and MOST_DEATHS of
    them end it; a life that was ready for WELL_S makes up for all before it. How long it takes to start is
    no part of that.
    """

    def __init__(self) -> None:
        self._num_deaths = 0
        self._ready_at: float | None = None

    def ready(self, now: float) -> None:
        self._ready_at = now

    def wait_s(self, now: float) -> float | None:
        """It has died: seconds until it is started again, or None if it stays away."""
        if self._ready_at is not None and now - self._ready_at >= WELL_S:
            self._num_deaths = 0
        self._ready_at = None
        self._num_deaths += 1
        return None if self._num_deaths >= MOST_DEATHS else FIRST_WAIT_S * 2 ** (self._num_deaths - 1)


@dataclass(slots=True, eq=False)
class Child:
    """A process as the engine's sees it.

    why         why it is not there, in words; empty once it is
    deadline    until when it has to be ready, while it starts
    restart_at  when it is started, while it is down; None: not any more
    progress    what it loads, how much of it is there
    heard_at    when it last said anything
    asked_at    when it was asked whether it is there; None: it has answered
    used_s      CPU time that it had used then
    """

    name: str
    units: tuple[str, ...]
    restarts: Restarts = field(default_factory=Restarts)
    process: subprocess.Popen[bytes] | None = None
    offers: socket.socket | None = None
    link: QueuedLink | None = None
    why: str = "is starting"
    deadline: float = 0.0
    restart_at: float | None = None
    progress: LoadProgress | None = None
    heard_at: float = 0.0
    asked_at: float | None = None
    used_s: float = 0.0
    num_starts: int = 0
    words: str = ""

    @property
    def is_ready(self) -> bool:
        return not self.why

    def end(self, is_dying: bool = False) -> int | None:
        """Leave nothing of it. Returns its exit status, its own where it is dying by itself."""
        status = None
        if self.link is not None:
            self.link.close()
        if self.offers is not None:
            self.offers.close()
        if self.process is not None:
            assert self.process.stdin is not None
            if is_dying:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(DYING_S)
            self.process.kill()
            self.process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: killed once it isn't
                status = self.process.wait(REAP_WAIT_S)
        self.process = self.offers = self.link = None
        return status

    def asked(self, now: float) -> None:
        """It has to answer from now on."""
        assert self.process is not None
        self.asked_at, self.used_s = now, cpu_s(self.process.pid)

    def hangs(self, now: float, limit_s: float) -> bool:
        """Has it left the question unanswered for too long?"""
        if self.asked_at is None or self.process is None:
            return False
        waited_s = now - self.asked_at
        if waited_s <= limit_s:
            return False
        works = cpu_s(self.process.pid) - self.used_s > waited_s / 2
        return not works or waited_s > MOST_PATIENCE * limit_s


def cpu_s(pid: int) -> float:
    """CPU time that a process has used, with all its threads and the processes below it, say a compiler; 0
    where the system doesn't tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        below = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return 0.0
    own_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own_s + sum(cpu_s(int(child)) for children in below for child in children)


def outlook(child: Child) -> str:
    if child.process is not None or child.restart_at is not None:
        return "; it is starting again"
    return (
        f"; it has died {MOST_DEATHS} times, each time before it was up for {WELL_S:g} s, and stays away: "
        "restart the server"
    )


def status_words(status: int | None) -> str:
    if status is None or status >= 0:
        return f"has ended (exit status {status}; its log says why)"
    return f"was killed ({signal.Signals(-status).name})"


def end_with_parent(grace_s: float = 0.0) -> threading.Event:
    """End this process `grace_s` after its parent, unless it has ended by then. In a thread of its own, so
    that no load and no step is too long for it. Returns what is set once the parent is gone."""
    gone = threading.Event()
    threading.Thread(target=_wait, args=(gone, grace_s), daemon=True).start()
    return gone


def _wait(gone: threading.Event, grace_s: float) -> None:
    while os.read(0, 1):
        pass
    gone.set()
    time.sleep(grace_s)
    os._exit(1)
