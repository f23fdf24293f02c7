"""What stands between the products of a decoder, for fp32 rows on a CPU: each function one compiled pass.

A row's result depends on that row alone, to the bit, whatever number of rows or threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor

from antiphon.nn.cpu.compiler import compiled, compiled_in_order
from antiphon.nn.cpu.openmp import Loop, floats, job_of, take

Floats = NDArray[np.float32]

ALONE_NUMEL = 1 << 13
"""Fewer numbers than this are done before another thread has begun."""


@compiled_in_order
def exp(x: np.float32) -> np.float32:
    """e^x from -87 to 88, what is outside is taken to be there; within 2 units of the last place. A loop over
    it becomes vector instructions, which a call to the system's exponential doesn't.

    x = n ln 2 + r, and e^r by the polynomial of Cephes (expf); ln 2 in two parts, so that r is exact.
    """
    x = min(max(x, np.float32(-87.3)), np.float32(88))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23))
    return (p * r * r + r + np.float32(1)) * power.view(np.float32)


@compiled
def normalise_row(x: Floats, weight: Floats, eps: np.float32, out: Floats) -> None:
    """RMSNorm of x [n] times weight [n]."""
    squares = np.float32(0)
    for i in range(len(x)):
        squares += x[i] * x[i]
    scale = np.float32(1) / np.sqrt(squares / np.float32(len(x)) + eps)
    for i in range(len(x)):
        out[i] = x[i] * scale * weight[i]


@compiled
def gate_row(x: Floats, out: Floats) -> None:
    """silu(gate) * up: x [2n] holds gate and up side by side, out [n]."""
    size = len(out)
    for i in range(size):
        out[i] = x[i] / (np.float32(1) + exp(-x[i])) * x[size + i]


NormJob = job_of("x delta weight out", "rows width share", "eps")
GateJob = job_of("x out", "rows width share")


def normalise_rows(pointer: Any) -> None:
    """The body of NORM: x += delta where there is one, then the norm of x into out."""
    job = carray(pointer, 1)[0]
    x, out = floats(job.x, job.rows, job.width), floats(job.out, job.rows, job.width)
    weight = floats(job.weight, 1, job.width)[0]
    first = take(pointer, job.share)
    while first < job.rows:
        for row in range(first, min(first + job.share, job.rows)):
            if job.delta:
                delta = floats(job.delta, job.rows, job.width)
                for i in range(job.width):
                    x[row, i] += delta[row, i]
            normalise_row(x[row], weight, job.eps, out[row])
        first = take(pointer, job.share)


def gate_rows(pointer: Any) -> None:
    """The body of GATE."""
    job = carray(pointer, 1)[0]
    x, out = floats(job.x, job.rows, 2 * job.width), floats(job.out, job.rows, job.width)
    first = take(pointer, job.share)
    while first < job.rows:
        for row in range(first, min(first + job.share, job.rows)):
            gate_row(x[row], out[row])
        first = take(pointer, job.share)


@cache
def norm_loop() -> Loop:
    return Loop(NormJob, normalise_rows)


@cache
def gate_loop() -> Loop:
    return Loop(GateJob, gate_rows)


def norm_job(x: Tensor, delta: Tensor | None, weight: Tensor, out: Tensor | None, eps: float) -> Any:
    """x fp32 [n, width] += delta; out becomes RMSNorm(x) * weight [width]. `fit` says how many rows."""
    job = NormJob(x=x.data_ptr(), weight=weight.data_ptr(), width=x.shape[1], eps=eps)
    job.delta = 0 if delta is None else delta.data_ptr()
    job.out = 0 if out is None else out.data_ptr()
    return job


def gate_job(x: Tensor, out: Tensor) -> Any:
    """x fp32 [n, 2I], gate and up side by side: out [n, I] becomes silu(gate) * up. `fit` says how many."""
    return GateJob(x=x.data_ptr(), out=out.data_ptr(), width=out.shape[1])


def fit(job: Any, rows: int, threads: int) -> None:
    """So many rows, shared out in a few turns for each thread, so that one that comes late holds up no other;
    all at once where one thread is through before another has begun.
    """
    alone = rows * job.width < ALONE_NUMEL
    job.rows, job.share = rows, rows if alone else max(1, rows // (4 * threads))
