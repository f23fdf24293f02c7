"""Seeded weights for a demo checkpoint, and their names and files as a released checkpoint has them.

Every parameter is set here by its own name and seed: the library's initialisation leaves the talker's
experts and router unset. Norms and biases vary too, so that no branch of the model can be left out
unnoticed. Knows nothing of the tokenizer.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from antiphon.checkpoint.demo_vocoder import fill_vocoder
from antiphon.checkpoint.weights_out import INDEX_FILE, save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLAIN_STD = 0.08
"""For `plain` weights: large enough that random tokens vary, as exactness tests need."""
EMBEDDING_STD = 0.3
DTYPES = "float32", "bfloat16"
"""In which weights may be stored; they are made in the first."""

_OURS_TO_RELEASED = (
    ("thinker.model.language_model.", "thinker.model."),
    ("thinker.model.audio_tower.", "thinker.audio_tower."),
    ("thinker.model.visual.", "thinker.visual."),
)


@torch.no_grad()
def fill_weights(model: Any, seed: int, *, plain: bool) -> None:
    """Set every parameter of a transformers Qwen3-Omni model, in place.

    `plain` draws all matrices with one width; otherwise each is scaled by its inputs, so that activations
    keep their size through the towers and layers.
    """
    for name, parameter in model.named_parameters():
        if not name.startswith("code2wav."):
            fill_parameter(name, parameter, generator_for(name, seed), plain=plain)
    fill_vocoder(model.code2wav, generator_for("code2wav", seed), murmur=not plain)


def generator_for(name: str, seed: int) -> torch.Generator:
    """A stream of its own for each name, so that one tensor's size never moves another's values."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))


def fill_parameter(name: str, parameter: torch.Tensor, generator: torch.Generator, *, plain: bool) -> None:
    """Set one parameter of anything but a vocoder, in place."""
    is_norm = "norm" in name or "ln_q" in name or "ln_post" in name
    if parameter.dim() == 1:
        centre, std = (1.0, 0.1) if is_norm and name.endswith("weight") else (0.0, 0.02)
        parameter.normal_(centre, std, generator=generator)
    elif plain:
        parameter.normal_(0, PLAIN_STD, generator=generator)
    elif "embed" in name and "patch" not in name:
        parameter.normal_(0, EMBEDDING_STD, generator=generator)
    else:
        inputs = parameter.shape[-1] if ".experts." in name else parameter[0].numel()
        parameter.normal_(0, inputs**-0.5, generator=generator)


def write_weights(model: Any, directory: Path, shard_bytes: int) -> None:
    """Write safetensors under released names: one file, or shards of at most `shard_bytes` with an index."""
    shards = _split(dict(released_tensors(model)), shard_bytes)
    if len(shards) == 1:
        save(shards[0], directory)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save(shard, directory, file_name)
        weight_map |= dict.fromkeys(shard, file_name)
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def store_as(directory: Path, dtype: str) -> None:
    """The weights of a checkpoint made here as the nearest numbers of one of DTYPES, as released ones are
    stored; its config.json says so."""
    total = 0
    for path in directory.glob("*.safetensors"):
        stored = {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(path).items()}
        total += sum(tensor.nbytes for tensor in stored.values())
        save(stored, directory, path.name)
    index, config = directory / INDEX_FILE, directory / "config.json"
    if index.exists():
        told = json.loads(index.read_text(encoding="utf-8")) | {"metadata": {"total_size": total}}
        index.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace(f'"dtype": "{DTYPES[0]}"', f'"dtype": "{dtype}"'), encoding="utf-8")


def released_tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) as released: one matrix an expert and projection, towers directly under the thinker."""
    for name, parameter in model.named_parameters():
        released = name
        for ours, theirs in _OURS_TO_RELEASED:
            released = released.replace(ours, theirs)
        yield from _split_experts(released, parameter.detach())


def _split_experts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    prefix, found, projection = name.partition("mlp.experts.")
    if not found:
        yield name, tensor.contiguous()
        return
    for expert, matrix in enumerate(tensor):
        if projection == "down_proj":
            yield f"{prefix}{found}{expert}.down_proj.weight", matrix.clone()
        else:
            gate, up = matrix.chunk(2)
            yield f"{prefix}{found}{expert}.gate_proj.weight", gate.clone()
            yield f"{prefix}{found}{expert}.up_proj.weight", up.clone()


def _split(tensors: dict[str, torch.Tensor], shard_bytes: int) -> list[dict[str, torch.Tensor]]:
    shards: list[dict[str, torch.Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        if shards[-1] and used + tensor.nbytes > shard_bytes:
            shards.append({})
            used = 0
        shards[-1][name] = tensor
        used += tensor.nbytes
    return shards
