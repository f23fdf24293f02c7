"""How a decoder is divided among ranks: heads, and the width of the MLPs and of every expert.

Each rank has a decoder of the same depth with fewer heads and narrower MLPs. What it computes after the
attention and after the MLP is a part of a sum; norms and routers are whole on every rank. Which slice of a
checkpoint tensor a rank takes follows from the shapes that the whole and the divided layout ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from antiphon.core.errors import ConfigError
from antiphon.core.quantised import Quantised
from antiphon.models.decoder_config import DecoderConfig
from antiphon.models.layout import Layout, TensorSource
from antiphon.nn.stage_source import Pairs


def shard_decoder(config: DecoderConfig, ranks: int) -> DecoderConfig:
    """One rank's sizes. Raises ConfigError where they cannot be divided.

    With fewer KV heads than ranks, ranks share a KV head and each keeps its keys and values.
    """
    widths = ("expert_size", "shared_expert_size") if config.is_moe else ("intermediate_size",)
    for name in ("num_heads", *widths):
        if getattr(config, name) % ranks:
            raise ConfigError(
                f"tensor_parallel {ranks} does not divide the model's {name}, {getattr(config, name)}"
            )
    kv_heads = config.num_kv_heads
    if kv_heads % ranks and ranks % kv_heads:
        raise ConfigError(
            f"tensor_parallel {ranks} and the model's {kv_heads} KV heads don't divide each other"
        )
    divided = {name: getattr(config, name) // ranks for name in ("num_heads", *widths)}
    return replace(config, num_kv_heads=max(kv_heads // ranks, 1), **divided)


def divide_rows(layout: Layout, param: str, ranks: int) -> None:
    """Give each rank an equal part of the rows of a parameter that is one tensor, if they can be divided."""
    rows, width = layout.params[param]
    if rows % ranks:
        return
    layout.params[param] = (rows // ranks, width)
    name = next(name for name, source in layout.sources.items() if source.param == param)
    layout.sources[name] = TensorSource(param, (), (rows // ranks, width))


def keep_params(layout: Layout, prefixes: tuple[str, ...]) -> Layout:
    """The parameters whose names begin so, with their sources."""
    params = {name: shape for name, shape in layout.params.items() if name.startswith(prefixes)}
    return Layout(params, {name: s for name, s in layout.sources.items() if s.param in params})


def cut(
    tensors: Pairs,
    whole: Mapping[str, TensorSource],
    ours: Mapping[str, TensorSource],
    place: tuple[int, int],
) -> Iterator[tuple[str, Tensor]]:
    """This rank's slices of whole checkpoint tensors; `place` is (rank, ranks).

    Quantised ones are dequantised. A tensor of another shape than the whole layout's passes uncut, for the
    filling to complain of.
    """
    for name, found in tensors:
        tensor = torch.from_numpy(found.rows(slice(None))) if isinstance(found, Quantised) else found
        if name in ours and tuple(tensor.shape) == whole[name].shape:
            yield name, slice_of(tensor, ours[name].shape, place)
        else:
            yield name, tensor


def slice_of(tensor: Tensor, shape: tuple[int, ...], place: tuple[int, int]) -> Tensor:
    """Along each dimension that is divided into p parts, rank r of n takes part r * p // n."""
    rank, ranks = place
    for dim, size in enumerate(shape):
        parts = tensor.shape[dim] // size
        tensor = tensor.narrow(dim, rank * parts // ranks * size, size)
    return tensor
