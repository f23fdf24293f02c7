"""Opens a model's checkpoint: finds it, checks it before anything is loaded, and streams its tensors.

Says what is wrong while the operator is still watching. Knows files, names and shapes; it must not know what
the tensors mean, which model code reads them, or how a GPU is chosen.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError, safe_open

from antiphon.checkpoint.gguf import open_gguf
from antiphon.checkpoint.gguf_directory import SUFFIX, gguf_in
from antiphon.checkpoint.gguf_model import read_tensor, released_names
from antiphon.checkpoint.parts import MODEL_TYPE, find_parts, parts_of, whole_config
from antiphon.checkpoint.quantisation import ORDER, READ, SCALE, UNREAD, ZERO_POINT, check_scheme, in_blocks
from antiphon.checkpoint.side_files import check_side_files, read_json, read_optional_json
from antiphon.checkpoint.source import find_directory
from antiphon.checkpoint.weights_out import INDEX_FILE, SINGLE_FILE
from antiphon.core.errors import CheckpointError
from antiphon.core.model_source import SETTINGS, WRITER, parts_in, settings_in, source_of
from antiphon.core.quantised import PANEL, Quantised

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
WEIGHT_NORM = {
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}
"""Ends of the names that torch's older weight normalisation gave its length and its direction, and what they
are called since. transformers reads either.
"""
NUM_NAMES_SHOWN = 5
BYTES_PER_GIB = 2**30


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a shard's header says of one tensor. `num_bytes` is its size on disk; `own` is its shard's name of
    it, "" where that is the same."""

    shard: str
    shape: tuple[int, ...]
    num_bytes: int
    own: str = ""
    is_quantised: bool = False

    @property
    def num_elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def bytes_held(self, dtype: torch.dtype, *, keeps_blocks: bool) -> int:
        """In memory, as `dtype`. Blocks that are kept take at most twice what they do in their file, and 12
        bits an element. Experts, and matrices with outputs that fill no panels, are not kept so."""
        if keeps_blocks and self.is_quantised and len(self.shape) == 2 and self.shape[0] % PANEL == 0:
            return min(2 * self.num_bytes, self.num_elements * 3 // 2)
        return self.num_elements * dtype.itemsize


@dataclass(frozen=True)
class Checkpoint:
    """A checked model directory. Nothing of its weights is in memory.

    path         local directory; the thinker's where a source names the parts one by one
    config       config.json
    generation   generation_config.json, {} where there is none
    tensors      name -> what the headers say, in the order of the shards; of one of parts `part/name`
    parts        directories of its parts, {} where it is whole
    """

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    tensors: dict[str, TensorInfo]
    parts: Mapping[str, Path] = field(default_factory=dict)

    @property
    def writer(self) -> Path:
        """The directory with the tokenizer of the replies."""
        return self.parts.get(WRITER, self.path)

    @property
    def context(self) -> int | None:
        """Tokens that the model that writes was made for; None where its config does not say."""
        config = self.config
        for name in ("thinker", "thinker_config", "text_config"):
            inner = config.get(name)
            config = cast(dict[str, Any], inner) if isinstance(inner, dict) else config
        told = config.get("max_position_embeddings")
        return told if isinstance(told, int) else None

    @property
    def source(self) -> str:
        """What opens it again, with nothing left to fetch."""
        is_named_by_parts = bool(self.parts) and self.path == self.writer
        if not is_named_by_parts:
            return str(self.path)
        settings = {name: json.dumps(self.config[name]) for name in SETTINGS if name in self.config}
        return source_of({part: str(directory) for part, directory in self.parts.items()} | settings)

    @cached_property
    def tensor_names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self.tensors)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(info.num_bytes for info in self.tensors.values())

    def bytes_held(self, dtype: torch.dtype, *, keeps_blocks: bool) -> int:
        """Bytes of all tensors in memory, as `dtype`. keeps_blocks: quantised matrices stay so."""
        return sum(info.bytes_held(dtype, keeps_blocks=keeps_blocks) for info in self.tensors.values())

    def select(self, names: Collection[str] | str) -> list[str]:
        """The names asked for: a collection of exact names, or one prefix ("" for all), in shard order.

        Raises CheckpointError for exact names that the checkpoint lacks.
        """
        if isinstance(names, str):
            return [name for name in self.tensors if name.startswith(names)]
        wanted = frozenset(names)
        self.require(dict.fromkeys(sorted(wanted)))
        return [name for name in self.tensors if name in wanted]

    def require(self, shapes: Mapping[str, tuple[int, ...] | None]) -> None:
        """Check that all these tensors are there with these shapes (None: any shape).

        Raises one CheckpointError that counts all the missing and mis-shaped ones and names the first few.
        """
        missing = [name for name in shapes if name not in self.tensors]
        wrong = [
            f"{name} is {list(self.tensors[name].shape)}, should be {list(shape)}"
            for name, shape in shapes.items()
            if shape is not None and name in self.tensors and self.tensors[name].shape != tuple(shape)
        ]
        if not missing and not wrong:
            return
        raise CheckpointError(
            f"{self.path} does not hold the model its config.json describes: "
            + "; ".join(
                _count(kind, found) for kind, found in (("missing", missing), ("mis-shaped", wrong)) if found
            )
            + ". Fetch the checkpoint again, or use the config.json that belongs to these weights"
        )

    def read(
        self,
        names: Collection[str] | str = "",
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor | Quantised]]:
        """Yield (name, tensor) shard by shard; at most one tensor at a time is in memory twice.

        `names` as in `select`. A quantised matrix comes as it lies in its file. Others come on the device;
        floating ones are cast to `dtype`, None keeps the stored one. `progress` gets (stored bytes read so
        far, stored bytes in all) after each tensor. Raises CheckpointError where a shard cannot be read.
        """
        selected = self.select(names)
        total = sum(self.tensors[name].num_bytes for name in selected)
        done = 0
        for shard, members in self._by_shard(selected).items():
            stored = [self._stored(name) for name in members]
            for name, (_, tensor) in zip(members, _read_shard(self.path / shard, stored), strict=True):
                if isinstance(tensor, Quantised):
                    yield name, tensor
                elif self.tensors[name].is_quantised:
                    yield name, in_blocks(name, tensor, self._scales_of(name))
                else:
                    yield name, tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)
                done += self.tensors[name].num_bytes
                if progress is not None:
                    progress(done, total)

    def _scales_of(self, name: str) -> torch.Tensor:
        """Of an int8 tensor of safetensors."""
        scale = name + SCALE
        (_, found), *_ = _read_shard(self.path / self.tensors[scale].shard, [self._stored(scale)])
        assert isinstance(found, torch.Tensor)
        return found

    def _stored(self, name: str) -> str:
        """What a tensor's own file calls it."""
        if self.tensors[name].own:
            return self.tensors[name].own
        return name.partition("/")[2] if self.parts else name

    def _by_shard(self, names: list[str]) -> dict[str, list[str]]:
        shards: dict[str, list[str]] = {}
        for name in names:
            shards.setdefault(self.tensors[name].shard, []).append(name)
        return shards


def takes_any_media(path: Path, config: Mapping[str, Any]) -> bool:
    """Of a model about which nothing is known."""
    return True


def open_checkpoint(
    source: str,
    *,
    progress: Callable[[str], None] | None = None,
    takes_media: Callable[[Path, Mapping[str, Any]], bool] = takes_any_media,
) -> Checkpoint:
    """Open a checkpoint directory, fetch one from the hub ("org/name"), or open the parts that a source names
    (`core.model_source`), and check all but the tensors' values.

    `takes_media` says of a directory and its config.json whether the model needs preprocessing, and raises
    CheckpointError for a model that nobody knows. Raises CheckpointError: not found or hub out of reach;
    files missing or not JSON; a shard missing or cut short; weights only as pickles. Raises ConfigError for a
    source that names parts wrongly.
    """
    directory = open_directory(source, progress=progress, takes_media=takes_media)
    if not directory.parts:
        tensors = _read_headers(directory.path)
        check_scales(directory.path, tensors)
        return replace(directory, tensors=tensors)
    tensors = dict[str, TensorInfo]()
    for part, path in directory.parts.items():
        for name, info in _read_headers(path).items():
            tensors[f"{part}/{name}"] = replace(info, shard=str((path / info.shard).absolute()))
    check_scales(directory.path, tensors)
    return replace(directory, tensors=tensors)


def open_directory(
    source: str,
    *,
    progress: Callable[[str], None] | None = None,
    takes_media: Callable[[Path, Mapping[str, Any]], bool] = takes_any_media,
) -> Checkpoint:
    """All of a checkpoint but its weights, which need not be there: a Checkpoint without tensors.

    Raises CheckpointError and ConfigError as `open_checkpoint` does.
    """
    if named := parts_in(source):
        parts = find_parts(named, progress)
        config = {"model_type": MODEL_TYPE, **settings_in(named)}
        return _of_parts(parts[WRITER], config, parts, takes_media)
    path = find_directory(source, progress)
    config = read_json(path / "config.json", "it is not a model checkpoint")
    if parts := parts_of(path, config, progress):
        return _of_parts(path, config, parts, takes_media)
    has_media = takes_media(path, config)
    check_scheme(path / "config.json", config, takes_media=has_media)
    check_side_files(path, takes_media=has_media)
    return Checkpoint(path, config, read_optional_json(path / "generation_config.json"), {})


def _of_parts(
    path: Path,
    config: Mapping[str, Any],
    parts: Mapping[str, Path],
    takes_media: Callable[[Path, Mapping[str, Any]], bool],
) -> Checkpoint:
    whole = whole_config(config, parts, takes_media)
    return Checkpoint(path, whole, whole["generation"][WRITER], {}, parts)


def check_memory(
    checkpoint: Checkpoint, dtype: torch.dtype, available_bytes: int, *, keeps_blocks: bool = False
) -> None:
    """Raise CheckpointError, with both numbers in GiB, if the weights in `dtype` need more than is
    available. keeps_blocks: quantised matrices stay so."""
    needed = checkpoint.bytes_held(dtype, keeps_blocks=keeps_blocks)
    if needed > available_bytes:
        raise CheckpointError(
            f"{checkpoint.path} needs {needed / BYTES_PER_GIB:.2f} GiB for its weights as {dtype}, "
            f"but only {available_bytes / BYTES_PER_GIB:.2f} GiB are available. "
            "Use a smaller dtype, a smaller checkpoint, or a device with more memory"
        )


def _read_headers(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a directory, by the names of today. Raises CheckpointError for one that has both."""
    stored = _read_stored(path)
    tensors = dict(_renamed(name, info) for name, info in stored.items())
    if len(tensors) < len(stored):
        renamed = {name: _renamed(name, info)[0] for name, info in stored.items()}
        twice = [name for name, since in renamed.items() if since != name and since in stored]
        raise CheckpointError(
            f"{path} has weights under the older and the newer name of torch's weight normalisation: "
            f"{_count('twice', twice)}. Keep one of each"
        )
    return tensors


def _renamed(name: str, info: TensorInfo) -> tuple[str, TensorInfo]:
    for end, since in WEIGHT_NORM.items():
        if name.endswith(end):
            return name.removesuffix(end) + since, replace(info, own=name)
    return name, info


def _read_stored(path: Path) -> dict[str, TensorInfo]:
    index = path / INDEX_FILE
    if not index.exists():
        return _read_header(path / _single_file(path))
    weight_map = read_json(index, "the shards cannot be found without it").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map of tensor names to files. Fetch the file again")
    for shard in weight_map.values():
        _check_shard_name(index, shard)
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted(set(weight_map.values())):
        tensors |= _read_header(path / shard)
    lost = [name for name, shard in weight_map.items() if name not in tensors or tensors[name].shard != shard]
    if lost:
        raise CheckpointError(
            f"{index} promises tensors that its shards do not hold: {_count('missing', lost)}. "
            "Index and shards are of different versions; fetch the checkpoint again"
        )
    return tensors


def _single_file(path: Path) -> str:
    if (path / SINGLE_FILE).exists():
        return SINGLE_FILE
    if (alone := gguf_in(path)) is not None:
        return alone.name
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise CheckpointError(
            f"{path} holds its weights only as pickles ({pickles[0]}), which can run any code when opened. "
            "Only safetensors are read: convert it with its author's tools, or fetch a converted one"
        )
    raise CheckpointError(f"{path} holds no weights: neither {SINGLE_FILE} nor {INDEX_FILE} is there")


def _check_shard_name(index: Path, shard: Any) -> None:
    # The index is a file from elsewhere; it must not lead out of its own directory.
    if not isinstance(shard, str) or "/" in shard or "\\" in shard or not shard.endswith(".safetensors"):
        raise CheckpointError(
            f"{index} names {shard!r}, which is not a .safetensors file of its own directory"
        )


def _read_header(file: Path) -> dict[str, TensorInfo]:
    if file.suffix == SUFFIX:
        return _read_gguf_header(file)
    if not file.exists():
        raise CheckpointError(f"{file} is named in {INDEX_FILE} but missing. Finish fetching the checkpoint")
    try:
        with safe_open(file, framework="pt") as shard:
            names = shard.keys()
            found = {name: _tensor_info(file.name, shard.get_slice(name)) for name in names}
    except (SafetensorError, OSError) as error:
        raise _unreadable(file, error) from error
    return found


def check_scales(path: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """Raise CheckpointError unless every int8 tensor has scales and nothing else beside it, and no other
    weight has scales."""
    for name, info in tensors.items():
        if info.shard.endswith(SUFFIX):
            continue
        beside = [end for end in (ZERO_POINT, ORDER) if name + end in tensors]
        has_scales = name + SCALE in tensors
        if info.is_quantised and (beside or not has_scales):
            wrong = f"beside {name}{beside[0]}" if beside else f"without {name}{SCALE}"
            raise CheckpointError(f"{path}: {name} is int8 {wrong}. {READ}")
        if not info.is_quantised and has_scales and name.endswith(".weight"):
            raise CheckpointError(f"{path}: {name} has scales, {name}{SCALE}, and is not int8. {READ}")


def _read_gguf_header(file: Path) -> dict[str, TensorInfo]:
    gguf = open_gguf(file)
    found = {name: (own, gguf.tensors[own]) for name, own in released_names(gguf).items()}
    return {
        name: TensorInfo(file.name, tensor.shape, len(tensor.data), own, tensor.in_blocks() is not None)
        for name, (own, tensor) in found.items()
    }


def _tensor_info(shard: str, tensor: Any) -> TensorInfo:
    shape = tuple(tensor.get_shape())
    info = TensorInfo(shard, shape, 0)
    dtype = tensor.get_dtype()
    if dtype.startswith(UNREAD):
        raise CheckpointError(f"{shard} holds weights in {dtype}. {READ}")
    return TensorInfo(shard, shape, info.num_elements * _itemsize(dtype), is_quantised=dtype == "I8")


def _itemsize(dtype: str) -> int:
    """Bytes of one element, from the bits in a safetensors dtype name such as BF16, F8_E4M3, I64 or BOOL."""
    digits = dtype.partition("_")[0].lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return max(int(digits or 8) // 8, 1)


def _read_shard(file: Path, names: list[str]) -> Iterator[tuple[str, torch.Tensor | Quantised]]:
    if file.suffix == SUFFIX:
        gguf = open_gguf(file)
        for name in names:
            found = read_tensor(gguf, name)
            yield name, found if isinstance(found, Quantised) else torch.tensor(found)
        return
    try:
        shard = safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _unreadable(file, error) from error
    with shard:
        for name in names:
            yield name, _read_tensor(file, shard, name)


def _read_tensor(file: Path, shard: Any, name: str) -> torch.Tensor:
    try:
        return shard.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> CheckpointError:
    if not os.access(file, os.R_OK):
        return CheckpointError(f"You may not read {file}: change its permissions")
    return CheckpointError(f"{file} is cut short or damaged ({error}). Fetch the file again")


def _count(kind: str, found: list[str]) -> str:
    shown = ", ".join(found[:NUM_NAMES_SHOWN])
    more = ", ..." if len(found) > NUM_NAMES_SHOWN else ""
    return f"{len(found)} {kind} ({shown}{more})"
