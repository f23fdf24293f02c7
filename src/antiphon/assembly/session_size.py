"""How much KV a conversation holds when it ends, as a workload's people have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.latency.shapes import ModelShape
from antiphon.models.qwen_media.preprocess_shapes import FRAME_PIXELS
from antiphon.workload.draw import draw
from antiphon.workload.fitted import READ_ALOUD_WORDS_PER_S, TOKENS_PER_WORD
from antiphon.workload.script import Clip, PersonScript, TurnScript
from antiphon.workload.spec import Workload

MOST_DRAWN = 500
TURN_TOKENS = 10
"""Marks of who speaks, around a turn and its reply."""
USUAL_REPLY_TOKENS = 100
"""Where the workload leaves the length of replies to the server."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a model makes of sound and pictures: tokens of a second that is heard, pixels of a token, frames
    of a second that it says (0: it has no voice)."""

    audio_tokens_per_s: float
    token_pixels: int
    frames_per_s: float


def rates_of(graph: StageGraph, shape: ModelShape) -> Rates:
    frames = 0.0 if shape.vocoder is None else WIRE_SAMPLE_RATE_HZ / shape.vocoder.frame_samples
    return Rates(graph.audio_tokens_per_s, graph.token_pixels, frames)


@dataclass(frozen=True, slots=True)
class SessionSize:
    """Tokens of a conversation at its end, on average and of the ninth of ten. `speaking`: with its longest
    reply, in the stage that speaks, which keeps what people said and drops its replies."""

    mean: int
    p90: int
    speaking: int


def session_size(workload: Workload, rates: Rates, seed: int = 0) -> SessionSize:
    """From scripts drawn as a run would. Raises ConfigError for a workload without people."""
    people = [one for one in islice(draw(workload, seed), MOST_DRAWN) if isinstance(one, PersonScript)]
    if not people:
        raise ConfigError(f"workload {workload.name!r} has no people whose conversations could be counted")
    whole = sorted(
        _words(person.instructions) + sum(_asked(turn, rates) + _reply(turn) for turn in person.turns)
        for person in people
    )
    return SessionSize(
        mean=_mean(whole),
        p90=whole[len(whole) * 9 // 10],
        speaking=_mean([_spoken(one, rates) for one in people]),
    )


def _asked(turn: TurnScript, rates: Rates) -> int:
    pictures = sum(-(-picture.width * picture.height // rates.token_pixels) for picture in turn.pictures)
    clips = sum(_clip(clip, rates) for clip in turn.clips)
    said = round(turn.speech_s * rates.audio_tokens_per_s) + _words(turn.text)
    return TURN_TOKENS + said + pictures + clips


def _clip(clip: Clip, rates: Rates) -> int:
    """Every two frames are one, and small ones are made larger."""
    pixels = max(clip.width * clip.height, FRAME_PIXELS[0])
    return -(-clip.num_frames // 2) * (pixels // rates.token_pixels)


def _reply(turn: TurnScript) -> int:
    return turn.max_output_tokens or USUAL_REPLY_TOKENS


def _spoken(person: PersonScript, rates: Rates) -> int:
    frames = rates.frames_per_s / (READ_ALOUD_WORDS_PER_S * TOKENS_PER_WORD)
    longest = max((_reply(turn) for turn in person.turns if turn.wants == "speech"), default=0)
    return sum(_asked(turn, rates) for turn in person.turns) + round(longest * frames)


def _words(text: str) -> int:
    return round(len(text.split()) * TOKENS_PER_WORD)


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))
