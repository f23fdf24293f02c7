from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon.nn.fresh import fresh

MIB = 2**20


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MIB


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_memory_is_taken_as_it_is_written(dtype: torch.dtype) -> None:
    before = resident_mib()
    made = fresh((512 * MIB // dtype.itemsize // 8, 8), dtype, torch.device("cpu"))
    assert resident_mib() - before < 128
    assert made.shape[1] == 8
    assert made.dtype is dtype
    made[:: len(made) // 4] = 1
    assert int(made[:: len(made) // 4].sum()) == 8 * len(made[:: len(made) // 4])
    assert int(made[1].sum()) == 0


def test_nothing_is_nothing() -> None:
    assert fresh((0, 4), torch.float32, torch.device("cpu")).shape == (0, 4)
