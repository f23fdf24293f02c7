"""Fixtures that every room's tests share, and how branches are counted.

`pytest --coverage` counts those of the deciding half, while modules are imported and its own tests run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

# The models are tiny: a second thread only waits for the first, and for whoever else uses the machine.
torch.set_num_threads(1)

# A busy machine makes an example slow, and no test wrong.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

HERE = Path(__file__).parent


class Branches:
    """Counts while it is told to. A plugin of pytest, in every process of tests."""

    def __init__(self) -> None:
        from coverage import Coverage

        project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
        rooms = [Path(path).name for path in project["tool"]["pyright"]["strict"]]
        self._own = [HERE / room for room in rooms]
        self._coverage = Coverage(data_suffix=True, source_pkgs=[f"antiphon.{room}" for room in rooms])
        self._coverage.start()

    def pytest_collection_finish(self) -> None:
        self._coverage.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not any(item.path.is_relative_to(room) for room in self._own):
            return (yield)
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()

    def pytest_sessionfinish(self) -> None:
        self._coverage.save()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--coverage", action="store_true", help="Count branches of the deciding half.")


def pytest_configure(config: pytest.Config) -> None:
    hands_out = bool(config.getoption("numprocesses", None))  # to processes that run the tests
    if config.getoption("--coverage") and not hands_out:
        config.pluginmanager.register(Branches())


def make_demo(path: Path, **how: Any) -> Path:
    """What is imported before branches are counted is not seen, so this is imported late."""
    from antiphon.checkpoint import demo

    return demo.make_demo(path, **how)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny demo checkpoint, made once per test session."""
    return make_demo(tmp_path_factory.mktemp("checkpoint") / "tiny", size="tiny", seed=0)


@pytest.fixture(scope="session")
def cascade_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny cascade, made once per test session."""
    return make_demo(tmp_path_factory.mktemp("cascade") / "tiny", model="cascade", seed=1)
