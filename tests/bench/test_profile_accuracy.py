"""The benchmark of the latency models on a tiny model: people are served, and the run ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "profile_accuracy.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_stage_is_measured_and_serves(tiny_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(SCRIPT), str(tiny_checkpoint), "--rounds", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert set(result["served"]) == set(result["stages"])
    assert all(stage["steps"] > 0 for stage in result["served"].values())
