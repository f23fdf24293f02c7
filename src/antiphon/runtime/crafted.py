"""Steps made up to be measured: any mix of rows that draw and chunks of prompts, at any place of a context.

What a step computes means nothing, but it is computed as any other. A row is either within a prompt, of which
any piece may be run again and again, or it draws, at whatever place of its context it is told. Rows change
from one to the other in steps that are not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.facts import NO_INTS, Ints, StagePrompt
from antiphon.core.graph import Stage
from antiphon.core.plans import ArStep, BlockDelta, CodecStep, Join, ints
from antiphon.stage.requests import kv_groups

FEWEST_TOKENS = 16
"""Of a prompt: a stage that speaks has a header of nine."""

TOKEN_IDS = 256
"""Ids below it exist in every vocabulary and codebook."""

REASON = "profile"


class Chunk(NamedTuple):
    """Tokens [start, start + count) of a prompt.

    finishes  they are its last: the row draws
    joins     the row is handed out with this step
    """

    start: int
    count: int
    finishes: bool = False
    joins: bool = False

    @property
    def prompt_tokens(self) -> int:
        return self.start + self.count + (0 if self.finishes else FEWEST_TOKENS)


class ArMix(NamedTuple):
    """A step: rows that draw, by how much context lies before them, and chunks."""

    draws: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()


class Seat(NamedTuple):
    """What a row is amid: a prompt of so many tokens, or drawing from there on."""

    prompt_tokens: int
    draws: bool


class ArCraft:
    """Steps of one decoder stage. Row 0 and up draw, chunks take rows from the last one down."""

    def __init__(
        self, stage: Stage, config: ArConfig, rng: np.random.Generator, most_context_tokens: int
    ) -> None:
        self.config = config
        held = config.num_blocks * config.block_size
        self.reach_tokens = min(held, config.max_context_tokens or most_context_tokens)
        """The longest context."""
        self._stage = stage
        self._groups = kv_groups(stage, config)
        self._seats: dict[int, Seat] = {}
        self._ids = rng.integers(1, TOKEN_IDS, self.reach_tokens + FEWEST_TOKENS)
        self._number = count()
        self._laid_out = False

    def prepare(self, mix: ArMix) -> list[ArStep]:
        """Steps after which `step(mix)` can be run; none if it can be now."""
        steps: list[ArStep] = [] if self._laid_out else [self._lay_out()]
        news = [row for row, context in enumerate(mix.draws) if not self._draws(row, context)]
        if news:
            joins = tuple(self._join(row, FEWEST_TOKENS, 0) for row in news)
            rows = ints(news)
            columns = rows, 0 * rows, 0 * rows + FEWEST_TOKENS, 0 * rows + 1
            steps.append(self._step(joins, columns))
            self._seats |= dict.fromkeys(news, Seat(FEWEST_TOKENS, True))
        joins = tuple(
            self._join(row, chunk.prompt_tokens, chunk.start)
            for row, chunk in self._seated(mix)
            if not chunk.joins and self._seats.get(row) != Seat(chunk.prompt_tokens, False)
        )
        if joins:
            steps.append(self._step(joins, (NO_INTS, NO_INTS, NO_INTS, NO_INTS)))
        return steps

    def step(self, mix: ArMix) -> ArStep:
        """The step itself."""
        seated = self._seated(mix)
        joins = tuple(self._join(row, c.prompt_tokens, c.start) for row, c in seated if c.joins)
        rows = [*range(len(mix.draws)), *(row for row, _ in seated)]
        starts = [*mix.draws, *(chunk.start for _, chunk in seated)]
        counts = [*(1 for _ in mix.draws), *(chunk.count for _, chunk in seated)]
        emits = [*(1 for _ in mix.draws), *(int(chunk.finishes) for _, chunk in seated)]
        self._seats |= {row: Seat(chunk.prompt_tokens, True) for row, chunk in seated if chunk.finishes}
        return self._step(joins, (ints(rows), ints(starts), ints(counts), ints(emits)))

    def leave(self) -> ArStep:
        """Every row is given up."""
        rows, self._seats = ints(sorted(self._seats)), {}
        return self._step((), (NO_INTS, NO_INTS, NO_INTS, NO_INTS), leaves=rows)

    def empty(self) -> ArStep:
        """A step without anything."""
        return self._step((), (NO_INTS, NO_INTS, NO_INTS, NO_INTS))

    def _draws(self, row: int, context: int) -> bool:
        seat = self._seats.get(row)
        return seat is not None and seat.draws and seat.prompt_tokens <= context

    def _seated(self, mix: ArMix) -> list[tuple[int, Chunk]]:
        last = self.config.max_rows - 1
        return [(last - i, chunk) for i, chunk in enumerate(mix.chunks)]

    def _join(self, row: int, num_tokens: int, cached: int) -> Join:
        ids = self._ids[:num_tokens]
        self._seats[row] = Seat(num_tokens, False)
        return Join(
            row,
            row,
            StagePrompt(ids, ids, (), 0, NO_INTS),
            cached,
            self.config.sampling,
            np.zeros((0, self.config.width), np.int64),
            first_input=1 if self._stage.conditioned else None,
        )

    def _lay_out(self) -> ArStep:
        """Block tables once and for all: each row has blocks of its own as far as they go, and those of the
        rows behind it after them, since one long context at a time is enough."""
        self._laid_out = True
        config = self.config
        width = -(-self.reach_tokens // config.block_size)
        own = max(config.num_blocks // config.max_rows, 1)
        rows, index = np.divmod(np.arange(config.max_rows * width), width)
        blocks = (rows * own + index) % config.num_blocks
        deltas = tuple(BlockDelta(group, rows, index, blocks) for group in self._groups)
        return self._step((), (NO_INTS, NO_INTS, NO_INTS, NO_INTS), blocks=deltas)

    def _step(
        self,
        joins: tuple[Join, ...],
        columns: tuple[Ints, Ints, Ints, Ints],
        leaves: Ints = NO_INTS,
        blocks: tuple[BlockDelta, ...] = (),
    ) -> ArStep:
        return ArStep(
            self._stage.name, next(self._number), joins, leaves, blocks, NO_INTS, NO_INTS, *columns, REASON
        )


@dataclass(frozen=True, slots=True)
class CodecMix:
    """A step: streams by how many frames each brings, the first `joins` of them new."""

    frames: tuple[int, ...]
    joins: int = 0


class CodecCraft:
    """Steps of a vocoder of so many codebooks."""

    def __init__(self, stage: Stage, codebooks: int, rng: np.random.Generator) -> None:
        self._stage = stage
        self._codebooks = codebooks
        self._rng = rng
        self._open: set[int] = set()
        self._number = count()

    def prepare(self, mix: CodecMix) -> list[CodecStep]:
        closed = [row for row in range(mix.joins, len(mix.frames)) if row not in self._open]
        return [self._step(closed, closed, [FEWEST_TOKENS] * len(closed))] if closed else []

    def step(self, mix: CodecMix) -> CodecStep:
        return self._step([*range(mix.joins)], [*range(len(mix.frames))], [*mix.frames])

    def _step(self, joins: list[int], rows: list[int], counts: list[int]) -> CodecStep:
        self._open |= set(joins)
        frames = self._rng.integers(0, TOKEN_IDS, (sum(counts), self._codebooks))
        return CodecStep(
            self._stage.name,
            next(self._number),
            ints(joins),
            ints(rows),
            ints(rows),
            ints(counts),
            frames,
            REASON,
            ints([0] * len(rows)),
            (None,) * len(rows),
        )
