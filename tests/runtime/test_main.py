"""How the processes start: the garbage collector is off while they import, and on when they run."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from antiphon import __main__ as antiphon_program
from antiphon.runtime.__main__ import main

PRETENDED = """
import gc, sys
from types import SimpleNamespace

class Program(SimpleNamespace):
    def __getattr__(self, name):
        if name != "main":
            raise AttributeError(name)
        print("imported with the collector", gc.isenabled())
        return self.run

    def run(self, argument, *more):
        print("runs", argument, "with the collector", gc.isenabled(), "and", gc.get_freeze_count() > 0)
        return 7

sys.modules["antiphon.runtime.worker"] = Program(GRACE_S=0.0)
sys.modules["antiphon.runtime.stage_worker"] = Program()
from antiphon.runtime.__main__ import main
sys.exit(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(("program", "argument"), [("worker", "folder"), ("stage_worker", "3")])
def test_a_process_runs_with_the_collector_on_and_what_is_imported_frozen(
    program: str, argument: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PRETENDED, program, argument],
        stdin=subprocess.PIPE,  # an engine's process ends with it
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    assert process.returncode == 7
    assert lines[-1] == f"runs {argument} with the collector True and True"
    assert set(lines[:-1]) == {"imported with the collector False"}


def test_a_program_that_is_none_is_told_in_words() -> None:
    with pytest.raises(ValueError, match="no program 'stage-worker': there are worker and stage_worker"):
        main("stage-worker", "3")
    assert gc.isenabled()


def test_an_import_that_fails_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "antiphon.cli", None)
    with pytest.raises(ImportError, match=r"antiphon\.cli"):
        antiphon_program.main()
    assert gc.isenabled()
