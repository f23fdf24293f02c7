"""The executing half of a row table: block tables as ordered, prompts while they run, a step's flat batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.facts import Ints
from antiphon.core.plans import ArStep
from antiphon.nn.attention import PagedBatch
from antiphon.nn.uploads import upload


class BlockTables:
    """Per KV group an int64 array [max_rows, max_blocks], kept up by each step's block deltas."""

    def __init__(self, groups: tuple[str, ...], max_rows: int, max_blocks: int, block_size: int) -> None:
        self._tables = {group: np.zeros((max_rows, max_blocks), np.int64) for group in groups}
        self.block_size = block_size

    def apply(self, step: ArStep) -> None:
        for delta in step.blocks:
            self._tables[delta.group][delta.rows, delta.index] = delta.blocks

    def batch(self, group: str, step: ArStep, device: torch.device) -> PagedBatch:
        """The flat batch of a step in one group."""
        return self.batches((group,), (step.rows, step.starts, step.counts), device)[group]

    def batches(
        self, groups: tuple[str, ...], columns: tuple[Ints, Ints, Ints], device: torch.device
    ) -> dict[str, PagedBatch]:
        """The flat batch over columns (rows, starts, counts), once a group."""
        rows, starts, counts = columns
        # whole tables are as wide as the pool has blocks
        width = -(-int((starts + counts).max(initial=0)) // self.block_size)
        tables = {group: self._tables[group][:, :width][rows] for group in groups}
        first = PagedBatch.build(counts.tolist(), starts.tolist(), tables[groups[0]], self.block_size, device)
        rest = {group: first.retabled(tables[group]) for group in groups[1:]}
        return {groups[0]: first, **rest}

    def batch_of_no_request(
        self, groups: tuple[str, ...], num_rows: int, device: torch.device
    ) -> dict[str, PagedBatch]:
        """The flat batch of so many rows of no request, one token each, all in the first block."""
        none, one = np.zeros(num_rows, np.int64), np.ones(num_rows, np.int64)
        tables = np.zeros((num_rows, 1), np.int64)
        first = PagedBatch.build(one.tolist(), none.tolist(), tables, self.block_size, device)
        return dict.fromkeys(groups, first)

    def slots(self, group: str, row: int, positions: Ints) -> Ints:
        """Flat slots of a row's token positions."""
        blocks = self._tables[group][row, positions // self.block_size]
        return blocks * self.block_size + positions % self.block_size


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions [start, start + count) of a row's prompt, and of what it drew before it joined, at
    [first, first + count) of the flat batch."""

    row: int
    start: int
    count: int
    first: int

    @property
    def prompt(self) -> slice:
        return slice(self.start, self.start + self.count)

    @property
    def flat(self) -> slice:
        return slice(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True)
class FlatStep:
    """A step's tokens side by side: pieces of prompts, and one token of every other row.

    size         tokens in all
    decoding     int64, rows past all that they joined with, one token each
    decoding_at  int64, where in the flat batch those tokens are
    starts       int64, which position of its row each of them is
    """

    size: int
    pieces: list[Piece]
    decoding: Ints
    decoding_at: Ints
    starts: Ints

    @property
    def is_decode(self) -> bool:
        """Every row has one token, past its prompt: the flat batch is `decoding`, in order."""
        return not self.pieces


def drawing_tokens(flat: FlatStep, step: ArStep, device: torch.device) -> tuple[Tensor | None, Ints]:
    """The tokens of the flat batch that are drawn after, int64 [m] or None for all, and their rows."""
    if flat.is_decode and step.emits.all():
        return None, step.rows
    emits = np.flatnonzero(step.emits)
    return upload((step.counts.cumsum() - 1)[emits], device), step.rows[emits]


class PromptRows:
    """What a row's prompt says about positions: its length, and what drawn tokens add to a cache index.

    Positions are fp32, exact up to 2^24 tokens.
    """

    def __init__(self, max_rows: int) -> None:
        self.lengths = np.zeros(max_rows, np.int64)
        self._ends = np.zeros(max_rows, np.int64)
        """Lengths of the prompts with what was drawn before the rows joined."""
        self._offsets = np.zeros(max_rows, np.float32)
        self._positions: dict[int, NDArray[np.float32]] = {}

    def join(self, row: int, prompt: tuple[NDArray[np.float32], float], drawn: int) -> None:
        """A prompt's positions fp32 [3, n] with that of the token after it, and how many followed it."""
        positions, following = prompt
        length = positions.shape[1]
        after = np.broadcast_to(following + np.arange(drawn, dtype=np.float32), (3, drawn))
        self._positions[row] = np.concatenate([positions, after], 1)
        self.lengths[row] = length
        self._ends[row] = length + drawn
        self._offsets[row] = following - length

    def shorten(self, row: int, end: int) -> None:
        """What was shown of a row behind this token may not be what it draws."""
        self._ends[row] = end

    def forget(self, rows: Iterable[int]) -> None:
        """These rows' prompts have run, or are gone."""
        for row in rows:
            self._positions.pop(row, None)

    def flatten(self, step: ArStep) -> FlatStep:
        firsts = step.counts.cumsum() - step.counts
        prefilling = step.starts < self._ends[step.rows]
        if not prefilling.any():
            return FlatStep(len(step.rows), [], step.rows, firsts, step.starts)
        columns = (step.rows, step.starts, step.counts, firsts)
        pieces = [Piece(*values) for values in zip(*(c[prefilling].tolist() for c in columns), strict=True)]
        rows, starts, _, at = (column[~prefilling] for column in columns)
        return FlatStep(int(step.counts.sum()), pieces, rows, at, starts)

    def positions(self, flat: FlatStep) -> NDArray[np.float32]:
        """fp32 [3, n]."""
        out = np.empty((3, flat.size), np.float32)
        following = flat.starts.astype(np.float32) + self._offsets[flat.decoding]
        if flat.is_decode:
            out[:] = following
            return out
        out[:, flat.decoding_at] = following
        for piece in flat.pieces:
            out[:, piece.flat] = self._positions[piece.row][:, piece.prompt]
        return out

    def finished(self, flat: FlatStep) -> list[int]:
        """Rows that have computed all that they joined with once this step is done."""
        return [p.row for p in flat.pieces if p.start + p.count == self._ends[p.row]]
