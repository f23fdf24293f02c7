"""The full-size benchmark on a tiny model: every line of it runs, so that no GPU's time is spent on that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_decode.py"
WITH_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.slow),
        pytest.param("cuda", marks=[pytest.mark.gpu, WITH_GPU]),
    ],
)
def test_dry_run(device: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(SCRIPT), "--dry-run", "--device", device, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert {line["sessions"] for line in result["sessions"]} == {1, 3}
    peer = result["peer"]
    assert [(line["sessions"], line["audio_s"] > 0) for line in peer] == [(1, True), (3, True)]
    lines = result["steps"]
    assert not [line for line in (*lines, *result["sessions"]) if "error" in line]
    assert {line["stage"] for line in lines} == {"thinker", "talker"}
    assert {line["graphs"] for line in lines} == {False, True}
    assert all(line["ms"] > 0 and line["floor_ms"] > 0 for line in lines)
