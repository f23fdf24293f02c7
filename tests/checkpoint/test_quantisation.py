"""Quantised safetensors: what is read, and what others are told."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphon.checkpoint.demo import make_demo
from antiphon.checkpoint.files import Checkpoint, check_memory, open_checkpoint
from antiphon.checkpoint.quantisation import in_blocks
from antiphon.core.errors import CheckpointError
from antiphon.engine.load import takes_media

INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
NAME = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return make_demo(tmp_path / "qwen3", model="qwen3", size="tiny")


def quantised_by(copy: Path, **told: Any) -> None:
    config = json.loads((copy / "config.json").read_text()) | {"quantization_config": told}
    (copy / "config.json").write_text(json.dumps(config))


def num_parameters(found: Checkpoint) -> int:
    return sum(info.num_elements for info in found.tensors.values())


def refusal(copy: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(str(copy), takes_media=takes_media)
    return str(caught.value)


def groups(**changes: Any) -> dict[str, Any]:
    return {"group_0": {"weights": INT8 | changes}}


@pytest.mark.parametrize(
    "told",
    [
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "fp8"},
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": groups(num_bits=4),
        },
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": groups(type="float"),
        },
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": groups(symmetric=False),
        },
        {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {}},
        {"quant_method": None},
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": groups(actorder="group"),
        },
        {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"a": 1}},
    ],
)
def test_other_kinds_are_told_what_is_read(copy: Path, told: dict[str, Any]) -> None:
    quantised_by(copy, **told)
    said = refusal(copy)
    for told in ("config.json", "int8 weights with `weight_scale`", "Q8_0"):
        assert told in said


def test_only_text_models(omni: Path) -> None:
    quantised_by(omni, quant_method="compressed-tensors", format="int-quantized", config_groups=groups())
    assert "text models alone" in refusal(omni)


@pytest.fixture
def omni(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_checkpoint, tmp_path / "omni")


def with_int8(copy: Path, **beside: torch.Tensor) -> torch.Tensor:
    tensors = load_file(copy / "model.safetensors")
    tensors[NAME] = torch.randint(-128, 128, tensors[NAME].shape, dtype=torch.int8)
    tensors |= {NAME + end: tensor for end, tensor in beside.items()}
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return tensors[NAME]


def test_scales_may_lie_in_another_shard(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    quants, scale = torch.randint(-128, 128, tensors[NAME].shape, dtype=torch.int8), torch.rand(64, 1).half()
    (copy / "model.safetensors").unlink()
    save_file(tensors | {NAME: quants}, copy / "a.safetensors")
    save_file({NAME + "_scale": scale}, copy / "b.safetensors")
    weight_map = dict.fromkeys(tensors, "a.safetensors") | {NAME + "_scale": "b.safetensors"}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    ((_, found),) = open_checkpoint(str(copy), takes_media=takes_media).read({NAME})
    assert not isinstance(found, torch.Tensor)
    assert torch.equal(torch.from_numpy(found.rows(slice(None))), quants.float() * scale.float())


def test_int8_needs_scales_and_nothing_else(copy: Path) -> None:
    with_int8(copy)
    assert f"{NAME} is int8 without" in refusal(copy)
    with_int8(copy, _scale=torch.ones(64, 1), _g_idx=torch.ones(64, dtype=torch.int32))
    assert f"{NAME} is int8 beside {NAME}_g_idx" in refusal(copy)
    with_int8(copy, _scale=torch.ones(64, 1), _zero_point=torch.ones(64, 1))
    assert f"{NAME} is int8 beside {NAME}_zero_point" in refusal(copy)


def test_what_is_quantised_otherwise_is_refused_though_no_config_says_so(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    scaled = {NAME: tensors[NAME].bfloat16(), f"{NAME}_scale": torch.ones(64, 1)}
    save_file(tensors | scaled, copy / "model.safetensors", {"format": "pt"})
    assert f"{NAME} has scales, {NAME}_scale, and is not int8" in refusal(copy)
    save_file(
        tensors | {NAME: tensors[NAME].to(torch.float8_e4m3fn)}, copy / "model.safetensors", {"format": "pt"}
    )
    assert "holds weights in F8_E4M3" in refusal(copy)


def test_memory_of_what_is_kept_in_blocks_and_of_what_is_not(copy: Path) -> None:
    with_int8(copy, _scale=torch.ones(64, 1))
    found = open_checkpoint(str(copy), takes_media=takes_media)
    one = found.tensors[NAME]
    assert one.bytes_held(torch.float32, keeps_blocks=True) == one.num_elements * 3 // 2
    assert one.bytes_held(torch.float32, keeps_blocks=False) == one.num_elements * 4
    odd = replace(one, shape=(one.shape[0] + 1, one.shape[1]))
    assert odd.bytes_held(torch.float32, keeps_blocks=True) == odd.num_elements * 4
    assert found.bytes_held(torch.float32, keeps_blocks=True) < num_parameters(found) * 4


@pytest.mark.parametrize(
    ("shape", "scale", "says"),
    [
        ((4, 8), torch.ones(3, 1), "does not fit"),
        ((4, 8), torch.ones(4, 3), "does not fit"),
        ((4, 8), torch.ones(4, 1, 1), "does not fit"),
        ((4, 8), torch.ones(4, 0), "does not fit"),
        ((4, 8), torch.full((4, 1), torch.nan), "not finite"),
        ((32,), torch.ones(1), "only matrices"),
    ],
)
def test_scales_that_fit_nothing(shape: tuple[int, ...], scale: torch.Tensor, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        in_blocks("w", torch.ones(shape, dtype=torch.int8), scale)


@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.rand(4), torch.rand(4, 1), torch.rand(4, 2)])
def test_scales_of_all_shapes(scale: torch.Tensor) -> None:
    quants = torch.randint(-128, 128, (4, 8), dtype=torch.int8)
    wide = scale.reshape(-1, 1) if scale.dim() < 2 else scale.repeat_interleave(8 // scale.shape[1], 1)
    assert torch.equal(torch.from_numpy(in_blocks("w", quants, scale).rows(slice(None))), quants * wide)


def test_weights_that_stay_in_their_bits_need_no_room_for_more(copy: Path) -> None:
    with_int8(copy, _scale=torch.ones(64, 1))
    found = open_checkpoint(str(copy), takes_media=takes_media)
    quants, as_fp32 = found.tensors[NAME], 4 * num_parameters(found)
    kept = as_fp32 - 4 * quants.num_elements + quants.num_elements * 3 // 2
    check_memory(found, torch.float32, kept, keeps_blocks=True)
    check_memory(found, torch.float32, as_fp32)
    for keeps_blocks, free in ((True, kept - 1), (False, as_fp32 - 1)):
        with pytest.raises(CheckpointError, match="GiB"):
            check_memory(found, torch.float32, free, keeps_blocks=keeps_blocks)
