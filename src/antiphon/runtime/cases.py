"""What a profile measures of each kind of stage: a grid that tells the parts of a model apart, and steps
drawn at random, some of which are held out to judge the fit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphon.core.config import EncoderConfig
from antiphon.core.conversation import AudioPart, ImagePart, Media
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ
from antiphon.runtime.crafted import FEWEST_TOKENS, ArCraft, ArMix, Chunk, CodecMix

MOST_CONTEXT_TOKENS = 2000
"""Of rows in a step of many; one row alone is measured up to the longest context."""

MOST_CHUNKS = 3


def doublings(most: int) -> tuple[int, ...]:
    """1, 2, 4 ... and `most`."""
    return *(2**i for i in range(most.bit_length()) if 2**i < most), most


def contexts(craft: ArCraft) -> tuple[int, ...]:
    most = usual_context(craft)
    return tuple(sorted({FEWEST_TOKENS, min(128, most), min(512, most), most}))


def usual_context(craft: ArCraft) -> int:
    return min(MOST_CONTEXT_TOKENS, craft.reach_tokens - 1)


def drawing(craft: ArCraft) -> Iterator[ArMix]:
    """Rows that draw, over rows and contexts, and one at the end of the longest context."""
    for rows in doublings(craft.config.max_rows):
        for context in contexts(craft):
            yield ArMix((context,) * rows)
    yield ArMix((craft.reach_tokens - 1,))


def chunking(craft: ArCraft, knots: tuple[int, ...]) -> Iterator[ArMix]:
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


def most_tokens(craft: ArCraft) -> int:
    """The longest chunk: a step's tokens, within a context."""
    return min(craft.config.step_tokens, craft.reach_tokens - 1)


def drawn_mix(craft: ArCraft, rng: np.random.Generator) -> ArMix:
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


def media_alone(rng: np.random.Generator) -> Iterator[tuple[Media, ...]]:
    """Recordings and pictures over their sizes, alone and several of a kind."""
    for seconds in (0.5, 1.0, 2.0, 4.0, 8.0, 15.0):
        yield (recording(rng, seconds),)
    for size in ((64, 64), (128, 128), (256, 256), (384, 256), (512, 512)):
        yield (picture(rng, *size),)
    for count in (2, 4):
        yield tuple(recording(rng, 3.0) for _ in range(count))
        yield tuple(picture(rng, 192, 192) for _ in range(count))
    yield recording(rng, 3.0), picture(rng, 192, 192)


def drawn_media(config: EncoderConfig, rng: np.random.Generator) -> tuple[Media, ...]:
    """A step as they come: mostly turns of speech, some with pictures."""

    def one() -> Media:
        if rng.random() < 0.3:
            width, height = (32 * int(rng.integers(2, 15)) for _ in range(2))
            return picture(rng, width, height)
        return recording(rng, float(rng.uniform(0.6, 10.0)))

    return tuple(one() for _ in range(int(rng.integers(1, config.step_media + 1))))


def recording(rng: np.random.Generator, seconds: float) -> AudioPart:
    samples = rng.normal(0.0, 0.1, int(seconds * MODEL_SAMPLE_RATE_HZ)).astype(np.float32)
    return AudioPart.of(samples.tobytes())


def picture(rng: np.random.Generator, width: int, height: int) -> ImagePart:
    return ImagePart.of(rng.integers(0, 256, width * height * 3, np.uint8).tobytes(), width, height)
