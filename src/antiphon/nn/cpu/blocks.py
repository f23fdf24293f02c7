"""Attention of one token over blocks of keys and values, on CPUs with tiles: sixteen keys at a time.

Keys are padded to sixteen with what else lies in their block: any finite numbers, whose scores are not used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.nn.cpu.attention_tiles import HEAD_VECTORS, REGISTER, VECTOR_BYTES, dots, highest, mixed
from antiphon.nn.cpu.compiler import compiled, lanes_of_registers
from antiphon.nn.cpu.openmp import floats, integers
from antiphon.nn.cpu.rows import exp
from antiphon.nn.cpu.tiles import LINE_BYTES, prefetch_line

Floats = NDArray[np.float32]

TOGETHER = 16
"""Keys that are used at a time: they lie in one block."""

PART = VECTOR_BYTES * HEAD_VECTORS
"""Bytes of a head that are mixed at a time."""

dots1, dots2 = dots(1), dots(2)
mixed1, mixed2 = mixed(1), mixed(2)
highest_of = highest()


def can_take(block_size: int, dim: int) -> bool:
    """Whether this CPU has tiles, and blocks and heads have the sizes."""
    return lanes_of_registers() > 0 and block_size % TOGETHER == 0 and 4 * dim % PART == 0


@compiled
def place_of(job: Any, row: int, key: int, first: int) -> int:
    """Bytes from the start of the pages to head `first` of a row's key."""
    block = integers(job.tables, job.num_rows, job.width)[row, key // job.block_size]
    return ((block * job.block_size + key % job.block_size) * job.kv_heads + first) * job.dim * 4


@compiled
def score_head(q: int, group: int, dim: int, keys: int, stride: int, scores: int, width: int) -> None:
    """scores [group, 16] of q [group, dim], addresses, with sixteen keys of one head."""
    head = 0
    while head + 2 <= group:
        query, out = q + 4 * head * dim, scores + head * width
        for key in range(0, TOGETHER, REGISTER // 2):
            dots2(query, keys + key * stride, stride, dim, out + 4 * key, width)
        head += 2
    if head < group:
        query, out = q + 4 * head * dim, scores + head * width
        for key in range(0, TOGETHER, REGISTER):
            dots1(query, keys + key * stride, stride, dim, out + 4 * key, width)


@compiled
def fetch(place: int, stride: int, head_bytes: int) -> None:
    """Ask for one head of sixteen keys or values, `stride` apart."""
    for key in range(place, place + TOGETHER * stride, stride):
        for line in range(key, key + head_bytes, LINE_BYTES):
            prefetch_line(line)


@compiled
def mix_head(
    shares: int, width: int, group: int, values: int, stride: int, count: int, out: int, head_bytes: int
) -> None:
    """out [group, dim], addresses, grows by `count` values of one head."""
    for part in range(0, head_bytes, PART):
        head = 0
        while head + 2 <= group:
            place = out + head * head_bytes + part
            mixed2(shares + head * width, width, values + part, stride, count, place, head_bytes)
            head += 2
        if head < group:
            place = out + head * head_bytes + part
            mixed1(shares + head * width, width, values + part, stride, count, place, head_bytes)


@compiled
def softmax(scores: Floats, seen: int, scale: np.float32) -> None:
    """Of the first `seen` scores [keys] times scale, in place; what is beyond them means nothing."""
    scores[seen:] = -np.inf
    highest, total = highest_of(scores.ctypes.data, len(scores)), np.float32(0)
    for p in range(seen):
        scores[p] = exp((scores[p] - highest) * scale)
    for p in range(seen):
        total += scores[p]
    whole = np.float32(1) / total
    for p in range(seen):
        scores[p] *= whole


@compiled
def attend_blocks(job: Any, token: int, row: int, seen: int, first: int) -> None:
    """Query heads of one token that belong to the KV heads from `first` on, over its first `seen` keys."""
    group, head_bytes = job.heads // job.kv_heads, 4 * job.dim
    stride = job.kv_heads * head_bytes
    start = (token * job.heads + first * group) * job.dim
    padded = (seen + TOGETHER - 1) // TOGETHER * TOGETHER
    scores = np.empty((job.share * group, padded), np.float32)
    address, width = scores.ctypes.data, 4 * padded
    for key in range(0, padded, TOGETHER):
        keys = job.keys + place_of(job, row, key, first)
        if key + TOGETHER < padded:
            following = job.keys + place_of(job, row, key + TOGETHER, first)
        else:
            following = job.values + place_of(job, row, 0, first)
        for k in range(job.share):
            fetch(following + k * head_bytes, stride, head_bytes)
            q, out = job.q + 4 * (start + k * group * job.dim), address + k * group * width + 4 * key
            score_head(q, group, job.dim, keys + k * head_bytes, stride, out, width)
    for h in range(len(scores)):
        softmax(scores[h], seen, job.scale)
    mix_blocks(job, token, row, seen, first, scores)


@compiled
def mix_blocks(job: Any, token: int, row: int, seen: int, first: int, scores: Floats) -> None:
    """The values of these keys by their shares. `scores` are the caller's for all of it: compiled code frees
    an array after its last use, and an address is none."""
    group, head_bytes = job.heads // job.kv_heads, 4 * job.dim
    stride = job.kv_heads * head_bytes
    start = (token * job.heads + first * group) * job.dim
    padded = scores.shape[1]
    address, width = scores.ctypes.data, 4 * padded
    floats(job.out + 4 * start, 1, job.share * group * job.dim)[:] = np.float32(0)
    for key in range(0, padded, TOGETHER):
        values = job.values + place_of(job, row, key, first)
        following = job.values + place_of(job, row, min(key + TOGETHER, padded - TOGETHER), first)
        for k in range(job.share):
            fetch(following + k * head_bytes, stride, head_bytes)
            shares, out = address + k * group * width + 4 * key, job.out + 4 * (start + k * group * job.dim)
            count = min(TOGETHER, seen - key)
            mix_head(shares, width, group, values + k * head_bytes, stride, count, out, head_bytes)
