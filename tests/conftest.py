"""Fixtures that every room's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon.checkpoint.demo import make_demo

# The models are tiny: a second thread only waits for the first, and for whoever else uses the machine.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny demo checkpoint, made once per test session."""
    return make_demo(tmp_path_factory.mktemp("checkpoint") / "tiny", size="tiny", seed=0)


@pytest.fixture(scope="session")
def cascade_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny cascade, made once per test session."""
    return make_demo(tmp_path_factory.mktemp("cascade") / "tiny", model="cascade", seed=1)
