"""The picked experts of a few tokens as one compiled loop: no copies, and nothing of weight 0 is computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.nn.cpu.compiler import compiled

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@compiled
def add_expert(x: Floats, weight: np.float32, gate_up: Floats, down: Floats, out: Floats) -> None:
    """out [H] += weight * one expert of x [H]; gate_up [2I, H], down [I, H], I a multiple of 2."""
    size = len(down)
    one = np.float32(1)
    for i in range(0, size, 2):
        w0, w1, w2, w3 = gate_up[i], gate_up[i + 1], gate_up[size + i], gate_up[size + i + 1]
        g0 = g1 = u0 = u1 = np.float32(0)
        for j in range(len(x)):
            g0 += w0[j] * x[j]
            g1 += w1[j] * x[j]
            u0 += w2[j] * x[j]
            u1 += w3[j] * x[j]
        h0 = weight * u0 * g0 / (one + np.exp(-g0))
        h1 = weight * u1 * g1 / (one + np.exp(-g1))
        d0, d1 = down[i], down[i + 1]
        for j in range(len(out)):
            out[j] += h0 * d0[j] + h1 * d1[j]


@compiled
def add_experts(
    x: Floats, experts: Ints, weights: Floats, gate_up: Floats, down: Floats, out: Floats
) -> None:
    """x and out [n, H], experts and weights [n, k], gate_up [E, 2I, H], down [E, I, H]."""
    for n in range(len(x)):
        for k in range(experts.shape[1]):
            expert = experts[n, k]
            add_expert(x[n], weights[n, k], gate_up[expert], down[expert], out[n])
