"""A small decoder's layers as one compiled function a pass, for a CPU, in fp32.

A pass of a code predictor over few rows is some thirty operators a layer whose cost is their call, and which
threads only slow down. Numba compiles the whole pass for one core: no call between operators, and each weight
is read once for four rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.nn.cpu.compiler import compiled

Floats = NDArray[np.float32]


class Weights(NamedTuple):
    """L layers, each weight stacked over them.

    qkv [L, (H + 2K) d, D], o [L, D, H d], gate_up [L, 2I, D], down [L, D, I]; heads [P - 1, V, D];
    norms [L, D] and norm [D], to be multiplied with vectors of length 1;
    cos and sin [L, P, H + K, d]: of position p, with such a norm's weight and the scale of the attention
    """

    qkv: Floats
    o: Floats
    gate_up: Floats
    down: Floats
    input_norm: Floats
    post_norm: Floats
    norm: Floats
    cos: Floats
    sin: Floats
    heads: Floats
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
    kv_heads = weights.qkv.shape[1] // dim - turned
    cache = np.zeros((2, num_layers, rows, kv_heads, positions, dim), np.float32)
    widths = (
        *(weights.qkv.shape[2], weights.qkv.shape[1], turned * dim),
        *(weights.o.shape[2], weights.gate_up.shape[1], weights.down.shape[2]),
    )
    return Scratch(cache[0], cache[1], *(np.zeros((rows, width), np.float32) for width in widths))


@compiled
def multiply_row(weight: Floats, x: Floats, y: Floats) -> None:
    """y [out] = weight [out, in] x [in]; `out` is a multiple of 4."""
    for o in range(0, weight.shape[0], 4):
        w0, w1, w2, w3 = weight[o], weight[o + 1], weight[o + 2], weight[o + 3]
        a0 = a1 = a2 = a3 = np.float32(0)
        for i in range(len(x)):
            a0 += w0[i] * x[i]
            a1 += w1[i] * x[i]
            a2 += w2[i] * x[i]
            a3 += w3[i] * x[i]
        y[o], y[o + 1], y[o + 2], y[o + 3] = a0, a1, a2, a3


@compiled
def multiply(weight: Floats, x: Floats, y: Floats) -> None:
    """y [r, out] = x [r, in] weight [out, in]^T; `out` is a multiple of 4."""
    blocks, zero = x.shape[0] // 4 * 4, np.float32(0)
    for o in range(0, weight.shape[0] if blocks else 0, 2):
        wa, wb = weight[o], weight[o + 1]
        for r in range(0, blocks, 4):
            x0, x1, x2, x3 = x[r], x[r + 1], x[r + 2], x[r + 3]
            a0, a1, a2, a3, b0, b1, b2, b3 = zero, zero, zero, zero, zero, zero, zero, zero
            for i in range(len(wa)):
                a0 += wa[i] * x0[i]
                a1 += wa[i] * x1[i]
                a2 += wa[i] * x2[i]
                a3 += wa[i] * x3[i]
                b0 += wb[i] * x0[i]
                b1 += wb[i] * x1[i]
                b2 += wb[i] * x2[i]
                b3 += wb[i] * x3[i]
            y[r, o], y[r + 1, o], y[r + 2, o], y[r + 3, o] = a0, a1, a2, a3
            y[r, o + 1], y[r + 1, o + 1], y[r + 2, o + 1], y[r + 3, o + 1] = b0, b1, b2, b3
    for r in range(blocks, x.shape[0]):
        multiply_row(weight, x[r], y[r])


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
            scratch.keys[layer, r, head, position] = turned[key : key + dim]
            scratch.values[layer, r, head, position] = qkv[value : value + dim]
        for head in range(num_heads):
            kv_head, at = head * num_kv_heads // num_heads, slice(head * dim, (head + 1) * dim)
            keys, values = scratch.keys[layer, r, kv_head], scratch.values[layer, r, kv_head]
            attend(turned[at], keys, values, position + 1, scratch.attended[r, at])


@compiled
def run_layers(x: Floats, position: int, weights: Weights, scratch: Scratch) -> None:
    """All layers at one position, x [r, D] in place."""
    size = weights.down.shape[2]
    for layer in range(weights.qkv.shape[0]):
        normalise(x, weights.input_norm[layer], weights.eps, scratch.normed)
        multiply(weights.qkv[layer], scratch.normed, scratch.qkv)
        attend_rows(weights, scratch, layer, position)
        multiply(weights.o[layer], scratch.attended, scratch.normed)
        x += scratch.normed
        normalise(x, weights.post_norm[layer], weights.eps, scratch.normed)
        multiply(weights.gate_up[layer], scratch.normed, scratch.hidden)
        for r in range(x.shape[0]):
            for i in range(size):
                gate, up = scratch.hidden[r, i], scratch.hidden[r, size + i]
                scratch.gated[r, i] = gate / (np.float32(1) + np.exp(-gate)) * up
        multiply(weights.down[layer], scratch.gated, scratch.normed)
        x += scratch.normed


@compiled
def run_head(x: Floats, book: int, weights: Weights, scratch: Scratch, logits: Floats) -> None:
    """The final norm and head `book` (0..): x [r, D] -> logits [r, V]."""
    normalise(x, weights.norm, weights.eps, scratch.normed)
    multiply(weights.heads[book], scratch.normed, logits)


class CompiledPasses:
    """Passes over fp32 tensors on the CPU. Compiles when made."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._scratch = scratch_for(weights, 1)
        one = torch.zeros(1, weights.o.shape[1])
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
        logits = torch.empty(len(inner), self._weights.heads.shape[1])
        run_layers(inner, position, self._weights, self._scratch)
        run_head(inner, position - 1, self._weights, self._scratch, logits.numpy())
        return logits
