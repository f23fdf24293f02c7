"""Processes that tests fork in the place of `python -m antiphon.runtime`: children as any, and none stays."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import forked

pytestmark = pytest.mark.usefixtures("forked_processes")


def test_what_it_says_and_its_status_are_those_of_a_child() -> None:
    command = [*forked.START, "none", "x"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = process.stderr.read()
    assert isinstance(process, forked.Forked)
    assert b"ValueError: no program 'none'" in said
    assert process.returncode == 1


def test_what_it_would_fork_from_ends_with_it(tmp_path: Path) -> None:
    """Killed, it tells nobody."""
    process = subprocess.Popen([*forked.START, "worker", str(tmp_path)], stdin=subprocess.PIPE)
    with process:
        until(lambda: forks_below(process.pid) != [])
        (below,) = forks_below(process.pid)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    until(lambda: not is_running(below))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline


def forks_below(pid: int) -> list[str]:
    """Children that go by the name of a process to fork from."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for one in children if Path(f"/proc/{one}/comm").read_text() == f"{forked.NAME}\n"]


def is_running(pid: str) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
