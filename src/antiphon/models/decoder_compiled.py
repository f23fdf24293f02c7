"""A decoder's step on a CPU in fp32: compiled loops on one tape, from the first layer to the last norm.

Between the products of a layer stand some twenty operators whose cost at a few rows is their call. Here a
layer is eight loops: residual and norm; q, k and v; rotation, write and attention; the output; residual and
norm again; gate and up; the gate; down. Python has its turn only where something stands between them that is
torch's: experts, prompts' attention, sums over ranks, weights that are not laid out in panels, copies that a
layer waits for. What is beside a row in the batch changes none of its bits where the row is one token and the
layer dense, its weights in panels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from antiphon.models.decoder_config import DecoderConfig
from antiphon.nn.attention import Chunk, LayerKv, attend_chunk
from antiphon.nn.compiled_attention import SingleTokens, attention_job, attention_loop
from antiphon.nn.compiled_products import product_job, product_loop
from antiphon.nn.compiled_rows import fit, gate_job, gate_loop, norm_job, norm_loop
from antiphon.nn.cpu_attention import viewed
from antiphon.nn.products import linear
from antiphon.nn.tape import Tape, Turn, tape_loop

BEFORE, AFTER, END = "before the attention", "after the attention", "the end of the layer"
LEAST_ROOM = 16
"""Tokens for which there are buffers from the beginning."""


class Layer(Protocol):
    """A layer's weights, as `models.decoder.DecoderLayer` has them."""

    config: DecoderConfig
    input_norm: Tensor
    post_norm: Tensor
    qk_norm: Tensor | None
    qkv: Tensor
    qkv_bias: Tensor | None
    o: Tensor
    gate_up: Tensor
    down: Tensor
    mixture: Callable[[Tensor], Tensor] | None
    total: Callable[[Tensor], Tensor] | None


def compile_loops() -> None:
    """Now, so that the first step doesn't wait for it."""
    for loop in (attention_loop, norm_loop, gate_loop, product_loop, tape_loop):
        loop()


@dataclass(slots=True)
class Prepared:
    """One batch, for all layers that read through it."""

    singles: SingleTokens
    chunks: list[Chunk]


class Buffers:
    """What a step of at most `room` tokens is computed in: fp32 [room, ...], all layers in the same."""

    def __init__(self, config: DecoderConfig, room: int) -> None:
        self.x = torch.empty(room, config.hidden_size)
        self.normed, self.delta = torch.empty_like(self.x), torch.empty_like(self.x)
        self.qkv = torch.empty(room, sum(config.qkv_rows))
        self.q = torch.empty(room, config.num_heads, config.head_dim)
        self.attended = torch.empty_like(self.q)
        self.gates = torch.empty(room, 0 if config.is_moe else 2 * config.intermediate_size)
        self.gated = torch.empty(room, self.gates.shape[1] // 2)


class CompiledSteps:
    """The steps of one decoder of at most `room` tokens, one at a time: buffers, and a tape over them."""

    def __init__(self, layers: Sequence[Layer], norm: Tensor, room: int, threads: int) -> None:
        config = layers[0].config
        self.room, self.threads = max(LEAST_ROOM, 1 << (room - 1).bit_length()), threads
        self._config, self._num_tokens = config, 0
        with torch.inference_mode(False):  # so that who infers without it may use them as well
            self._buffers = Buffers(config, self.room)
        self._tape = Tape(threads)
        self._products: list[Any] = []
        self._rows: list[Any] = []
        self._attentions: list[Any] = []
        self._held = layers, norm
        for i, layer in enumerate(layers):
            self._add_attention(i, layer)
            self._add_mlp(layer)
            self._tape.mark((END, i))
        self._last = self._add_norm(self._buffers.delta, norm, None)

    def run(
        self,
        flat: tuple[Tensor, Tensor, Tensor],
        kv: Sequence[LayerKv],
        capture: int | None,
        deepstack: Sequence[Tensor],
        visual: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """As `Decoder.forward`; flat is x fp32 [n, hidden], cos and signed sin [n, d], only read."""
        x, *turned_by = flat
        self._fit(len(x))
        mine = self._buffers.x[: len(x)].copy_(x)
        turns: dict[Any, Turn] = {}
        captured: list[Tensor] = []
        self._read_through(kv, (turned_by[0], turned_by[1]), turns)
        if capture is not None and 0 < capture < len(kv):
            turns[END, capture - 1] = partial(self._capture, captured)
        if visual is not None:
            for i, extra in enumerate(deepstack):
                turns[END, i] = partial(self._deepen, turns.get((END, i)), visual, extra)
        if capture == 0:
            captured.append(mine.clone())
        out = torch.empty_like(mine)
        self._last.out = out.data_ptr()
        self._tape.run(turns)
        return out, out if capture == len(kv) else captured[0] if captured else None

    # -- what is on the tape -------------------------------------------------------------------------

    def _add_attention(self, i: int, layer: Layer) -> None:
        """From x to what the attention adds to it, in `delta`."""
        buffers, config = self._buffers, self._config
        self._add_norm(buffers.delta if i else None, layer.input_norm, buffers.normed)
        self._add_product(buffers.normed, layer.qkv, buffers.qkv)
        self._tape.mark((BEFORE, i))
        heads = config.num_heads, config.num_kv_heads
        job = attention_job(buffers.qkv, heads, buffers.q, buffers.attended)
        job.eps = config.rms_eps
        job.weight = 0 if layer.qk_norm is None else layer.qk_norm.data_ptr()
        job.bias = 0 if layer.qkv_bias is None else layer.qkv_bias.data_ptr()
        self._tape.add(attention_loop(), job)
        self._attentions.append(job)
        self._tape.mark((AFTER, i))
        self._add_product(buffers.attended.view(self.room, -1), layer.o, buffers.delta, layer.total)

    def _add_mlp(self, layer: Layer) -> None:
        """From x and `delta` to what the MLP adds, in `delta`."""
        buffers = self._buffers
        self._add_norm(buffers.delta, layer.post_norm, buffers.normed)
        if layer.mixture is not None:
            self._tape.turn(partial(self._put, layer.mixture, layer.total))
            return
        self._add_product(buffers.normed, layer.gate_up, buffers.gates)
        job = gate_job(buffers.gates, buffers.gated)
        self._tape.add(gate_loop(), job)
        self._rows.append(job)
        self._add_product(buffers.gated, layer.down, buffers.delta, layer.total)

    def _add_norm(self, delta: Tensor | None, weight: Tensor, out: Tensor | None) -> Any:
        job = norm_job(self._buffers.x, delta, weight, out, self._config.rms_eps)
        self._tape.add(norm_loop(), job)
        self._rows.append(job)
        return job

    def _add_product(
        self, x: Tensor, weight: Tensor, out: Tensor, total: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """total: adds up the parts of all ranks."""
        if weight.dim() == 3 and total is None:
            job = product_job(x, weight, out, self.threads)
            self._tape.add(product_loop(), job)
            self._products.append(job)
        else:
            self._tape.turn(partial(self._multiply, x, weight, out, total))

    # -- Python's turns ------------------------------------------------------------------------------

    def _multiply(
        self, x: Tensor, weight: Tensor, out: Tensor, total: Callable[[Tensor], Tensor] | None
    ) -> None:
        part = linear(x[: self._num_tokens], weight)
        out[: self._num_tokens] = part if total is None else total(part)

    def _put(self, mixture: Callable[[Tensor], Tensor], total: Callable[[Tensor], Tensor] | None) -> None:
        part = mixture(self._buffers.normed[: self._num_tokens])
        self._buffers.delta[: self._num_tokens] = part if total is None else total(part)

    def _capture(self, captured: list[Tensor]) -> None:
        captured.append(self._buffers.x[: self._num_tokens] + self._buffers.delta[: self._num_tokens])

    def _deepen(self, before: Turn | None, visual: Tensor, extra: Tensor) -> None:
        """Add to visual tokens what belongs behind this layer's output."""
        if before is not None:
            before()
        x, delta = self._buffers.x[: self._num_tokens], self._buffers.delta[: self._num_tokens]
        x.add_(delta).index_add_(0, visual, extra.to(x.dtype))
        delta.zero_()

    def _attend(self, cache: LayerKv, chunks: list[Chunk]) -> None:
        """Prompts."""
        for chunk in chunks:
            mine = slice(chunk.first, chunk.last)
            pages = cache.k_pages, cache.v_pages
            self._buffers.attended[mine] = attend_chunk(self._buffers.q[mine], *pages, chunk)

    # -- one step ------------------------------------------------------------------------------------

    def _fit(self, tokens: int) -> None:
        if tokens == self._num_tokens:
            return
        self._num_tokens = tokens
        for job in self._products:
            job.rows = tokens
        for job in self._rows:
            fit(job, tokens, self.threads)

    def _read_through(
        self, kv: Sequence[LayerKv], turned_by: tuple[Tensor, Tensor], turns: dict[Any, Turn]
    ) -> None:
        """Each layer's attention is about its batch; what has to happen beside it is a turn."""
        for i, (job, cache) in enumerate(zip(self._attentions, kv, strict=True)):
            batch = cache.batch
            if batch.prepared is None:
                singles = SingleTokens(batch, turned_by, job, self.threads)
                batch.prepared = Prepared(singles, [viewed(chunk) for chunk in batch.chunks()])
            prepared: Prepared = batch.prepared
            prepared.singles.put_into(job, (cache.k_pages, cache.v_pages))
            if cache.ready is not None:
                turns[BEFORE, i] = cache.ready
            if prepared.chunks:
                turns[AFTER, i] = partial(self._attend, cache, prepared.chunks)
