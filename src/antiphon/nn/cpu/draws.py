"""How rows draw tokens, for fp32 logits on a CPU: what `engine.sampler.Draw` does, one compiled pass a row.

Operators sort a row to cut it, and make noise for all of it. Here the k-th largest is found by a heap, what
cannot be among the likeliest is never sorted, and noise is made for what is kept and could still win.
"""

from __future__ import annotations

from functools import cache
from math import exp
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor

from antiphon.nn import noise
from antiphon.nn.cpu.compiler import compiled_in_order
from antiphon.nn.cpu.openmp import Loop, floats, integers, job_of, take
from antiphon.nn.cpu.rows import ALONE_NUMEL
from antiphon.nn.cpu.rows import exp as rapid_exp
from antiphon.nn.noise import GOLDEN, MASK

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

MOST_NOISE = 23
"""No draw of noise is larger: -log(-log(1 - 2^-33)) is 22.9."""
LEAST_LANES = np.array([int(2**32 * exp(-exp(-noise))) - 2 for noise in range(MOST_NOISE)], np.int64)
"""By a whole number that noise is to exceed: hashes below it make less, whatever rounding does."""
NARROWLY = np.float32(1e-3)
"""Logits so far below the least that could be kept are looked at too, for what rounding does."""


mix32 = compiled_in_order(noise.mix32)
"""Of one lane."""


@compiled_in_order
def counter_key(seed: int, stage: int, position: int, codebook: int) -> int:
    """As `nn.noise.counter_keys`."""
    key = mix32(seed ^ mix32(seed >> 32))
    key = mix32(key ^ ((stage * GOLDEN) & MASK))
    key = mix32(key ^ ((position * GOLDEN) & MASK))
    return mix32(key ^ ((codebook * GOLDEN) & MASK))


@compiled_in_order
def lane_of(key: int, column: int) -> int:
    """The hash of a column of a draw, of 32 bits."""
    return mix32(column * GOLDEN + key)


@compiled_in_order
def gumbel(lane: int) -> float:
    """As `nn.noise.gumbel`, of one column."""
    return -np.log(-np.log((np.float64(lane) + 0.5) / (MASK + 1)))


@compiled_in_order
def kth_largest(logits: Floats, temperature: np.float32, k: int) -> np.float32:
    """Of logits [n] over the temperature; k is 1 to n."""
    heap = np.full(k, -np.inf, np.float32)  # of the k largest so far, the least first
    for i in range(len(logits)):
        value = logits[i] / temperature
        if not value > heap[0]:
            continue
        at, child = 0, 1
        while child < k:
            if child + 1 < k and heap[child + 1] < heap[child]:
                child += 1
            if not heap[child] < value:
                break
            heap[at] = heap[child]
            at, child = child, 2 * child + 1
        heap[at] = value
    return heap[0]


@compiled_in_order
def kept(logits: Floats, temperature: np.float32, floor: np.float32) -> Ints:
    """Columns of logits [n] that are `floor` or more over the temperature."""
    count = 0
    for i in range(len(logits)):
        count += logits[i] / temperature >= floor
    columns = np.empty(count, np.int64)
    at = 0
    for i in range(len(logits)):
        if logits[i] / temperature >= floor:
            columns[at] = i
            at += 1
    return columns


@compiled_in_order
def likeliest_until(
    logits: Floats, temperature: np.float32, floor: np.float32, top: np.float32, share: np.float32
) -> Ints:
    """The likeliest columns of those that are `floor` or more, until they have `share` of their mass. `top`
    is the largest, over the temperature."""
    mass, count = 0.0, 0
    for i in range(len(logits)):
        value = logits[i] / temperature
        if value >= floor:
            mass += rapid_exp(value - top)
            count += 1
    # all that have less than (1 - share) / count of the mass have no more than 1 - share of it together
    least = np.float32(np.log(mass * (1 - np.float64(share)) / count)) + top - NARROWLY
    columns = kept(logits, temperature, max(floor, least))
    values = np.empty(len(columns), np.float32)
    for i in range(len(columns)):
        values[i] = -logits[columns[i]] / temperature
    order = np.argsort(values, kind="mergesort")  # of equals the first
    before = 0.0
    for i in range(len(order)):
        if i and before >= share:
            return columns[order[:i]]
        before += rapid_exp(-values[order[i]] - top) / mass
    return columns[order]


@compiled_in_order
def largest(logits: Floats) -> int:
    """The first column of the largest."""
    best = 0
    for i in range(1, len(logits)):
        if logits[i] > logits[best]:
            best = i
    return best


@compiled_in_order
def winner(logits: Floats, temperature: np.float32, columns: Ints, key: int, drawn: int) -> int:
    """Of these columns (all, if there are none) the one with the largest sum of logit and noise; `drawn`
    where none has any. No logarithms are taken where the hash says that they would not be enough."""
    best = -np.inf
    for i in range(len(columns) if len(columns) else len(logits)):
        column = columns[i] if len(columns) else i
        value = np.float64(logits[column] / temperature)
        gap = best - value
        if not gap < MOST_NOISE:
            continue
        lane = lane_of(key, column)
        if gap > 0 and lane < LEAST_LANES[int(gap)]:
            continue
        value += gumbel(lane)
        if value > best:
            best, drawn = value, column
    return drawn


@compiled_in_order
def draw_row(logits: Floats, temperature: np.float32, top_k: int, top_p: np.float32, key: int) -> int:
    """Of logits [n]; top_k 0 and top_p 1 cut nothing."""
    first = largest(logits)
    if temperature == 0:
        return first
    floor = np.float32(-np.inf)
    if 0 < top_k < len(logits):
        floor = kth_largest(logits, temperature, top_k)
    columns = np.empty(0, np.int64)
    if top_p < 1:
        columns = likeliest_until(logits, temperature, floor, logits[first] / temperature, top_p)
    elif floor > -np.inf:
        columns = kept(logits, temperature, floor)
    return winner(logits, temperature, columns, key, first)


DrawJob = job_of("logits temperatures top_ks top_ps seeds positions ids", "rows width share stage codebook")


def draw_rows(pointer: Any) -> None:
    """The body of the loop."""
    job = carray(pointer, 1)[0]
    logits = floats(job.logits, job.rows, job.width)
    temperatures, top_ps = floats(job.temperatures, 1, job.rows)[0], floats(job.top_ps, 1, job.rows)[0]
    top_ks, seeds = integers(job.top_ks, 1, job.rows)[0], integers(job.seeds, 1, job.rows)[0]
    positions, ids = integers(job.positions, 1, job.rows)[0], integers(job.ids, 1, job.rows)[0]
    first = take(pointer, job.share)
    while first < job.rows:
        for row in range(first, min(first + job.share, job.rows)):
            key = counter_key(seeds[row], job.stage, positions[row], job.codebook)
            ids[row] = draw_row(logits[row], temperatures[row], top_ks[row], top_ps[row], key)
        first = take(pointer, job.share)


@cache
def draw_loop() -> Loop:
    return Loop(DrawJob, draw_rows)


class CompiledDraw:
    """Draws of n rows, each by its own parameters: all [n]; temperature 0 takes the likeliest. The loop is
    compiled when the first is made."""

    def __init__(self, temperatures: Floats, top_ks: Ints, top_ps: Floats, seeds: Ints, stage: int) -> None:
        self._held = [np.ascontiguousarray(column) for column in (temperatures, top_ks, top_ps, seeds)]
        names = "temperatures", "top_ks", "top_ps", "seeds"
        addresses = {name: held.ctypes.data for name, held in zip(names, self._held, strict=True)}
        self._job: Any = DrawJob(rows=len(seeds), stage=stage, **addresses)
        self._loop = draw_loop()

    def __call__(self, positions: Ints, logits: Tensor, codebook: int = 0) -> Tensor:
        """logits fp32 [n, vocab] of rows that have drawn `positions` int64 [n] times -> ids int64 [n]."""
        job, logits, positions = self._job, logits.contiguous(), np.ascontiguousarray(positions, np.int64)
        assert logits.dtype is torch.float32
        assert len(logits) == len(positions) == job.rows, "a row of logits and a position for each"
        ids = torch.empty(len(logits), dtype=torch.int64)
        job.logits, job.positions, job.ids = logits.data_ptr(), positions.ctypes.data, ids.data_ptr()
        job.width, job.codebook = logits.shape[1], codebook
        is_alone = job.rows == 1 or logits.numel() < ALONE_NUMEL
        job.share = job.rows if is_alone else 1
        self._loop.run(job, 1 if is_alone else torch.get_num_threads())
        return ids
