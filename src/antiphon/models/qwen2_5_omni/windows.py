"""How token2wav cuts a reply: windows of codes, of which the middle sounds. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKS_BACK, BLOCKS_AHEAD = 3, 2
"""What is heard then differs from one decode of the whole reply by 6e-5 of its loudness (84 dB below it), on
random weights; by 2.5e-4 with 2 blocks back, by 3e-6 with 4 back and 3 ahead. Ahead costs latency, back only
work."""

NUM_TIMES = 10
NUM_EVALUATIONS = 4 * (NUM_TIMES - 1)
"""Of the transformer a window: the solver takes four between two times."""


@dataclass(frozen=True, slots=True)
class Window:
    """Codes [start, end) of a reply; what sounds of them is [done, upto)."""

    start: int
    end: int
    done: int
    upto: int


def next_window(done: int, known: int, per_block: int, *, is_last: bool) -> Window | None:
    """What to decode when `done` codes have sounded and `known` are there; None: nothing is sure yet."""
    upto = known if is_last else max(known // per_block - BLOCKS_AHEAD, 0) * per_block
    if upto <= done:
        return None
    start = max(0, done - BLOCKS_BACK * per_block)
    return Window(start, min(known, upto + BLOCKS_AHEAD * per_block), done, upto)
