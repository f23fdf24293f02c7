"""Multimodal rotary positions (M-RoPE): time, height and width of every prompt token. Free of torch.

Text and audio move all three rows on by one a token. An image or video stands still in its own box: the rows
count its frames, rows and columns from the position after the text before it; what follows goes on after the
largest. A video's own sound runs beside it from the same position on, and the tokens of both are sorted by
time. Positions are floats because a video's frames may lie between integers; sums are rounded piece by piece
(text, start marks, medium, end marks) as the reference rounds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.facts import Span, StagePrompt


@dataclass(frozen=True, slots=True)
class MediumSpan:
    """A medium in a prompt: the index of its first placeholder token, the (time, height, width) grid of
    patches of an image or video (zeros for audio), for a video the seconds from one frame of the grid to the
    next, and the tokens of audio: a recording's, or those of a video's own sound.

    `chunk_ticks` is Qwen2.5's way, 0 Qwen3's: frames stand at whole positions, frames and sound take turns in
    chunks of so many positions, and the two marks before (or after) them share a position.
    """

    start: int
    grid: tuple[int, int, int]
    seconds_per_frame: float = 1.0
    merge_size: int = 2
    audio_tokens: int = 0
    chunk_ticks: int = 0

    @property
    def visual_tokens(self) -> int:
        time, height, width = self.grid
        return time * height * width // self.merge_size**2

    @property
    def num_tokens(self) -> int:
        return self.visual_tokens + self.audio_tokens

    @property
    def num_marks(self) -> int:
        """Tokens that open it, and as many that close it."""
        return 2 if self.visual_tokens and self.audio_tokens else 1

    def moved_to(self, start: int) -> MediumSpan:
        """The span at another place of a prompt."""
        return replace(self, start=start)

    def order(self, positions_per_second: int) -> NDArray[np.int64]:
        """int64 [num_tokens]: which token stands at each place, counting those of the frames first and then
        those of the sound. Sorted by time (or chunk), frames first on ties.
        """
        frames = np.arange(self.grid[0]) * self.seconds_per_frame * positions_per_second
        visual = np.repeat(frames, self.visual_tokens // max(self.grid[0], 1))
        sound = np.arange(self.audio_tokens)
        if self.chunk_ticks:
            visual, sound = chunk_numbers(visual, self.chunk_ticks), chunk_numbers(sound, self.chunk_ticks)
        return np.concatenate([visual, sound]).argsort(kind="stable")

    def positions(self, positions_per_second: int) -> NDArray[np.float32]:
        """fp32 [3, num_tokens], counted from 0, frames first and then sound."""
        time, height, width = self.grid[0], self.grid[1] // self.merge_size, self.grid[2] // self.merge_size
        frames = np.arange(time, dtype=np.float32) * np.float32(self.seconds_per_frame)
        times = frames * np.float32(positions_per_second)
        axes = (np.floor(times) if self.chunk_ticks else times, np.arange(height), np.arange(width))
        visual = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
        sound = np.broadcast_to(np.arange(self.audio_tokens), (3, self.audio_tokens))
        return np.concatenate([visual, sound], 1).astype(np.float32)


def chunk_numbers(ticks: NDArray[Any], chunk_ticks: int) -> NDArray[np.int64]:
    """int64 [n]: the chunk of each token by its tick, ascending. As in the reference, a token begins at most
    one chunk, however far it is from the token before it.
    """
    numbers, current = np.empty(len(ticks), np.int64), 0
    for i, tick in enumerate(ticks.tolist()):
        current += tick >= (current + 1) * chunk_ticks
        numbers[i] = current
    return numbers


NO_GRID = 0, 0, 0


@dataclass(frozen=True, slots=True)
class Scale:
    """How a prompt's media become positions: patches a side that make a token, positions of a second, and of
    a chunk (see `MediumSpan`)."""

    merge_size: int
    positions_per_second: int
    chunk_ticks: int = 0

    def span(self, span: Span) -> MediumSpan:
        """The span as positions see it."""
        audio = span.length if span.kind == "audio" else span.audio_length
        grid = span.grid or NO_GRID
        return MediumSpan(span.start, grid, span.seconds_per_grid, self.merge_size, audio, self.chunk_ticks)

    def positions(
        self, prompt: StagePrompt, spans: Iterable[Span] | None = None
    ) -> tuple[NDArray[np.float32], float]:
        """Of a prompt with these of its spans, or with all."""
        told = [self.span(span) for span in (prompt.spans if spans is None else spans)]
        return mrope_positions(len(prompt.token_ids), told, self.positions_per_second)


def mrope_positions(
    num_tokens: int, spans: Sequence[MediumSpan] = (), positions_per_second: int = 13
) -> tuple[NDArray[np.float32], float]:
    """Positions fp32 [3, num_tokens] of a prompt and the position of the token that follows it.

    While decoding, the token at cache index i stands at i + (next position - num_tokens) on all three rows.
    """
    out = np.empty((3, num_tokens), np.float32)
    done, marks, shared, position = 0, 0, False, np.float32(0)
    for span in sorted(spans, key=lambda span: span.start):
        if span.start < done or span.start + span.num_tokens > num_tokens:
            raise ValueError(
                f"{span} doesn't fit a prompt of {num_tokens} tokens, of which {done} are placed"
            )
        closed = min(done + marks, span.start)
        opened = max(closed, span.start - span.num_marks)
        shares = span.chunk_ticks > 0
        position = place_text(out[:, done:closed], position, together=shared)
        position = place_text(out[:, closed:opened], position)
        position = place_text(out[:, opened : span.start], position, together=shares)
        done, marks, shared = span.start + span.num_tokens, span.num_marks, shares
        position = place_media(out[:, span.start : done], span, position, positions_per_second)
    closed = min(done + marks, num_tokens)
    position = place_text(out[:, done:closed], position, together=shared)
    position = place_text(out[:, closed:], position)
    return out, float(out.max() + np.float32(1)) if num_tokens else 0.0


def place_media(
    out: NDArray[np.float32], span: MediumSpan, position: np.float32, positions_per_second: int
) -> np.float32:
    """Fill `out` [3, span.num_tokens]; returns where to go on.

    Where frames and sound are sorted into one another, that is after the run that ends them: after the frames
    if the sound is over first, and after the sound although frames may reach further down or to the right.
    """
    order = span.order(positions_per_second)
    out[:] = span.positions(positions_per_second)[:, order] + position
    visual = order < span.visual_tokens
    others = np.flatnonzero(visual != visual[-1])
    run = others[-1] + 1 if len(others) else 0
    return out[:, run:].max() + np.float32(1)


def place_text(out: NDArray[np.float32], position: np.float32, *, together: bool = False) -> np.float32:
    """Fill `out` [3, n] with consecutive positions from `position` on, or all with this one; returns what
    comes next.
    """
    count = out.shape[1]
    if together:
        out[:] = position
        return position + np.float32(min(count, 1))
    out[:] = np.arange(count, dtype=np.float32) + position
    return position + np.float32(count)
