"""Processes that tests fork in the place of `python -m antiphon.runtime`: children as any, and none stays."""

from __future__ import annotations

import os
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
        (below,) = forked.copies(process.pid)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    until(lambda: not is_running(below))


def test_one_that_is_started_in_a_session_of_its_own_has_it_at_once() -> None:
    command = [*forked.PYTHON, "antiphon", "serve", "--nonesuch"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    with process:
        assert os.getsid(process.pid) == process.pid
        assert process.pid in forked.children(os.getpid())
        assert process.stderr is not None
        said = process.stderr.read()
    assert b"No such option" in said
    assert process.returncode == 2


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
