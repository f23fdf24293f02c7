"""Random weights in the place of a checkpoint's own: sane values, one seed a tensor, nothing on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon.checkpoint.dummy import DummyCheckpoint
from antiphon.checkpoint.files import Checkpoint, check_memory
from antiphon.core.errors import CheckpointError

SHAPES = {
    "layers.0.input_layernorm.weight": (64,),
    "layers.0.mlp.gate.weight": (8, 64),
    "conv.weight": (32, 64, 7),
    "conv.bias": (32,),
}


def dummy(seed: int = 0, dtype: torch.dtype = torch.float32) -> DummyCheckpoint:
    directory = Checkpoint(Path("nowhere"), {}, {}, {})
    return DummyCheckpoint.of(directory, SHAPES, (torch.device("cpu"), dtype), seed)


def test_norms_are_about_one_and_products_keep_their_size() -> None:
    tensors = dict(dummy().read())
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == SHAPES
    assert tensors["layers.0.input_layernorm.weight"].mean() == pytest.approx(1, abs=0.02)
    assert tensors["conv.bias"].abs().max() < 0.1
    assert tensors["layers.0.mlp.gate.weight"].std() == pytest.approx(1 / 8, rel=0.1)
    assert tensors["conv.weight"].std() == pytest.approx((64 * 7) ** -0.5, rel=0.1)


def test_a_tensor_is_the_same_whoever_reads_it() -> None:
    every = dict(dummy().read())
    (alone,) = dummy().read(["conv.weight"])
    assert torch.equal(alone[1], every["conv.weight"])
    assert not torch.equal(dict(dummy(seed=1).read())["conv.weight"], every["conv.weight"])
    assert not torch.equal(every["conv.weight"][0, :8, 0], every["layers.0.mlp.gate.weight"][0, :8])


def test_progress_is_in_bytes_of_the_dtype() -> None:
    seen: list[tuple[int, int]] = []
    for _, tensor in dummy(dtype=torch.bfloat16).read("conv", progress=lambda *both: seen.append(both)):
        assert tensor.dtype is torch.bfloat16
    weight, bias = 2 * 32 * 64 * 7, 2 * 32
    assert seen == [(weight, weight + bias), (weight + bias, weight + bias)]


def test_memory_is_checked_by_the_sizes_in_the_config() -> None:
    needed = 4 * sum(torch.Size(shape).numel() for shape in SHAPES.values())
    check_memory(dummy(), torch.float32, needed)
    with pytest.raises(CheckpointError, match="for its weights"):
        check_memory(dummy(), torch.float32, needed - 1)
