"""The code predictor: from the talker's hidden state and codebook 0, the other codebooks of one frame.

A small dense decoder that starts anew for every frame: the hidden state at position 0, code i at position i +
1. Its 15 sequential passes of 80 ms of speech are the hottest loop of the whole system, and at few rows each
operator costs more than its arithmetic. So a pass has few operators: a dense cache of its own whose views are
made once, norm weights and rotation in one table a position, the scale of the attention in the weights of the
queries. Where a pass fits one core it is one compiled function instead (`nn.cpu.passes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.decoder import Decoder, DecoderLayer
from antiphon.models.decoder_config import DecoderConfig
from antiphon.models.qwen3_omni.config import SpeechConfig
from antiphon.nn.cpu import compiled_passes
from antiphon.nn.products import add_linear, linear

Pick = Callable[[Tensor, int], Tensor]
"""(logits fp32 [r, V], codebook 1..) -> ids int64 [r]."""


COMPILED_ROWS = 16
COMPILED_BYTES = 16 * 2**20
"""Up to so many rows, and layers of so many bytes, one core is faster than operators on all of them."""


class Passes(Protocol):
    """How a frame's passes are computed. Frames are computed one at a time: they share a cache."""

    def first(self, hidden: Tensor, c0: Tensor) -> Tensor:
        """Positions 0 and 1, the inputs [r, Ht] of both -> logits [r, V] of codebook 1."""
        ...

    def next(self, x: Tensor, position: int) -> Tensor:
        """One position: x [r, Ht] -> logits [r, V] of codebook `position`."""
        ...


class CodePredictor:
    """Layers, one head and one embedding a codebook."""

    def __init__(self, config: SpeechConfig, params: Mapping[str, Tensor], codes_table: Tensor) -> None:
        self.num_codebooks = config.num_codebooks
        sizes = [config.talker_vocab] + [config.predictor_vocab] * (config.num_codebooks - 1)
        self._tables = codes_table.split(sizes)
        self._passes = OperatorPasses(config, params)
        self._compiled = passes_compiled(self._passes, params)

    def frame(self, hidden: Tensor, c0: Tensor, pick: Pick) -> Tensor:
        """Complete a frame: the final-norm hidden [r, Ht] of the position that produced c0, and c0 int64 [r]
        -> codes int64 [r, codebooks]. `pick` chooses each code from its logits; it may sample.
        """
        passes: Passes = self._passes
        if self._compiled is not None and len(c0) <= COMPILED_ROWS:
            passes = self._compiled
        codes = [c0]
        logits = passes.first(hidden, F.embedding(c0, self._tables[0]))
        for codebook in range(1, self.num_codebooks):
            if codebook > 1:
                logits = passes.next(F.embedding(codes[-1], self._tables[codebook - 1]), codebook)
            codes.append(pick(logits.float(), codebook))
        return torch.stack(codes, 1)


def passes_compiled(passes: OperatorPasses, params: Mapping[str, Tensor]) -> Passes | None:
    """None where layers are too large for one core, or where there is no kernel for them."""
    layers, norm = passes.layers, passes.norm
    matrices = {
        name: [params[f"predictor.layers.{i}.{name}"] for i in range(len(layers))]
        for name in ("qkv", "o", "gate_up", "down")
    }
    if sum(weight.nbytes for weights in matrices.values() for weight in weights) > COMPILED_BYTES:
        return None
    tensors = {
        **{name: torch.stack(weights) for name, weights in matrices.items()},
        "input_norm": torch.stack([layer.input_norm.weight for layer in layers]),
        "post_norm": torch.stack([layer.post_norm.weight for layer in layers]),
        "norm": norm.weight,
        "cos": torch.stack([layer.cos[:, 0] for layer in layers]),
        "sin": torch.stack([layer.sin[:, 0] for layer in layers]),
        "heads": params["predictor.heads"],
    }
    return compiled_passes(norm.eps, tensors)


class OperatorPasses:
    """Passes as torch operators, on any device and in any type."""

    def __init__(self, config: SpeechConfig, params: Mapping[str, Tensor]) -> None:
        decoder = Decoder(config.predictor, params, "predictor.")
        places = torch.arange(config.num_codebooks, device=decoder.norm.device)
        angles = decoder.rope.cos_sin(places, decoder.norm.dtype)
        self.layers = [FrameLayer(layer, angles) for layer in decoder.layers]
        self.norm = Norm(decoder.norm, config.predictor.rms_eps)
        self._heads = params["predictor.heads"].unbind()
        self._room = FrameCache(config.predictor, config.num_codebooks, decoder.norm)

    def first(self, hidden: Tensor, c0: Tensor) -> Tensor:
        x = torch.cat((hidden, c0))
        for layer, cache in zip(self.layers, self._room.caches(len(c0)), strict=True):
            x = layer.first(x, cache)
        return linear(self.norm(x[len(c0) :]), self._heads[0])

    def next(self, x: Tensor, position: int) -> Tensor:
        for layer, cache in zip(self.layers, self._room.caches(len(x)), strict=True):
            x = layer.next(x, cache[position], position)
        return linear(self.norm(x), self._heads[position - 1])


class CachePlace(NamedTuple):
    """One position in one layer's cache: where its key and value go, each [r, K, d], and what it sees, each
    [r * K, position + 1, d]."""

    key: Tensor
    value: Tensor
    keys: Tensor
    values: Tensor


class FrameCache:
    """Keys and values of one frame, reused by every frame; grows to the most rows seen."""

    def __init__(self, config: DecoderConfig, num_positions: int, like: Tensor) -> None:
        self._config, self._num_positions, self._like = config, num_positions, like
        self._store = like.new_empty(0)
        self._rows = 0
        self._caches: list[list[CachePlace]] = []

    def caches(self, rows: int) -> list[list[CachePlace]]:
        """Per layer its places; the views are made anew only when the number of rows changes."""
        if rows != self._rows:
            with torch.inference_mode(False):
                self._caches = self._lay_out(rows)
            self._rows = rows
        return self._caches

    def _lay_out(self, rows: int) -> list[list[CachePlace]]:
        config = self._config
        shape = (config.num_layers, 2, rows * config.num_kv_heads, self._num_positions, config.head_dim)
        size = torch.Size(shape).numel()
        if self._store.numel() < size:
            self._store = self._like.new_empty(size)
        layers = self._store[:size].view(shape)
        return [[self._place(rows, keys, values, i) for i in range(shape[3])] for keys, values in layers]

    def _place(self, rows: int, keys: Tensor, values: Tensor, position: int) -> CachePlace:
        at = [t.unflatten(0, (rows, -1))[:, :, position] for t in (keys, values)]
        seen = [t[:, : position + 1] for t in (keys, values)]
        return CachePlace(at[0], at[1], seen[0], seen[1])


class Norm:
    """RMSNorm. In fp32 the root of the sum is the length of a vector, one operator, with epsilon as one more
    element of it; other types are cast as the reference does, which is not the same thing.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self.eps = eps
        self._fast = weight.dtype is torch.float32
        self._floor = weight.new_tensor((size * eps) ** 0.5)
        self.weight = weight * size**0.5 if self._fast else weight
        """What `unit` leaves to be multiplied by."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.unit(x).mul_(self.weight)

    def unit(self, x: Tensor) -> Tensor:
        if self._fast:
            return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self._floor)
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class FrameLayer:
    """One layer over the positions of a frame. `angles`: cos and signed sin, each [positions, d]."""

    def __init__(self, layer: DecoderLayer, angles: tuple[Tensor, Tensor]) -> None:
        config = layer.config
        assert layer.qk_norm is not None, "this family normalises q and k"
        self._heads, self._groups = config.num_heads, config.num_heads // config.num_kv_heads
        self._turned, self._dim = config.num_heads + config.num_kv_heads, config.head_dim
        self._qkv, self._o, self._gate_up, self._down = layer.qkv, layer.o, layer.gate_up, layer.down
        self.input_norm = Norm(layer.input_norm, config.rms_eps)
        self.post_norm = Norm(layer.post_norm, config.rms_eps)
        self._qk_norm = Norm(layer.qk_norm, config.rms_eps)
        weight = self._qk_norm.weight.clone()
        weight[: config.num_heads] *= config.head_dim**-0.5
        cos, sin = (angle[:, None, None] for angle in angles)
        self.cos, self.sin = weight * cos, weight.roll(config.head_dim // 2, -1) * sin

    def first(self, x: Tensor, cache: list[CachePlace]) -> Tensor:
        """Positions 0 and 1 together: x [2r, Ht], all rows at position 0 first -> [2r, Ht]. What sees only
        itself attends to its own value."""
        q, k, v = (t.unflatten(0, (2, -1)) for t in self._qkv_at(x, slice(0, 2)))
        for place, key, value in zip(cache[:2], k, v, strict=True):
            place.key.copy_(key)
            place.value.copy_(value)
        alone = v[0].repeat_interleave(self._groups, 1).flatten(1)
        return self._finish(x, torch.cat((alone, self._attend(q[1], cache[1]))))

    def next(self, x: Tensor, place: CachePlace, position: int) -> Tensor:
        """One position: x [r, Ht] -> [r, Ht]."""
        q, k, v = self._qkv_at(x, slice(position, position + 1))
        place.key.copy_(k)
        place.value.copy_(v)
        return self._finish(x, self._attend(q, place))

    def _qkv_at(self, x: Tensor, positions: slice) -> tuple[Tensor, Tensor, Tensor]:
        """x [positions * r, Ht] -> q [.., H, d], scaled, k and v [.., K, d]."""
        cos, sin = self.cos[positions], self.sin[positions]
        h = linear(self.input_norm(x), self._qkv).view(
            len(cos), -1, self._turned + self._turned - self._heads, self._dim
        )
        unit = self._qk_norm.unit(h[:, :, : self._turned])
        qk = torch.addcmul(unit * cos, unit.roll(self._dim // 2, -1), sin).flatten(0, 1)
        return qk[:, : self._heads], qk[:, self._heads :], h[:, :, self._turned :].flatten(0, 1)

    def _attend(self, q: Tensor, place: CachePlace) -> Tensor:
        """q [r, H, d] over the cache -> [r, H * d]. Heads that share a KV head stand where queries stand, so
        no key or value is repeated."""
        grouped = q.reshape(-1, self._groups, self._dim)
        if q.is_cuda:
            out = F.scaled_dot_product_attention(
                grouped[None], place.keys[None], place.values[None], scale=1.0
            )
        else:
            out = torch.bmm(torch.bmm(grouped, place.keys.transpose(1, 2)).softmax(-1), place.values)
        return out.view(q.shape[0], -1)

    def _finish(self, x: Tensor, attention: Tensor) -> Tensor:
        x = add_linear(x, attention, self._o)
        gate, up = linear(self.post_norm(x), self._gate_up).chunk(2, -1)
        return add_linear(x, F.silu(gate).mul_(up), self._down)
