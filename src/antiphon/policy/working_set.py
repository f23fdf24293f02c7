"""Which replies have the device for an interval (TokenFlow §4.2.2): what each would gain, and as many as fit,
the highest gain first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.facts import Floats, Ints, Mask
from antiphon.policy.base import LATENCY, StepView

MOST_SWAPS = 16
"""Candidates on either side of the cut that are looked at for swaps."""


class Numbers:
    """Some requests, in order and each once, that are looked for in columns."""

    def __init__(self, requests: Ints) -> None:
        self._requests = requests
        self._order = requests.argsort()
        self._sorted = requests[self._order]

    @cached_property
    def requests(self) -> dict[int, None]:
        return dict.fromkeys(self._requests.tolist())

    def places(self, requests: Ints) -> Ints:
        """Of each of these, its place in the order; -1: it is none of them. [n]."""
        if not len(self._sorted):
            return np.full(len(requests), -1, np.int64)
        at = np.minimum(self._sorted.searchsorted(requests), len(self._sorted) - 1)
        return np.where(self._sorted[at] == requests, self._order[at], -1)


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided at a tick.

    gives_way  requests with a row that lose it
    resumes    those without one that are to get it, the first first
    """

    tick: int
    gives_way: Numbers
    resumes: Numbers


@dataclass(slots=True)
class Gains:
    """What running for an interval is worth (eq. 3), and what it takes: [n] each.

    gain    of running against staying out
    blocks  that it holds by the end of the interval
    """

    gain: Floats
    blocks: Ints


def by_age(view: StepView, among: Mask) -> Ints:
    """Indices, the oldest first, and those that a person waits for before all others."""
    at = among.nonzero()[0]
    return at[np.lexsort((-np.fmax(view.age_s[at], 0.0), view.tier[at] != LATENCY))]


def by_gain(view: StepView, among: Mask, gains: Gains) -> Ints:
    """Indices, the highest gain first; among equals those whose reader has begun, and then the oldest."""
    at = among.nonzero()[0]
    age_s = np.fmax(view.age_s[at], 0.0)
    thousandths = np.rint(gains.gain[at] * 1000)
    return at[np.lexsort((-age_s, -2 * thousandths - view.begun[at]))]


def chosen_of(view: StepView, fixed: Mask, rank: Ints, gains: Gains, swaps: bool) -> Mask:
    """Greedy, as far as the device has blocks and rows; then (`swaps`) swaps across the cut: [n]. fixed: [n],
    those that are chosen already; rank: indices of others, the first first."""
    chosen = fixed.copy()
    room = view.num_blocks - int(gains.blocks[fixed].sum())
    rows = view.num_rows + view.num_free_rows + view.num_pending_rows - int(np.count_nonzero(fixed))
    wanted = gains.blocks[rank]
    fits = wanted.cumsum() <= room
    fits[max(rows, 0) :] = False
    num = len(fits) if fits.all() else int(fits.argmin())
    left = rank[num:]
    chosen[rank[:num]] = True
    last: list[int] = rank[:num][-MOST_SWAPS:].tolist()
    room, rows = room - int(wanted[:num].sum()), rows - num
    for at in left[gains.blocks[left] <= room].tolist() if rows > 0 else ():
        blocks = int(gains.blocks[at])
        if blocks <= room and rows > 0:
            chosen[at] = True
            last.append(at)
            room, rows = room - blocks, rows - 1
    if swaps:
        out: list[int] = left[~chosen[left]][:MOST_SWAPS].tolist()
        last = last[-MOST_SWAPS:]
        chosen[last] = False
        _swap(last, out, room, gains)
        chosen[last] = True
    return chosen


def _swap(taken: list[int], left: list[int], room: int, gains: Gains) -> None:
    """What was too large to fit takes the place of what is worth less, where that makes room enough."""
    blocks, gain = gains.blocks, gains.gain
    for out in left:
        for index in range(len(taken) - 1, -1, -1):
            at = taken[index]
            if gain[at] >= gain[out]:
                break
            if blocks[out] <= room + blocks[at]:
                room += int(blocks[at] - blocks[out])
                taken[index] = out
                break
