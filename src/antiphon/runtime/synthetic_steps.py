"""Steps made up to be measured: any mix of rows that draw and chunks of prompts, at any place of a context.

What a step computes means nothing, but it is computed as any other. A row is either within a prompt, of which
any piece may be run again and again, or it draws, at whatever place of its context it is told. Rows change
from one to the other in steps that are not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import NamedTuple

import numpy as np

from antiphon.core.config import ArConfig, EncoderConfig
from antiphon.core.conversation import AudioPart, ImagePart, Media
from antiphon.core.facts import NO_INTS, Ints, Span, StagePrompt
from antiphon.core.graph import Stage
from antiphon.core.plans import ArStep, BlockDelta, CodecStep, Join, ints
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ
from antiphon.stage.requests import kv_groups

FEWEST_TOKENS = 16
"""Of a prompt: a stage that speaks has a header of nine."""

TOKEN_IDS = 256
"""Ids below it exist in every vocabulary and codebook."""

MOST_CONTEXT_TOKENS = 2000
"""Of rows in a step of many; one row alone is measured up to the longest context."""

MOST_CHUNKS = 3

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


class SyntheticRow(NamedTuple):
    """What a row is amid: a prompt of so many tokens, or drawing from there on."""

    prompt_tokens: int
    draws: bool


class ArSynthesis:
    """Steps of one decoder stage. Row 0 and up draw, chunks take rows from the last one down."""

    def __init__(
        self,
        stage: Stage,
        config: ArConfig,
        rng: np.random.Generator,
        most_context_tokens: int,
        medium: int | None = None,
    ) -> None:
        """medium: key of one that is encoded, which all rows attend to where the stage transcribes."""
        self.config = config
        held = config.num_blocks * config.block_size
        self.reach_tokens = min(held, config.max_context_tokens or most_context_tokens)
        """The longest context."""
        self._stage = stage
        self._groups = kv_groups(stage, config)
        self._seats: dict[int, SyntheticRow] = {}
        self._ids = rng.integers(1, TOKEN_IDS, self.reach_tokens + FEWEST_TOKENS)
        self._number = count()
        self._laid_out = False
        self._medium = medium

    def prepare(self, mix: ArMix) -> list[ArStep]:
        """Steps after which `step(mix)` can be run; none if it can be now."""
        steps: list[ArStep] = [] if self._laid_out else [self._lay_out()]
        news = [row for row, context in enumerate(mix.draws) if not self._draws(row, context)]
        if news:
            joins = tuple(self._join(row, FEWEST_TOKENS, 0) for row in news)
            rows = ints(news)
            columns = rows, 0 * rows, 0 * rows + FEWEST_TOKENS, 0 * rows + 1
            steps.append(self._step(joins, columns))
            self._seats |= dict.fromkeys(news, SyntheticRow(FEWEST_TOKENS, True))
        joins = tuple(
            self._join(row, chunk.prompt_tokens, chunk.start)
            for row, chunk in self._seated(mix)
            if not chunk.joins and self._seats.get(row) != SyntheticRow(chunk.prompt_tokens, False)
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
        self._seats |= {
            row: SyntheticRow(chunk.prompt_tokens, True) for row, chunk in seated if chunk.finishes
        }
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
        self._seats[row] = SyntheticRow(num_tokens, False)
        spans = () if self._medium is None else (Span(self._medium, "audio", 0, num_tokens),)
        return Join(
            row,
            row,
            StagePrompt(ids, ids, spans, 0, NO_INTS),
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


class CodecSynthesis:
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


def doublings(most: int) -> tuple[int, ...]:
    """1, 2, 4 ... and `most`."""
    return *(2**i for i in range(most.bit_length()) if 2**i < most), most


def contexts(craft: ArSynthesis) -> tuple[int, ...]:
    most = usual_context(craft)
    return tuple(sorted({FEWEST_TOKENS, min(128, most), min(512, most), most}))


def usual_context(craft: ArSynthesis) -> int:
    return min(MOST_CONTEXT_TOKENS, craft.reach_tokens - 1)


def drawing(craft: ArSynthesis) -> Iterator[ArMix]:
    """Rows that draw, over rows and contexts, and one at the end of the longest context."""
    for rows in doublings(craft.config.max_rows):
        for context in contexts(craft):
            yield ArMix((context,) * rows)
    yield ArMix((craft.reach_tokens - 1,))


def chunking(craft: ArSynthesis, knots: tuple[int, ...]) -> Iterator[ArMix]:
    """One chunk: at the start, of each knot's length; of some lengths, far behind it; with its row's join."""
    most = most_tokens(craft)
    yield from (ArMix(chunks=(Chunk(0, n),)) for n in knots if n > 1)
    for tokens in sorted({min(n, most) for n in (32, 128, 512)}):
        for start in contexts(craft)[1:]:
            yield ArMix(chunks=(Chunk(min(start, craft.reach_tokens - 1 - tokens), tokens),))
    for tokens in sorted({min(n, most) for n in (16, 48, 128, 384)}):
        for joins in (True, False):
            yield ArMix(chunks=(Chunk(0, tokens, True, joins),))
    far = min(128, most)
    yield ArMix(chunks=(Chunk(craft.reach_tokens - 1 - far, far),))


def most_tokens(craft: ArSynthesis) -> int:
    """The longest chunk: a step's tokens, within a context."""
    return min(craft.config.step_tokens, craft.reach_tokens - 1)


def drawn_mix(craft: ArSynthesis, rng: np.random.Generator) -> ArMix:
    """A step as they come: rows that draw somewhere in their replies, beside a few chunks of prompts."""
    most_rows, budget = craft.config.max_rows, craft.config.step_tokens
    most_chunks = min(MOST_CHUNKS, most_rows)
    num_chunks = int(rng.integers(0, most_chunks + 1)) if rng.random() < 0.6 else 0
    fewest = 0 if num_chunks else 1
    num_draws = int(rng.integers(fewest, min(most_rows - num_chunks, budget) + 1))
    draws = tuple(log_uniform(rng, FEWEST_TOKENS, usual_context(craft)) for _ in range(num_draws))
    chunks: list[Chunk] = []
    left = budget - num_draws
    for _ in range(num_chunks):
        if left < FEWEST_TOKENS:
            break
        tokens = log_uniform(rng, FEWEST_TOKENS, min(left, most_tokens(craft)))
        start = int(rng.integers(0, usual_context(craft) - tokens + 1)) if rng.random() < 0.5 else 0
        chunks.append(Chunk(start, tokens, rng.random() < 0.5, rng.random() < 0.5))
        left -= tokens
    return ArMix(draws, tuple(chunks))


def log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(max(high, low)))))


def decoding(max_rows: int, chunk: int) -> Iterator[CodecMix]:
    """Streams of equal chunks, going on and new."""
    for streams in doublings(max_rows):
        for frames in sorted({1, 2, chunk // 2, chunk} - {0}):
            yield CodecMix((frames,) * streams)
        yield CodecMix((chunk,) * streams, streams)


def drawn_decoding(max_rows: int, chunks: tuple[int, int], rng: np.random.Generator) -> CodecMix:
    """Streams as they come: some new with their first chunk, most with a chunk, few with a reply's rest."""
    first, chunk = chunks
    streams = int(rng.integers(1, max_rows + 1))
    joins = int(rng.binomial(streams, 0.2))
    rest = [int(rng.integers(1, chunk + 1)) if rng.random() < 0.1 else chunk for _ in range(streams - joins)]
    return CodecMix((first,) * joins + tuple(rest), joins)


@dataclass(frozen=True, slots=True)
class Senses:
    """What encoders take: recordings of at most so many seconds, and pictures if they `see`."""

    longest_s: float = inf
    sees: bool = True


ALL_SENSES = Senses()


def media_alone(rng: np.random.Generator, senses: Senses = ALL_SENSES) -> Iterator[tuple[Media, ...]]:
    """Recordings and pictures over their sizes, alone and several of a kind."""
    for seconds in (0.5, 1.0, 2.0, 4.0, 8.0, 15.0):
        if seconds <= senses.longest_s:
            yield (recording(rng, seconds),)
    spoken_s = min(3.0, senses.longest_s)
    if not senses.sees:
        yield from (tuple(recording(rng, spoken_s) for _ in range(num)) for num in (2, 4))
        return
    for size in ((64, 64), (128, 128), (256, 256), (384, 256), (512, 512)):
        yield (picture(rng, *size),)
    for num in (2, 4):
        yield tuple(recording(rng, 3.0) for _ in range(num))
        yield tuple(picture(rng, 192, 192) for _ in range(num))
    yield recording(rng, 3.0), picture(rng, 192, 192)


def drawn_media(
    config: EncoderConfig, rng: np.random.Generator, senses: Senses = ALL_SENSES
) -> tuple[Media, ...]:
    """A step as they come: mostly turns of speech, some with pictures."""

    def one() -> Media:
        if rng.random() < 0.3 and senses.sees:
            width, height = (32 * int(rng.integers(2, 15)) for _ in range(2))
            return picture(rng, width, height)
        return recording(rng, min(float(rng.uniform(0.6, 10.0)), senses.longest_s))

    return tuple(one() for _ in range(int(rng.integers(1, config.step_media + 1))))


def recording(rng: np.random.Generator, seconds: float) -> AudioPart:
    samples = rng.normal(0.0, 0.1, int(seconds * MODEL_SAMPLE_RATE_HZ)).astype(np.float32)
    return AudioPart.of(samples.tobytes())


def picture(rng: np.random.Generator, width: int, height: int) -> ImagePart:
    return ImagePart.of(rng.integers(0, 256, width * height * 3, np.uint8).tobytes(), width, height)
