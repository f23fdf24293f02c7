"""Processes that tests fork in the place of `python -m antiphon.runtime`: children as any, and none stays."""

from __future__ import annotations

import signal
import subprocess
import time
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
        (below,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert Path(f"/proc/{below}/comm").read_text() == f"{forked.NAME}\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while is_running(below):
        assert time.monotonic() < deadline, "it is still there"


def is_running(pid: str) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
