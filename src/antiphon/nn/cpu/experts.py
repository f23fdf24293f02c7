"""The picked experts of some tokens as one compiled loop: an expert's weights are read once for its tokens.

Weights are in panels (`panels`), in half the bytes where their numbers are bf16's. A token's sum runs over
its picks in their order, and each product is one chain: so its bits don't depend on the tokens beside it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor

from antiphon.nn.cpu.compiler import compiled
from antiphon.nn.cpu.openmp import Loop, copy, floats, integers, job_of, take
from antiphon.nn.cpu.panels import BLOCK_ROWS, can_lay_out, lay_out, rows_times
from antiphon.nn.cpu.rows import gate_row
from antiphon.nn.cpu.tiles import LANES

Ints = NDArray[np.int64]

ALONE_BYTES = 1 << 18
"""Weights of so many bytes are multiplied before another thread has begun."""

SORT, RUN, ADD = 1, 2, 4
"""What a call of the loop does: one thread sorts, all run, one adds up."""

Job = job_of(
    "x experts weights gate_up down order rows out",
    "work num_experts tokens picks hidden inner halves_up halves_down bytes_up bytes_down",
)
"""`experts` int64, `weights` fp32 [tokens, picks]. Scratch: `order` int64 [2 tokens * picks + num_experts],
see `scratch`, and `rows` fp32 [tokens * picks, hidden + 3 inner], see `run_expert`."""


def experts_in_panels(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor] | None:
    """gate_up fp32 [E, 2I, H] -> [E, 2I / 16, H, 16] and down [E, I, H] -> [E, H / 16, I, 16], bf16 where
    that keeps every number; None where the CPU or the sizes are others."""
    rows = gate_up[0], down[0].t()
    if not all(can_lay_out(weight) for weight in rows):
        return None
    flat = gate_up.flatten(0, 1), down.transpose(1, 2).flatten(0, 1)
    laid_out = (lay_out(weight).unflatten(0, (len(gate_up), -1)) for weight in flat)
    return next(laid_out), next(laid_out)


@compiled
def scratch(job: Any) -> tuple[Ints, Ints, Ints]:
    """Picks by expert: `order` [n], which one stands at each place; `places` [n], its inverse; `ends` [E],
    one past each expert's last place."""
    count = job.tokens * job.picks
    whole = integers(job.order, 1, 2 * count + job.num_experts)[0]
    return whole[:count], whole[count : 2 * count], whole[2 * count :]


@compiled
def sort_picks(job: Any) -> None:
    order, places, ends = scratch(job)
    experts = integers(job.experts, 1, len(order))[0]
    ends[:] = 0
    for pick in range(len(experts)):
        ends[experts[pick]] += 1
    total = 0
    for expert in range(len(ends)):
        total, ends[expert] = total + ends[expert], total
    for pick in range(len(experts)):
        place = ends[experts[pick]]
        order[place], places[pick] = pick, place
        ends[experts[pick]] = place + 1


@compiled
def run_expert(job: Any, order: Ints, expert: int, first: int, last: int) -> None:
    """The picks at the places from `first` to `last`. `rows` holds inputs by place [n, hidden], which outputs
    replace, then gates [n, 2 inner], then what is gated [n, inner]."""
    x, rows = floats(job.x, job.tokens, job.hidden), floats(job.rows, len(order), job.hidden)
    gates_at = job.rows + 4 * len(order) * job.hidden
    gated_at = gates_at + 8 * len(order) * job.inner
    gates, gated = floats(gates_at, len(order), 2 * job.inner), floats(gated_at, len(order), job.inner)
    up, down = job.gate_up + expert * job.bytes_up, job.down + expert * job.bytes_down
    while first < last:
        size = min(BLOCK_ROWS, last - first)
        source, middle = job.rows + 4 * first * job.hidden, gated_at + 4 * first * job.inner
        for place in range(first, first + size):
            copy(x[order[place] // job.picks], rows[place])
        out, width = gates_at + 8 * first * job.inner, 2 * job.inner
        rows_times(source, size, up, job.halves_up != 0, job.hidden, width // LANES, out, width)
        for place in range(first, first + size):
            gate_row(gates[place], gated[place])
        width = job.hidden
        rows_times(middle, size, down, job.halves_down != 0, job.inner, width // LANES, source, width)
        first += size


@compiled
def add_up(job: Any) -> None:
    """Of each token the outputs of its picks, in their order, times their weights."""
    order, places, _ = scratch(job)
    rows, out = floats(job.rows, len(order), job.hidden), floats(job.out, job.tokens, job.hidden)
    weights = floats(job.weights, 1, len(order))[0]
    for pick in range(len(order)):
        total, row, weight = out[pick // job.picks], rows[places[pick]], weights[pick]
        if pick % job.picks == 0:
            total[:] = np.float32(0)
        for i in range(len(total)):
            total[i] += weight * row[i]


def run_experts(pointer: Any) -> None:
    """The loop's body: an item is an expert."""
    job = carray(pointer, 1)[0]
    if job.work & SORT:
        sort_picks(job)
    order, _, ends = scratch(job)
    expert = take(pointer, 1) if job.work & RUN else job.num_experts
    while expert < job.num_experts:
        first = ends[expert - 1] if expert else 0
        if first < ends[expert]:
            run_expert(job, order, expert, first, ends[expert])
        expert = take(pointer, 1)
    if job.work & ADD:
        add_up(job)


@cache
def experts_loop() -> Loop:
    return Loop(Job, run_experts)


def times_experts(x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Weighted sum of the picked experts' outputs, as `nn.moe.run_experts`: x fp32 [n, H], experts int64 and
    weights fp32 [n, k], the others from `experts_in_panels`."""
    (tokens, picks), hidden, inner = experts.shape, gate_up.shape[2], down.shape[2]
    num_experts, count = len(gate_up), tokens * picks
    x, experts, weights = x.contiguous(), experts.contiguous(), weights.contiguous()
    order = torch.empty(2 * count + num_experts, dtype=torch.int64)
    rows, out = x.new_empty(count * (hidden + 3 * inner)), torch.empty_like(x)
    bytes_up, bytes_down = gate_up.nbytes // num_experts, down.nbytes // num_experts
    job = Job(0, *(t.data_ptr() for t in (x, experts, weights, gate_up, down, order, rows, out)))
    job.num_experts, job.tokens, job.picks, job.hidden, job.inner = num_experts, tokens, picks, hidden, inner
    job.halves_up, job.halves_down = gate_up.dtype is torch.bfloat16, down.dtype is torch.bfloat16
    job.bytes_up, job.bytes_down = bytes_up, bytes_down
    loop, threads = experts_loop(), torch.get_num_threads()
    is_alone = threads == 1 or min(count, num_experts) * (bytes_up + bytes_down) < ALONE_BYTES
    for work in (SORT | RUN | ADD,) if is_alone else (SORT, RUN, ADD):
        job.work = work
        loop.run(job, threads if work == RUN else 1)
    return out
