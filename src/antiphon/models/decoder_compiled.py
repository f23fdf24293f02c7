"""A decoder's step on a CPU in fp32: torch's products, and one compiled pass for all that is between two.

Between the products of a layer stand some twenty operators whose cost at a few rows is their call. Here they
are four passes: residual and norm; rotation, write and attention; residual and norm again; the gate of the
MLP. What is beside a row in the batch changes none of its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from antiphon.models.decoder_config import DecoderConfig
from antiphon.nn.attention import Chunk, LayerKv, attend_chunk
from antiphon.nn.compiled_attention import SingleTokens, attention_loop
from antiphon.nn.compiled_rows import Norms, gate, gate_loop, norm_loop
from antiphon.nn.cpu_attention import viewed
from antiphon.nn.products import linear


class Layer(Protocol):
    """A layer's weights, as `models.decoder.DecoderLayer` has them."""

    config: DecoderConfig
    input_norm: Tensor
    post_norm: Tensor
    qk_norm: Tensor | None
    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    mixture: Callable[[Tensor], Tensor] | None
    total: Callable[[Tensor], Tensor] | None


def compile_passes() -> None:
    """Now, so that the first step doesn't wait for it."""
    for loop in (attention_loop, norm_loop, gate_loop):
        loop()


@dataclass(slots=True)
class Prepared:
    """One batch, for all layers that read through it."""

    singles: SingleTokens
    chunks: list[Chunk]


class CompiledStep:
    """One step: buffers that its layers share. x fp32 [n, hidden], cos, signed sin [n, d] are only read."""

    def __init__(self, layers: Sequence[Layer], x: Tensor, cos: Tensor, sin: Tensor) -> None:
        config, tokens = layers[0].config, len(x)
        self._layers, self._config, self._turns = layers, config, (cos, sin)
        self._threads = torch.get_num_threads()
        self._x = x.clone(memory_format=torch.contiguous_format)
        self._norms = Norms(self._x, config.rms_eps, self._threads)
        self._normed = torch.empty_like(self._x)
        self._q = x.new_empty(tokens, config.num_heads, config.head_dim)
        self._attended = torch.empty_like(self._q)
        self._gated = x.new_empty(tokens, config.intermediate_size)

    def run(
        self,
        kv: Sequence[LayerKv],
        norm: Tensor,
        capture: int | None,
        deepstack: Sequence[Tensor],
        visual: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """As `Decoder.forward`, to which `norm` [hidden] is the last weight."""
        captured = self._x.clone() if capture == 0 else None
        delta = None
        for i, (layer, cache) in enumerate(zip(self._layers, kv, strict=True)):
            delta = self._layer(layer, cache, delta)
            if capture == i + 1 or i < len(deepstack):
                self._x.add_(delta)
                delta = None
            if capture == i + 1:
                captured = self._x.clone()
            if visual is not None and i < len(deepstack):
                self._x.index_add_(0, visual, deepstack[i].to(self._x.dtype))
        out = self._norms.next(delta, norm, self._normed)
        return out, out if capture == len(self._layers) else captured

    def _layer(self, layer: Layer, cache: LayerKv, delta: Tensor | None) -> Tensor:
        """x += delta, then one layer -> what it adds to x."""
        h = self._norms.next(delta, layer.input_norm, self._normed)
        assert layer.qk_norm is not None, "decoders without it take the operators' way"
        attended = self._attend(linear(h, layer.qkv), layer.qk_norm, cache)
        h = self._norms.next(whole(layer, linear(attended, layer.o)), layer.post_norm, self._normed)
        if layer.mixture is not None:
            return whole(layer, layer.mixture(h))
        gated = gate(linear(h, layer.gate_up), self._gated, self._threads)
        return whole(layer, linear(gated, layer.down))

    def _attend(self, qkv: Tensor, weight: Tensor, cache: LayerKv) -> Tensor:
        """qkv [n, (H + 2K) d] -> the attention [n, H d]."""
        if cache.ready is not None:
            cache.ready()
        pages = cache.k_pages, cache.v_pages
        prepared, q, out = self._prepared(cache), self._q, self._attended
        prepared.singles.turn_and_attend(qkv, weight, pages, q, out)
        for chunk in prepared.chunks:
            mine = slice(chunk.first, chunk.last)
            out[mine] = attend_chunk(q[mine], *pages, chunk)
        return out.view(len(out), -1)

    def _prepared(self, cache: LayerKv) -> Prepared:
        batch, config = cache.batch, self._config
        if batch.prepared is None:
            singles = SingleTokens(batch, (config.num_heads, config.num_kv_heads), config.head_dim)
            singles.turn_by(*self._turns, config.rms_eps)
            batch.prepared = Prepared(singles, [viewed(chunk) for chunk in batch.chunks()])
        return batch.prepared


def whole(layer: Layer, part: Tensor) -> Tensor:
    """The sum of all ranks' parts [n, hidden]."""
    return part if layer.total is None else layer.total(part)
