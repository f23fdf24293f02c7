"""Steps and models for the tests of this room."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from antiphon.core.conversation import AudioPart, ImagePart, Media, VideoPart
from antiphon.core.facts import NO_INTS, StagePrompt
from antiphon.core.plans import ArStep, CodecStep, EncodeStep, Join, ints
from antiphon.core.sampling import Sampling
from antiphon.latency.ladder import Ladder
from antiphon.latency.models import ArModel, AttentionModel, Collectives, LinkModel

SECONDS = st.floats(0, 1, allow_subnormal=False)


def ar_step(
    rows: list[tuple[int, int, bool]], joins: tuple[tuple[int, int], ...] = (), stage: str = "thinker"
) -> ArStep:
    """rows: (start, count, emits); joins: (row, tokens)."""
    starts, counts, emits = ([int(row[i]) for row in rows] for i in range(3))
    return ArStep(
        stage=stage,
        step=0,
        joins=tuple(join(row, tokens) for row, tokens in joins),
        leaves=NO_INTS,
        blocks=(),
        inputs_rows=NO_INTS,
        inputs_tokens=NO_INTS,
        rows=np.arange(len(rows)),
        starts=ints(starts),
        counts=ints(counts),
        emits=ints(emits),
        reason="test",
    )


def join(row: int, tokens: int) -> Join:
    ids = np.zeros(tokens, np.int64)
    prompt = StagePrompt(ids, ids, (), tokens, NO_INTS)
    return Join(row, row, prompt, 0, Sampling(), np.zeros((0, 1), np.int64))


def codec_step(
    rows: list[tuple[int, int]], joins: list[int] | None = None, stage: str = "code2wav"
) -> CodecStep:
    """rows: (row, frames)."""
    counts = [count for _, count in rows]
    frames = np.zeros((sum(counts), 4), np.int64)
    seats = ints([row for row, _ in rows])
    return CodecStep(stage, 0, ints(joins or []), seats, seats, ints(counts), frames, "test")


def encode_step(media: tuple[Media, ...], stage: str = "encoders") -> EncodeStep:
    return EncodeStep(stage, 0, media, "test")


def audio(seconds: float) -> AudioPart:
    return AudioPart.of(bytes(4 * int(16000 * seconds)))


def image(width: int, height: int) -> ImagePart:
    return ImagePart.of(bytes(3 * width * height), width, height)


def video(width: int, height: int, frames: int, sound_s: float) -> VideoPart:
    sound = bytes(4 * int(16000 * sound_s))
    return VideoPart.of(bytes(3 * width * height * frames), (width, height), frames, 2.0, sound)


@st.composite
def ladders(draw: st.DrawFn) -> Ladder:
    at = draw(st.lists(st.integers(1, 2000), min_size=1, max_size=8, unique=True))
    values = draw(st.lists(SECONDS, min_size=len(at), max_size=len(at)))
    return Ladder(tuple(sorted(at)), tuple(sorted(values)))


@st.composite
def ar_models(draw: st.DrawFn) -> ArModel:
    seconds = [draw(SECONDS) for _ in range(9)]
    link = LinkModel(draw(SECONDS), draw(SECONDS))
    return ArModel(
        layers=draw(st.integers(1, 48)),
        dense=draw(ladders()),
        head=draw(ladders()),
        decode=AttentionModel(*seconds[:3]),
        pair_s=seconds[3],
        chunk_s=seconds[4],
        frame=draw(st.none() | ladders()),
        step_s=seconds[5],
        row_s=seconds[6],
        join_s=seconds[7],
        join_token_s=seconds[8],
        collectives=draw(st.none() | st.just(Collectives(link, 2, 4096))),
    )
