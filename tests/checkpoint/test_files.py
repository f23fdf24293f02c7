"""Opening checkpoints: what is read, and what each kind of broken one is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphon.checkpoint.files import Checkpoint, check_memory, open_checkpoint
from antiphon.checkpoint.weights_out import INDEX_FILE
from antiphon.core.errors import CheckpointError

NORM = "thinker.model.norm.weight"
HEAD = "thinker.lm_head.weight"


@pytest.fixture
def broken(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "copy")


@pytest.fixture
def sharded(broken: Path) -> Path:
    """A copy in two shards."""
    whole = broken / "model.safetensors"
    tensors = load_file(whole)
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, members in halves.items():
        save_file({name: tensors[name] for name in members}, broken / file)
    weight_map = {name: file for file, members in halves.items() for name in members}
    (broken / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    whole.unlink()
    return broken


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return open_checkpoint(str(tiny_checkpoint))


def refusal(path: Path | str) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(str(path))
    return str(caught.value)


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_open(checkpoint: Checkpoint, tiny_checkpoint: Path) -> None:
    stored = load_file(tiny_checkpoint / "model.safetensors")
    assert checkpoint.path == tiny_checkpoint
    assert checkpoint.config["model_type"] == "qwen3_omni_moe"
    assert checkpoint.generation["talker_top_k"] == 50
    assert checkpoint.tensor_names == set(stored)
    assert checkpoint.num_bytes == sum(tensor.nbytes for tensor in stored.values())


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"thinker": {"max_position_embeddings": 4096}, "max_position_embeddings": 7}, 4096),
        ({"thinker_config": {"text_config": {"max_position_embeddings": 32768}}}, 32768),
        ({"thinker": "thinker"}, None),
        ({"max_position_embeddings": "many"}, None),
    ],
)
def test_the_context_that_a_model_was_made_for(config: dict[str, Any], context: int | None) -> None:
    assert Checkpoint(Path(), config, {}, {}).context == context


def test_generation_config_is_optional(broken: Path) -> None:
    (broken / "generation_config.json").unlink()
    assert open_checkpoint(str(broken)).generation == {}


def test_read_by_prefix_casts_and_reports_bytes(checkpoint: Checkpoint, tiny_checkpoint: Path) -> None:
    stored = load_file(tiny_checkpoint / "model.safetensors")
    told: list[tuple[int, int]] = []
    tensors = dict(
        checkpoint.read("code2wav.", dtype=torch.float64, progress=lambda *seen: told.append(seen))
    )
    assert tensors.keys() == {name for name in stored if name.startswith("code2wav.")}
    assert all(torch.equal(tensor, stored[name].double()) for name, tensor in tensors.items())
    total = sum(stored[name].nbytes for name in tensors)
    assert told[-1] == (total, total)
    assert told == sorted(told)


def test_read_by_name(checkpoint: Checkpoint) -> None:
    assert [name for name, _ in checkpoint.read([NORM])] == [NORM]
    with pytest.raises(CheckpointError, match=r"1 missing \(nothing\.weight\)"):
        list(checkpoint.read([NORM, "nothing.weight"]))


def test_read_of_shards_is_the_same(sharded: Path, checkpoint: Checkpoint) -> None:
    whole, parts = dict(checkpoint.read()), dict(open_checkpoint(str(sharded)).read())
    assert whole.keys() == parts.keys()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())


def test_require_reports_all_at_once(checkpoint: Checkpoint) -> None:
    checkpoint.require({NORM: (64,), HEAD: None})
    wanted = {f"absent.{number}": None for number in range(7)} | {NORM: (65,)}
    with pytest.raises(CheckpointError) as caught:
        checkpoint.require(wanted)
    text = str(caught.value)
    assert "7 missing (absent.0, " in text
    assert "absent.6" not in text
    assert f"1 mis-shaped ({NORM} is [64], should be [65])" in text


def test_memory_is_compared_in_the_dtype_to_be_loaded(checkpoint: Checkpoint) -> None:
    room = sum(info.num_elements for info in checkpoint.tensors.values()) * 2
    check_memory(checkpoint, torch.bfloat16, room)
    with pytest.raises(CheckpointError, match=r"needs 0\.01 GiB .* only 0\.00 GiB"):
        check_memory(checkpoint, torch.float32, room)


def test_no_such_directory(tmp_path: Path) -> None:
    assert "There is no directory" in refusal(tmp_path / "absent")


def test_a_file_is_not_a_checkpoint(tiny_checkpoint: Path) -> None:
    assert "name the directory" in refusal(tiny_checkpoint / "config.json")


def test_config_missing(broken: Path) -> None:
    (broken / "config.json").unlink()
    assert "has no config.json" in refusal(broken)


@pytest.mark.parametrize(("text", "why"), [("{", "cannot be read as JSON"), ("[]", "holds a list")])
def test_config_invalid(broken: Path, text: str, why: str) -> None:
    (broken / "config.json").write_text(text)
    assert why in refusal(broken)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "preprocessor_config.json"])
def test_side_file_missing(broken: Path, name: str) -> None:
    (broken / name).unlink()
    assert f"lacks {name}" in refusal(broken)


def test_tokenizer_in_either_form(broken: Path) -> None:
    (broken / "tokenizer.json").unlink()
    open_checkpoint(str(broken))
    (broken / "merges.txt").unlink()
    assert "lacks a tokenizer" in refusal(broken)


def test_chat_template_in_any_form(broken: Path) -> None:
    (broken / "chat_template.jinja").unlink()
    open_checkpoint(str(broken))
    (broken / "chat_template.json").unlink()
    assert "lacks a chat template" in refusal(broken)
    edit(broken / "tokenizer_config.json", chat_template="{{ messages }}")
    open_checkpoint(str(broken))


def test_shard_missing(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors is named in" in refusal(sharded)


def test_index_and_shards_of_different_versions(sharded: Path) -> None:
    file = "model-00001-of-00002.safetensors"
    edit(sharded / INDEX_FILE, weight_map={"ghost": file, NORM: file})
    assert "ghost" in refusal(sharded)


def test_index_without_a_map(sharded: Path) -> None:
    edit(sharded / INDEX_FILE, weight_map={})
    assert "has no weight_map" in refusal(sharded)


@pytest.mark.parametrize("shard", ["../model.safetensors", "model.bin", 3, ["model.safetensors"]])
def test_index_may_not_lead_elsewhere(sharded: Path, shard: object) -> None:
    edit(sharded / INDEX_FILE, weight_map={"first": "model-00001-of-00002.safetensors", NORM: shard})
    assert "its own directory" in refusal(sharded)


@pytest.mark.parametrize("kept", [4, 2000, 1_000_000])
def test_weights_cut_short(broken: Path, kept: int) -> None:
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    assert "cut short or damaged" in refusal(broken)


def test_weights_lost_after_opening(broken: Path) -> None:
    checkpoint = open_checkpoint(str(broken))
    (broken / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        next(checkpoint.read())


def test_pickles_are_refused(broken: Path) -> None:
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    text = refusal(broken)
    assert "only as pickles (pytorch_model.bin)" in text
    assert "can run any code" in text


def test_no_weights_at_all(broken: Path) -> None:
    (broken / "model.safetensors").unlink()
    assert "holds no weights" in refusal(broken)
