"""Triton's kernels: what they compute, in Triton's interpreter, and that they compile, without a GPU.

There is a Triton for Linux only; elsewhere these tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
SHARED_BYTES = 160 * 1024
"""What a program may have of shared memory on an sm_80; later ones have more."""

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def run(*command: str, **env: str) -> str:
    """A Python process of its own; the room's tests are its modules. Fails with what it said."""
    paths = [str(HERE.parent), *filter(None, sys.path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_DEFAULT_FP_FUSION": "1", **env}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_equals_the_reference_in_the_interpreter() -> None:
    said = run("-m", "pytest", str(HERE / "triton_cases.py"), "-p", "no:cacheprovider", TRITON_INTERPRET="1")
    assert "passed" in said
    assert "skipped" not in said


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_compiles_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    said = run(str(HERE / "triton_compiled.py"), TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    taken = json.loads(said)
    assert len(taken) == 17
    assert max(taken.values()) <= SHARED_BYTES


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_equals_the_reference_on_a_gpu() -> None:
    said = run("-m", "pytest", str(HERE / "triton_cases.py"), "-p", "no:cacheprovider", TRITON_INTERPRET="0")
    assert "passed" in said
