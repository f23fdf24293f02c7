"""Kernels compiled for CPUs with fewer vector instructions than this one has: the same results.

Numba takes NUMBA_CPU_NAME and NUMBA_CPU_FEATURES for the CPU, and so do we (`nn.cpu.kernels.kind_of_cpu`). A
process that is told so computes `results`, as this file's own program, and leaves them in a file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")

from antiphon.nn.cpu.compiler import has_feature, lanes_of_registers
from antiphon.nn.cpu.kernels import kind_of_cpu
from antiphon.nn.moe import pack_experts, run_experts
from antiphon.nn.products import linear, pack
from nn.test_cpu_experts import situation
from nn.test_cpu_steps import CONFIGS, Situation, decoder

CPUS = {8: ("haswell", "+avx,+avx2,+fma"), 0: ("generic", "")}
"""By fp32 numbers in a register of theirs: the CPU's name and features."""

SAME_BITS = "product", "experts"
"""Each sum is one chain, whatever the registers."""


def results() -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(0)
    weight, x = torch.randn(512, 264, generator=noise), torch.randn(37, 264, generator=noise)
    found = {
        f"product {rows} {name}": linear(
            x[:rows], pack(weight if name == "fp32" else weight.bfloat16().float())
        )
        for rows in (1, 5, 9, 37)
        for name in ("fp32", "bf16")
    }
    for tokens in (1, 40):
        rows, experts, weights, *both = situation(tokens)
        found[f"experts {tokens}"] = run_experts(rows, experts, weights, *pack_experts(*both))
    for name in ("two_queries_a_key", "three_large_queries_a_key"):
        steps = Situation(decoder(CONFIGS[name]), [(40, 1), (0, 37), (8, 1), (5, 6)], 16)
        found[f"step {name}"] = steps.run([0, 1, 2, 3])[0]
    return found


@pytest.fixture(scope="module")
def native() -> dict[str, Tensor]:
    return results()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lanes", [8, pytest.param(0, marks=pytest.mark.slow)])
def test_fewer_vectors_give_the_same_results(lanes: int, native: dict[str, Tensor], tmp_path: Path) -> None:
    if lanes >= lanes_of_registers():
        pytest.skip("this CPU has no more than that itself")
    name, features = CPUS[lanes]
    told = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "PYTHONPATH": os.pathsep.join(sys.path)}
    place = tmp_path / "results.pt"
    subprocess.run([sys.executable, __file__, str(place)], env=os.environ | told, check=True, timeout=500)
    found = torch.load(place)
    assert int(found.pop("lanes")) == lanes
    for what, expected in native.items():
        if lanes and what.startswith(SAME_BITS):
            assert torch.equal(found[what], expected), what
        torch.testing.assert_close(
            found[what], expected, rtol=1e-4, atol=5e-5, msg=lambda m, w=what: f"{w}: {m}"
        )


def test_the_cpu_is_what_numba_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import config

    has_feature.cache_clear()
    for lanes, (name, features) in CPUS.items():
        monkeypatch.setattr(config, "CPU_NAME", name)
        monkeypatch.setattr(config, "CPU_FEATURES", features)
        has_feature.cache_clear()
        assert kind_of_cpu() == (name, features)
        assert lanes_of_registers() == lanes
    monkeypatch.undo()
    has_feature.cache_clear()
    assert kind_of_cpu()[0]


if __name__ == "__main__":
    with torch.inference_mode():
        torch.save(results() | {"lanes": torch.tensor(lanes_of_registers())}, sys.argv[1])
