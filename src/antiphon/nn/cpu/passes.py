"""A small decoder's layers as one compiled function a pass, for a CPU, in fp32.

A pass of a code predictor over few rows is some thirty operators a layer whose cost is their call, and which
threads only slow down. Numba compiles the whole pass for one core: no call between operators, and products
are tiles over panels (`panels`), in half the bytes where a weight's numbers are bf16's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.nn.cpu.compiler import compiled
from antiphon.nn.cpu.openmp import copy
from antiphon.nn.cpu.panels import can_lay_out, lay_out, rows_times
from antiphon.nn.cpu.tiles import LANES

Floats = NDArray[np.float32]

STACKED = "qkv", "o", "gate_up", "down", "heads"
"""The products' weights, each [L or P - 1, out, in]."""


class Panels(NamedTuple):
    """Weights of one shape, one behind the other in panels.

    address  of the first; each has `num_bytes`
    count    panels of one, each [depth, 16]
    """

    address: int
    num_bytes: int
    in_halves: bool
    depth: int
    count: int


def panels_of(weights: Tensor) -> tuple[Panels, Tensor]:
    """fp32 [n, out, in], and what holds their memory."""
    num, out, depth = weights.shape
    held = lay_out(weights.flatten(0, 1))
    in_halves = held.dtype is torch.bfloat16
    return Panels(held.data_ptr(), held.nbytes // num, in_halves, depth, out // LANES), held


def can_take(weights: Mapping[str, Tensor]) -> bool:
    """Whether this CPU has tiles, and the stacked weights have the sizes."""
    return all(can_lay_out(weights[name][0]) for name in STACKED)


class Weights(NamedTuple):
    """L layers, each weight stacked over them.

    qkv [L, (H + 2K) d, D], o [L, D, H d], gate_up [L, 2I, D], down [L, D, I]; heads [P - 1, V, D];
    norms [L, D] and norm [D], to be multiplied with vectors of length 1;
    cos and sin [L, P, H + K, d]: of position p, with such a norm's weight and the scale of the attention
    """

    qkv: Panels
    o: Panels
    gate_up: Panels
    down: Panels
    heads: Panels
    input_norm: Floats
    post_norm: Floats
    norm: Floats
    cos: Floats
    sin: Floats
    eps: np.float32


class Scratch(NamedTuple):
    """For r rows: keys and values [L, r, K, P, d], and the results on the way, each [r, width]."""

    keys: Floats
    values: Floats
    normed: Floats
    qkv: Floats
    turned: Floats
    attended: Floats
    hidden: Floats
    gated: Floats


def scratch_for(weights: Weights, rows: int) -> Scratch:
    num_layers, positions, turned, dim = weights.cos.shape
    kv_heads = weights.qkv.count * LANES // dim - turned
    cache = np.zeros((2, num_layers, rows, kv_heads, positions, dim), np.float32)
    widths = (
        *(weights.qkv.depth, weights.qkv.count * LANES, turned * dim),
        *(weights.o.depth, weights.gate_up.count * LANES, weights.down.depth),
    )
    return Scratch(cache[0], cache[1], *(np.zeros((rows, width), np.float32) for width in widths))


@compiled
def multiply(weights: Panels, which: int, x: Floats, y: Floats) -> None:
    """y [r, out] = x [r, in] times one of the weights."""
    weight, rows = weights.address + which * weights.num_bytes, x.shape[0]
    inputs, out = np.int64(x.ctypes.data), np.int64(y.ctypes.data)  # the type that the other kernels' have
    rows_times(inputs, rows, weight, weights.in_halves, weights.depth, weights.count, out, y.shape[1])


@compiled
def normalise(x: Floats, weight: Floats, eps: np.float32, y: Floats) -> None:
    """RMSNorm of every row of x [r, n] into y; the root of n is in the weight."""
    for r in range(x.shape[0]):
        total = np.float32(0)
        for i in range(x.shape[1]):
            total += x[r, i] * x[r, i]
        scale = np.float32(1) / np.sqrt(total + np.float32(x.shape[1]) * eps)
        for i in range(x.shape[1]):
            y[r, i] = x[r, i] * scale * weight[i]


@compiled
def turn(qkv: Floats, cos: Floats, sin: Floats, eps: np.float32, turned: Floats) -> None:
    """Normalise and rotate the query and key heads of one row: qkv [.., d], cos and sin [H + K, d]."""
    dim = cos.shape[1]
    half = dim // 2
    for head in range(cos.shape[0]):
        at = head * dim
        total = np.float32(0)
        for i in range(dim):
            total += qkv[at + i] * qkv[at + i]
        scale = np.float32(1) / np.sqrt(total + np.float32(dim) * eps)
        for i in range(half):
            low, high = qkv[at + i] * scale, qkv[at + half + i] * scale
            turned[at + i] = low * cos[head, i] + high * sin[head, i]
            turned[at + half + i] = high * cos[head, half + i] + low * sin[head, half + i]


@compiled
def attend(q: Floats, keys: Floats, values: Floats, seen: int, out: Floats) -> None:
    """One query head over the first `seen` keys of its KV head [P, d]."""
    dim = keys.shape[1]
    scores = np.empty(keys.shape[0], np.float32)
    highest, total = np.float32(-np.inf), np.float32(0)
    for p in range(seen):
        score = np.float32(0)
        for i in range(dim):
            score += q[i] * keys[p, i]
        scores[p] = score
        highest = max(highest, score)
    for p in range(seen):
        scores[p] = np.exp(scores[p] - highest)
        total += scores[p]
    for i in range(dim):
        out[i] = np.float32(0)
    for p in range(seen):
        share = scores[p] / total
        for i in range(dim):
            out[i] += share * values[p, i]


@compiled
def attend_rows(weights: Weights, scratch: Scratch, layer: int, position: int) -> None:
    """From `scratch.qkv` to the attention of every row, in `scratch.attended`."""
    num_kv_heads, dim = scratch.keys.shape[2], weights.cos.shape[3]
    num_heads = weights.cos.shape[2] - num_kv_heads
    cos, sin = weights.cos[layer, position], weights.sin[layer, position]
    for r in range(scratch.qkv.shape[0]):
        qkv, turned = scratch.qkv[r], scratch.turned[r]
        turn(qkv, cos, sin, weights.eps, turned)
        for head in range(num_kv_heads):
            key, value = (num_heads + head) * dim, (num_heads + num_kv_heads + head) * dim
            copy(turned[key : key + dim], scratch.keys[layer, r, head, position])
            copy(qkv[value : value + dim], scratch.values[layer, r, head, position])
        for head in range(num_heads):
            kv_head, at = head * num_kv_heads // num_heads, slice(head * dim, (head + 1) * dim)
            keys, values = scratch.keys[layer, r, kv_head], scratch.values[layer, r, kv_head]
            attend(turned[at], keys, values, position + 1, scratch.attended[r, at])


@compiled
def run_layers(x: Floats, position: int, weights: Weights, scratch: Scratch) -> None:
    """All layers at one position, x [r, D] in place."""
    size = weights.down.depth
    for layer in range(len(weights.input_norm)):
        normalise(x, weights.input_norm[layer], weights.eps, scratch.normed)
        multiply(weights.qkv, layer, scratch.normed, scratch.qkv)
        attend_rows(weights, scratch, layer, position)
        multiply(weights.o, layer, scratch.attended, scratch.normed)
        x += scratch.normed
        normalise(x, weights.post_norm[layer], weights.eps, scratch.normed)
        multiply(weights.gate_up, layer, scratch.normed, scratch.hidden)
        for r in range(x.shape[0]):
            for i in range(size):
                gate, up = scratch.hidden[r, i], scratch.hidden[r, size + i]
                scratch.gated[r, i] = gate / (np.float32(1) + np.exp(-gate)) * up
        multiply(weights.down, layer, scratch.gated, scratch.normed)
        x += scratch.normed


@compiled
def run_head(x: Floats, book: int, weights: Weights, scratch: Scratch, logits: Floats) -> None:
    """The final norm and head `book` (0..): x [r, D] -> logits [r, V]."""
    normalise(x, weights.norm, weights.eps, scratch.normed)
    multiply(weights.heads, book, scratch.normed, logits)


class CompiledPasses:
    """Passes over fp32 tensors on the CPU. Compiles when made."""

    def __init__(self, eps: float, weights: Mapping[str, Tensor]) -> None:
        """weights: by the names of `Weights`, those that are `STACKED` as fp32 [n, out, in]."""
        laid_out = {name: panels_of(weights[name]) for name in STACKED}
        self._held = [held for _, held in laid_out.values()]
        fields: dict[str, Any] = {name: panels for name, (panels, _) in laid_out.items()}
        fields |= {n: t.contiguous().numpy() for n, t in weights.items() if n not in STACKED}
        self._weights = Weights(eps=np.float32(eps), **fields)
        self._scratch = scratch_for(self._weights, 1)
        one = torch.zeros(1, self._weights.qkv.depth)
        self.first(one, one)

    def first(self, hidden: Tensor, c0: Tensor) -> Tensor:
        """Inputs [r, D] of positions 0 and 1 -> logits [r, V] of codebook 1."""
        if len(c0) != len(self._scratch.normed):
            self._scratch = scratch_for(self._weights, len(c0))
        run_layers(hidden.numpy().copy(), 0, self._weights, self._scratch)
        return self.next(c0, 1)

    def next(self, x: Tensor, position: int) -> Tensor:
        """x [r, D] -> logits [r, V] of codebook `position`."""
        inner = x.numpy().copy()
        logits = torch.empty(len(inner), self._weights.heads.count * LANES)
        run_layers(inner, position, self._weights, self._scratch)
        run_head(inner, position - 1, self._weights, self._scratch, logits.numpy())
        return logits
