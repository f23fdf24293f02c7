"""Multimodal rotary positions (M-RoPE): time, height and width of every prompt token. Free of torch.

Text and audio move all three rows on by one a token. An image or video stands still in its own box: the rows
count its frames, rows and columns from the position after the text before it; what follows goes on after the
largest. Positions are floats because a video's frames may lie between integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Span:
    """An image or video in a prompt: the index of its first placeholder token, its (time, height, width) grid
    of patches, and for a video the seconds from one frame of the grid to the next.
    """

    start: int
    grid: tuple[int, int, int]
    seconds_per_frame: float = 1.0
    merge_size: int = 2

    @property
    def num_tokens(self) -> int:
        time, height, width = self.grid
        return time * height * width // self.merge_size**2

    def moved_to(self, start: int) -> Span:
        """The same in another prompt."""
        return replace(self, start=start)

    def positions(self, positions_per_second: int) -> NDArray[np.float32]:
        """fp32 [3, num_tokens], counted from 0."""
        time, height, width = self.grid[0], self.grid[1] // self.merge_size, self.grid[2] // self.merge_size
        frames = np.arange(time, dtype=np.float32) * np.float32(self.seconds_per_frame)
        axes = (frames * np.float32(positions_per_second), np.arange(height), np.arange(width))
        return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")]).astype(np.float32)


def mrope_positions(
    num_tokens: int, spans: Sequence[Span] = (), positions_per_second: int = 13
) -> tuple[NDArray[np.float32], float]:
    """Positions fp32 [3, num_tokens] of a prompt and the position of the token that follows it.

    While decoding, the token at cache index i stands at i + (next position - num_tokens) on all three rows.
    """
    out = np.empty((3, num_tokens), np.float32)
    done, position = 0, np.float32(0)
    for span in sorted(spans, key=lambda span: span.start):
        if span.start < done or span.start + span.num_tokens > num_tokens:
            raise ValueError(
                f"{span} doesn't fit a prompt of {num_tokens} tokens, of which {done} are placed"
            )
        position = place_text(out[:, done : span.start], position)
        done = span.start + span.num_tokens
        box = span.positions(positions_per_second) + position
        out[:, span.start : done] = box
        position = box.max() + np.float32(1)
    position = place_text(out[:, done:], position)
    return out, float(position)


def place_text(out: NDArray[np.float32], position: np.float32) -> np.float32:
    """Fill `out` [3, n] with consecutive positions from `position` on; returns the next one."""
    count = out.shape[1]
    out[:] = np.arange(count, dtype=np.float32) + position
    return position + np.float32(count)
