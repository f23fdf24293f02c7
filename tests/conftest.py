"""Fixtures that every room's tests share, and how branches are counted.

`pytest --coverage` counts which lines and branches of the deciding half its own tests take, and fails below
`ENOUGH`. Those tests run first. A line that was hit `OFTEN` is no longer watched, so counting costs little.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import forked

# The models are tiny: a second thread only waits for the first, and for whoever else uses the machine.
torch.set_num_threads(1)

# A busy machine makes an example slow, and no test wrong. What CI says of a change depends on that alone:
# examples are the same each time there, and new ones are tried everywhere else.
settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("house")

HERE = Path(__file__).parent
ENOUGH = 95.0
"""Percent of lines and branches."""
OFTEN = 1000
"""Times. To stop watching what was seen takes as long as to count a million hits."""
NO_CODE = [r"if TYPE_CHECKING:", r": \.\.\.$", r"^ +\.\.\.$"]


class Branches:
    """A plugin of pytest: counts in a process that runs tests, adds up in the one that hands them out."""

    def __init__(self, config: pytest.Config) -> None:
        project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
        self._rooms = [HERE.parent / room for room in project["tool"]["pyright"]["strict"]]
        self._own = [HERE / room.name for room in self._rooms]
        self._counter: Any = None
        self._found: dict[str, Any] | None = None
        self._is_worker = hasattr(config, "workerinput")
        if self._is_worker or not config.getoption("numprocesses", None):
            self._watch_imports()

    def _watch_imports(self) -> None:
        from slipcover import FileMatcher, ImportManager, Slipcover

        self._counter = Slipcover(
            branch=True, source=self._rooms, exclude_lines=NO_CODE, d_miss_threshold=OFTEN
        )
        ImportManager(self._counter, FileMatcher(sources=self._rooms)).__enter__()

    def _is_own(self, item: pytest.Item) -> bool:
        return any(item.path.is_relative_to(room) for room in self._own)

    def _add(self, found: dict[str, Any]) -> None:
        from slipcover import merge_coverage

        self._found = merge_coverage(self._found, found) if self._found else found

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: not self._is_own(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self._found is None and not self._is_own(item):
            self._add(self._counter.get_coverage())
            self._stop_looking_into_frames()
        return (yield)

    def _stop_looking_into_frames(self) -> None:
        """To stop watching a line SlipCover looks into every running frame. A frame that was looked into can
        keep what its function held until garbage is collected, and other tests say what must be gone when."""
        self._counter.deinstrument_seen = lambda: None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """One that crashed has nothing to say."""
        if found := getattr(node, "workeroutput", {}).get("branches"):
            self._add(json.loads(found))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._counter is not None and self._found is None:
            self._add(self._counter.get_coverage())
        if self._is_worker:
            session.config.workeroutput["branches"] = json.dumps(self._found)  # type: ignore[attr-defined]
        elif self._found is not None and self._found["summary"]["percent_covered"] < ENOUGH:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        from slipcover import print_coverage

        if self._found is None:
            return
        percent = self._found["summary"]["percent_covered"]
        if percent < ENOUGH:
            print_coverage(self._found, outfile=terminalreporter, skip_covered=True)
        terminalreporter.write_line(
            f"{percent:.1f} % of the deciding half by its own tests; {ENOUGH} % is enough"
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--coverage", action="store_true", help="Count branches of the deciding half.")


LATER = "test_cli_profile.py"
"""Until another worker has compiled what it needs as well."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole programs first: with a long file at the end, one worker would wait for the other."""
    items.sort(key=lambda item: (item.path.parent != HERE, item.path.name == LATER))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--coverage"):
        config.pluginmanager.register(Branches(config))


def make_demo(path: Path, **how: Any) -> Path:
    """What is imported before branches are counted is not seen, so this is imported late."""
    from antiphon.checkpoint import demo

    return demo.make_demo(path, **how)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny demo checkpoint, made once per test session."""
    return make_demo(tmp_path_factory.mktemp("checkpoint") / "tiny", size="tiny", seed=0)


@pytest.fixture(scope="session")
def writer_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that writes only, made once per test session. It is loaded in half the time."""
    return make_demo(tmp_path_factory.mktemp("writer") / "tiny", model="llama", size="tiny")


@pytest.fixture(scope="session")
def cascade_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny cascade, made once per test session."""
    return make_demo(tmp_path_factory.mktemp("cascade") / "tiny", model="cascade", seed=1)


@pytest.fixture(scope="session")
def forks() -> Iterator[bytes]:
    """Where a process answers that engines' processes are forked from; started once per test session."""
    with forked.served() as address:
        yield address


@pytest.fixture(scope="module")
def forked_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Engines' processes that the module's tests start in this one are forked, and import nothing. On other
    systems than Linux they start as in production."""
    if sys.platform != "linux":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forked.Forked, "forks", request.getfixturevalue("forks"))
        patch.setattr(subprocess, "Popen", forked.Forked)
        yield
