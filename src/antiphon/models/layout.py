"""Which checkpoint tensor fills which part of which parameter, as data; and the filling.

A layout is written down once per module: the parameters with their shapes, and for every checkpoint name the
region it fills. Fusing (q, k, v side by side), stacking (one expert's matrix into all experts') and
transposing are regions, so tensors may arrive one by one in any order and each is copied once, straight to
its place on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antiphon.core.errors import CheckpointError
from antiphon.models.decoder_config import DecoderConfig

MAX_LISTED = 200

Region = tuple[int | slice, ...]


class Source(NamedTuple):
    """One checkpoint tensor's place."""

    param: str
    region: Region
    shape: tuple[int, ...]  # in the checkpoint
    transposed: bool = False


@dataclass(slots=True)
class Layout:
    """Parameters (name -> shape) and sources (checkpoint name -> place); built by the methods below."""

    params: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)

    def whole(self, param: str, name: str, *shape: int) -> None:
        """The tensor is the parameter."""
        self.params[param] = shape
        self.sources[name] = Source(param, (), shape)

    def rows(self, param: str, width: int, *parts: tuple[str, int]) -> None:
        """A matrix whose rows come from several tensors: (checkpoint name, its number of rows) in order."""
        first = 0
        for name, count in parts:
            self.sources[name] = Source(param, (slice(first, first + count),), (count, width))
            first += count
        self.params[param] = (first, width)

    def vector(self, param: str, *parts: tuple[str, int]) -> None:
        """A vector that comes from several, side by side: (checkpoint name, its length) in order."""
        first = 0
        for name, count in parts:
            self.sources[name] = Source(param, (slice(first, first + count),), (count,))
            first += count
        self.params[param] = (first,)

    def stack(self, param: str, names: Iterable[str], *shape: int) -> None:
        """Equal tensors along a new first dimension."""
        count = 0
        for count, name in enumerate(names, 1):
            self.sources[name] = Source(param, (count - 1,), shape)
        self.params[param] = (count, *shape)

    def fill(
        self,
        tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> dict[str, Tensor]:
        """Allocate the parameters and copy every tensor to its place; tensors of other names are passed over.

        Raises CheckpointError naming every tensor that is missing or has another shape than the config says.
        """
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
            else:
                params[source.param][source.region].copy_(tensor.t() if source.transposed else tensor)
        complain([f"{name} is missing" for name in missing] + wrong)
        return params


def mapped(tensors: Mapping[Any, Tensor], names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
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
        layout.sources[name + "gate_proj.weight"] = Source(own + "gate_up", gate, (size, hidden))
        layout.sources[name + "up_proj.weight"] = Source(own + "gate_up", up, (size, hidden))
        down = Source(own + "down", (expert,), (hidden, size), transposed=True)
        layout.sources[name + "down_proj.weight"] = down
    if config.shared_expert_size:
        mlp_layout(layout, own + "shared_", theirs + "shared_expert.", hidden, config.shared_expert_size)
        layout.whole(own + "shared_gate", theirs + "shared_expert_gate.weight", 1, hidden)
