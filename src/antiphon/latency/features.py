"""From a step to the few numbers that its time depends on (OmniServe §3.3.1)."""

from __future__ import annotations

from math import inf
from operator import add
from typing import NamedTuple

import numpy as np

from antiphon.core.conversation import AudioPart, Media, VideoPart
from antiphon.core.facts import Ints
from antiphon.core.plans import ArStep, CodecStep, EncodeStep, Step
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ

AUDIO_TOKENS_PER_S = 13
TOKEN_PIXELS = 32 * 32
FRAMES_PER_TOKEN = 2
VIDEO_FRAME_TOKENS = 128, 768
"""What is seen is one token per 32 by 32 pixels, of a video for two frames that are resized to so many."""


class ArFeatures(NamedTuple):
    """A step of a decoder. Cheap to make and to change, so that a policy may search over what it plans. A row
    that is in the step for some of the layers counts as that share of a row, in all but `emits`.

    num_tokens    n(t), query tokens over all rows
    prefill_load  c_PA(t), the sum over rows of more than one token of l + 1 ... l + q
    decode_load   c_DA(t), the sum over rows of one token of l + 1; the last token of a prompt costs the same
    decode_rows   g(t), rows of one token
    emits         tokens whose scores are computed: one of each row that draws, and a prompt's that are told
    prefill_rows  rows of more than one token
    joins         rows that are handed out with the step, and join_tokens what they join with
    """

    num_tokens: float = 0
    prefill_load: float = 0
    decode_load: float = 0
    decode_rows: float = 0
    emits: int = 0
    prefill_rows: float = 0
    joins: int = 0
    join_tokens: int = 0

    def plus(self, start: int, count: int, emits: int) -> ArFeatures:
        """With one more row that runs tokens [start, start + count)."""
        if count <= 0:
            return self
        load = pair_load(start, count)
        one = count == 1
        return self._replace(
            num_tokens=self.num_tokens + count,
            prefill_load=self.prefill_load + (0 if one else load),
            decode_load=self.decode_load + (load if one else 0),
            decode_rows=self.decode_rows + one,
            emits=self.emits + emits,
            prefill_rows=self.prefill_rows + (not one),
        )


class CodecFeatures(NamedTuple):
    """A step of a vocoder: `groups` of streams that are decoded together, since they began alike and bring
    equally many frames."""

    streams: int = 0
    frames: int = 0
    groups: int = 0


class EncodeFeatures(NamedTuple):
    """A step of the encoders: how many recordings and how many pictures or videos, and their tokens.

    visual_load    sum over frames of squared tokens: attention within a frame
    visual_pixels  as they come, before any resizing
    """

    audio: int = 0
    audio_tokens: float = 0.0
    visual: int = 0
    visual_tokens: float = 0.0
    visual_load: float = 0.0
    visual_pixels: int = 0


class SpeechFeatures(NamedTuple):
    """A step of a codec that reads text. The step tells only what is read; what is said, the codec knows.

    streams   in the step, those that only read among them
    phrases   that are begun, which will sound for `phrase_s` seconds
    windows   of sound that are made, `sound_s` seconds together
    """

    streams: int = 0
    phrases: int = 0
    phrase_s: float = 0.0
    windows: int = 0
    sound_s: float = 0.0

    def plus(self, other: SpeechFeatures) -> SpeechFeatures:
        """Of a step with the streams of both."""
        return SpeechFeatures._make(map(add, self, other))


Features = ArFeatures | CodecFeatures | EncodeFeatures | SpeechFeatures


def features_of(step: Step, most_tokens: float = inf) -> Features:
    """What the models of a stage's kind are asked with; `most_tokens` of a picture."""
    match step:
        case ArStep():
            return ar_features(step)
        case CodecStep():
            return codec_features(step)
        case EncodeStep():
            return encode_features(step.media, most_tokens)


def pair_load(start: int, count: int) -> int:
    """Sum of start + 1 ... start + count: the pairs of tokens that causal attention looks at."""
    return count * start + count * (count + 1) // 2


def ar_features(step: ArStep, layers: int = 0) -> ArFeatures:
    """`layers` of the decoder; 0: not known, so that rows count whole which are in it for some of them."""
    features = row_features(step.counts, step.starts)._replace(
        emits=int(np.count_nonzero(step.emits)),
        joins=len(step.joins),
        join_tokens=sum(len(join.prompt.token_ids) + len(join.generated) for join in step.joins),
    )
    if layers and (len(step.leaves_at[0]) or len(step.enters_at[0])):
        return _without_absent(features, step, layers)
    return features


def row_features(counts: Ints, starts: Ints) -> ArFeatures:
    """Of rows that run so many tokens each after so many, int64 [n]; each of them draws."""
    num, ones = len(counts), counts == 1
    decode_rows = int(np.count_nonzero(ones))
    if decode_rows == num:
        return ArFeatures(num, 0, int(np.add.reduce(starts)) + num, num, num)
    loads = counts * starts + counts * (counts + 1) // 2
    whole, decode_load = int(np.add.reduce(loads)), int(np.add.reduce(loads[ones]))
    tokens = int(np.add.reduce(counts))
    return ArFeatures(tokens, whole - decode_load, decode_load, decode_rows, num, num - decode_rows)


def _without_absent(features: ArFeatures, step: ArStep, layers: int) -> ArFeatures:
    """Less what rows that leave or enter between layers, of one token each, do not run of the step."""
    at = {row: i for i, row in enumerate(step.rows.tolist())}
    first, end = dict.fromkeys(at, 0), dict.fromkeys(at, layers)
    first.update(zip(step.enters_at[0].tolist(), step.enters_at[1].tolist(), strict=True))
    end.update(zip(step.leaves_at[0].tolist(), step.leaves_at[1].tolist(), strict=True))
    absent = {row: 1 - (end[row] - first[row]) / layers for row in at}
    rows = sum(absent.values())
    load = sum(share * (int(step.starts[at[row]]) + 1) for row, share in absent.items() if share)
    return features._replace(
        num_tokens=features.num_tokens - rows,
        decode_load=features.decode_load - load,
        decode_rows=features.decode_rows - rows,
    )


def codec_features(step: CodecStep) -> CodecFeatures:
    joins = set(step.joins.tolist())
    alike = {
        (row in joins, count) for row, count in zip(step.rows.tolist(), step.counts.tolist(), strict=True)
    }
    return CodecFeatures(len(step.rows), int(step.counts.sum()), len(alike))


def encode_features(media: tuple[Media, ...], most_tokens: float = inf) -> EncodeFeatures:
    """`most_tokens` of a picture: larger ones are made smaller before they are encoded."""
    parts = [medium_features(part, most_tokens) for part in media]
    return EncodeFeatures._make(map(sum, zip(EncodeFeatures(), *parts, strict=True)))


def medium_features(part: Media, most_tokens: float = inf) -> EncodeFeatures:
    """One medium. A video's own sound counts as a recording beside it."""
    if isinstance(part, AudioPart):
        return EncodeFeatures(1, audio_tokens(len(part.samples)))
    pixels = part.width * part.height
    if not isinstance(part, VideoPart):
        tokens = min(pixels / TOKEN_PIXELS, most_tokens)
        return EncodeFeatures(visual=1, visual_tokens=tokens, visual_load=tokens**2, visual_pixels=pixels)
    fewest, most = VIDEO_FRAME_TOKENS
    tokens, frames = min(max(pixels / TOKEN_PIXELS, fewest), most), -(-part.num_frames // FRAMES_PER_TOKEN)
    return EncodeFeatures(
        audio=int(part.audio is not None),
        audio_tokens=audio_tokens(len(part.audio or b"")),
        visual=1,
        visual_tokens=frames * tokens,
        visual_load=frames * tokens**2,
        visual_pixels=part.num_frames * pixels,
    )


def audio_tokens(num_bytes: int) -> float:
    """Of float32 samples."""
    return num_bytes / 4 / MODEL_SAMPLE_RATE_HZ * AUDIO_TOKENS_PER_S
