"""Which checkpoint tensor fills which part of which parameter, as data; and the filling.

A layout is written down once per module: the parameters with their shapes, and for every checkpoint name the
region it fills. Fusing (q, k, v side by side), stacking (one expert's matrix into all experts') and
transposing are regions, so tensors may arrive one by one in any order and each is copied once, straight to
its place on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from antiphon.core.errors import CheckpointError
from antiphon.core.quantised import Quantised, joined
from antiphon.models.decoder_config import DecoderConfig
from antiphon.nn.cpu import in_quantised_panels
from antiphon.nn.stage_source import Pairs

log = logging.getLogger(__name__)

MAX_LISTED = 200

IN_PANELS = {"qkv", "o", "gate_up", "down", "embedding", "head"}
"""Parameters that are products of rows or tables: their readers take panels."""

ROWS_AT_ONCE = 4096
"""Of a quantised weight that are dequantised."""

Region = tuple[int | slice, ...]

S = TypeVar("S")


class TensorSource(NamedTuple):
    """One checkpoint tensor's place."""

    param: str
    region: Region
    shape: tuple[int, ...]  # in the checkpoint
    transposed: bool = False


@dataclass(slots=True)
class Layout:
    """Parameters (name -> shape) and sources (checkpoint name -> place); built by the methods below."""

    params: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sources: dict[str, TensorSource] = field(default_factory=dict)

    def whole(self, param: str, name: str, *shape: int) -> None:
        """The tensor is the parameter."""
        self.params[param] = shape
        self.sources[name] = TensorSource(param, (), shape)

    def rows(self, param: str, width: int, *parts: tuple[str, int]) -> None:
        """A matrix whose rows come from several tensors: (checkpoint name, its number of rows) in order."""
        first = 0
        for name, count in parts:
            self.sources[name] = TensorSource(param, (slice(first, first + count),), (count, width))
            first += count
        self.params[param] = (first, width)

    def vector(self, param: str, *parts: tuple[str, int]) -> None:
        """A vector that comes from several, side by side: (checkpoint name, its length) in order."""
        first = 0
        for name, count in parts:
            self.sources[name] = TensorSource(param, (slice(first, first + count),), (count,))
            first += count
        self.params[param] = (first,)

    def stack(self, param: str, names: Iterable[str], *shape: int) -> None:
        """Equal tensors along a new first dimension."""
        count = 0
        for count, name in enumerate(names, 1):
            self.sources[name] = TensorSource(param, (count - 1,), shape)
        self.params[param] = (count, *shape)

    def fill(
        self,
        tensors: Mapping[str, Tensor] | Pairs,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> dict[str, Tensor]:
        """Allocate the parameters and copy every tensor to its place; tensors of other names are passed over.

        A matrix that is quantised in all its parts becomes quantised panels where a product of the CPU can
        take it so (`nn.cpu.in_quantised_panels`), and is dequantised otherwise. Raises CheckpointError naming
        every tensor that is missing or has another shape than the config says.
        """
        kept = InBlocks(self.params, torch.device(device).type == "cpu" and dtype is torch.float32)
        params = {name: torch.empty(shape, device=device, dtype=dtype) for name, shape in self.params.items()}
        pairs = mapped(tensors, self.sources) if isinstance(tensors, Mapping) else iter(tensors)
        missing, wrong = dict.fromkeys(self.sources), []
        for name, tensor in pairs:
            source = self.sources.get(name)
            if source is None:
                continue
            missing.pop(name, None)
            if tuple(tensor.shape) != source.shape:
                wrong.append(f"{name} has shape {list(tensor.shape)}, the config says {list(source.shape)}")
            elif isinstance(tensor, Tensor):
                params[source.param][source.region].copy_(tensor.t() if source.transposed else tensor)
            elif not kept.takes(source, tensor):
                put(params, source, tensor)
        complain([f"{name} is missing" for name in missing] + wrong)
        kept.lay_out(params)
        return params


class InBlocks:
    """The quantised matrices of a layout, until all parts of each are there."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], may_stay: bool) -> None:
        """may_stay: the device and the type are those of the products."""
        self._shapes, self._may_stay = shapes, may_stay
        self._parts: dict[str, list[tuple[TensorSource, Quantised]]] = {}
        self._num_dequantised = 0

    def takes(self, source: TensorSource, weight: Quantised) -> bool:
        """Whether it is kept as a part of a matrix. If not, the caller is to dequantise it."""
        is_of_rows = source.param.rpartition(".")[2] in IN_PANELS and len(self._shapes[source.param]) == 2
        if not (self._may_stay and is_of_rows):
            self._num_dequantised += 1
            return False
        self._parts.setdefault(source.param, []).append((source, weight))
        return True

    def lay_out(self, params: dict[str, Tensor]) -> None:
        """Put the panels of each whole matrix into `params`, and dequantise all others."""
        num_kept = 0
        while self._parts:
            param, parts = self._parts.popitem()
            parts.sort(key=lambda part: first_row(part[0]))
            whole = sum(len(weight.data) for _, weight in parts) == self._shapes[param][0]
            panels = in_quantised_panels(joined([weight for _, weight in parts])) if whole else None
            if panels is None:
                for source, weight in parts:
                    put(params, source, weight)
                self._num_dequantised += len(parts)
            else:
                params[param], num_kept = panels, num_kept + len(parts)
        if num_kept or self._num_dequantised:
            log.info(KEPT, num_kept, self._num_dequantised)


KEPT = (
    "%d quantised tensors are kept in their bits; %d are dequantised, since their sizes, the device, the "
    "dtype or the lack of the package numba ask for it"
)


def first_row(source: TensorSource) -> int:
    """Of its parameter, that a tensor fills."""
    rows = source.region[0] if source.region else 0
    return rows.start if isinstance(rows, slice) else rows


def put(params: Mapping[str, Tensor], source: TensorSource, weight: Quantised) -> None:
    """Copy a tensor to its place, dequantised."""
    for first in range(0, len(weight.data), ROWS_AT_ONCE):
        rows = torch.from_numpy(weight.rows(slice(first, first + ROWS_AT_ONCE)))
        place = params[source.param][source.region]
        place = place.t() if source.transposed else place
        place[first : first + ROWS_AT_ONCE].copy_(rows)


def mapped(tensors: Mapping[Any, Tensor], names: Iterable[str]) -> Pairs:
    """The wanted entries of a mapping, one by one (it may load them lazily)."""
    return ((name, tensors[name]) for name in names if name in tensors)


def complain(problems: list[str]) -> None:
    """Raise one error that holds all problems (the first 200 of them in words)."""
    if not problems:
        return
    listed = "\n  ".join(problems[:MAX_LISTED])
    more = f"\n  and {len(problems) - MAX_LISTED} more" if len(problems) > MAX_LISTED else ""
    raise CheckpointError(
        f"{len(problems)} tensors of the checkpoint don't fit its config.json:\n  {listed}{more}"
    )


def decoder_layout(layout: Layout, own: str, theirs: str, config: DecoderConfig) -> None:
    """A Qwen3-style decoder: parameters `{own}layers.N.*`, `{own}norm` from checkpoint names `{theirs}*`."""
    for i in range(config.num_layers):
        attention_layout(layout, f"{own}layers.{i}.", f"{theirs}layers.{i}.", config)
        mlp = moe_layout if config.is_moe else dense_layout
        mlp(layout, f"{own}layers.{i}.", f"{theirs}layers.{i}.mlp.", config)
    layout.whole(own + "norm", theirs + "norm.weight", config.hidden_size)


def attention_layout(layout: Layout, own: str, theirs: str, config: DecoderConfig) -> None:
    hidden = config.hidden_size
    layout.whole(own + "input_norm", theirs + "input_layernorm.weight", hidden)
    layout.whole(own + "post_norm", theirs + "post_attention_layernorm.weight", hidden)
    projections = [(f"{theirs}self_attn.{p}_proj", n) for p, n in zip("qkv", config.qkv_rows, strict=True)]
    layout.rows(own + "qkv", hidden, *((f"{name}.weight", rows) for name, rows in projections))
    if config.qkv_bias:
        layout.vector(own + "qkv_bias", *((f"{name}.bias", rows) for name, rows in projections))
    layout.whole(own + "o", theirs + "self_attn.o_proj.weight", hidden, config.qkv_rows[0])
    for norm in ("q_norm", "k_norm") if config.qk_norm else ():
        layout.whole(own + norm, f"{theirs}self_attn.{norm}.weight", config.head_dim)


def mlp_layout(layout: Layout, own: str, theirs: str, hidden: int, size: int) -> None:
    """gate and up side by side, and down."""
    layout.rows(
        own + "gate_up", hidden, (theirs + "gate_proj.weight", size), (theirs + "up_proj.weight", size)
    )
    layout.whole(own + "down", theirs + "down_proj.weight", hidden, size)


def dense_layout(layout: Layout, own: str, theirs: str, config: DecoderConfig) -> None:
    mlp_layout(layout, own, theirs, config.hidden_size, config.intermediate_size)


def moe_layout(layout: Layout, own: str, theirs: str, config: DecoderConfig) -> None:
    """Router, stacked experts (down transposed), and the shared expert with its gate where there is one."""
    hidden, size, count = config.hidden_size, config.expert_size, config.num_experts
    layout.whole(own + "router", theirs + "gate.weight", count, hidden)
    layout.params[own + "gate_up"] = (count, 2 * size, hidden)
    layout.params[own + "down"] = (count, size, hidden)
    for expert in range(count):
        name = f"{theirs}experts.{expert}."
        gate, up = (expert, slice(0, size)), (expert, slice(size, 2 * size))
        layout.sources[name + "gate_proj.weight"] = TensorSource(own + "gate_up", gate, (size, hidden))
        layout.sources[name + "up_proj.weight"] = TensorSource(own + "gate_up", up, (size, hidden))
        down = TensorSource(own + "down", (expert,), (hidden, size), transposed=True)
        layout.sources[name + "down_proj.weight"] = down
    if config.shared_expert_size:
        mlp_layout(layout, own + "shared_", theirs + "shared_expert.", hidden, config.shared_expert_size)
        layout.whole(own + "shared_gate", theirs + "shared_expert_gate.weight", 1, hidden)


def module_layout(layout: Layout, own: str, theirs: str, module: nn.Module) -> None:
    """A module of transformers': its own state dict is the layout."""
    for name, tensor in module.state_dict().items():
        layout.whole(own + name, theirs + name, *tensor.shape)


def speech_of(speech: S | None) -> S:
    """A checkpoint's own, of a stage that speaks. Raises CheckpointError where it has none."""
    if speech is None:
        raise CheckpointError("this checkpoint has no talker: it writes text only")
    return speech
