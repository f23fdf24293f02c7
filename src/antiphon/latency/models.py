"""Models of time: a decoder's step, a vocoder's, the encoders', attention on a CPU, a link.

Each is a struct of figures in seconds, none of them negative, so a prediction never falls as work is added.
Making one of a profile takes about a microsecond or two.
"""

from __future__ import annotations

import msgspec

from antiphon.latency.features import ArFeatures, CodecFeatures, EncodeFeatures, SpeechFeatures
from antiphon.latency.ladder import Ladder


class LinkModel(msgspec.Struct, frozen=True):
    """The alpha-beta model of a copy, or of a collective over all ranks: alpha seconds before the first byte,
    beta seconds a byte."""

    alpha_s: float = 0.0
    beta_s: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        return self.alpha_s + self.beta_s * num_bytes


class AttentionModel(msgspec.Struct, frozen=True):
    """Decoding attention of one layer, on a GPU or a CPU: f_DA = a c_DA + h g + b (OmniServe eq. 3)."""

    token_s: float = 0.0
    row_s: float = 0.0
    base_s: float = 0.0

    def seconds(self, load: float, rows: float) -> float:
        """`rows` tokens that look at `load` tokens in all."""
        return self.token_s * load + self.row_s * rows + self.base_s if rows else 0.0


class Collectives(msgspec.Struct, frozen=True):
    """gamma_T(n) of one layer: so many collectives over the hidden states of n tokens."""

    link: LinkModel
    count: int
    token_bytes: int

    def seconds(self, num_tokens: float) -> float:
        return self.count * self.link.seconds(num_tokens * self.token_bytes) if num_tokens else 0.0


class ArModel(msgspec.Struct, frozen=True, tag="ar"):
    """A decoder's step: layers * (f_PA + f_DA + f_D + gamma) + f_head + f_frame, and what comes once.

    dense         f_D(n), of one layer
    pair_s        a_PA, per pair of tokens and layer; chunk_s is b_PA (eq. 2)
    decode        f_DA (eq. 3), of one layer
    head          f_head, over rows that draw: logits and the draw
    frame         f_frame, over rows that draw: the code predictor's frame; None for a stage without one
    step_s        once a step
    row_s         per row of more than one token
    join_s        per row that joins, join_token_s per token that it joins with
    """

    layers: int
    dense: Ladder
    head: Ladder
    decode: AttentionModel
    pair_s: float = 0.0
    chunk_s: float = 0.0
    frame: Ladder | None = None
    step_s: float = 0.0
    row_s: float = 0.0
    join_s: float = 0.0
    join_token_s: float = 0.0
    collectives: Collectives | None = None

    def seconds(self, features: ArFeatures) -> float:
        return self.layers * self.layer_s(features) + self._once_s(features)

    def layer_s(self, features: ArFeatures) -> float:
        """What §3.3.3 to §3.3.6 compare with a bound per layer."""
        n = features.num_tokens
        total = self.dense.value(n) + self.decode.seconds(features.decode_load, features.decode_rows)
        if features.prefill_load:
            total += self.pair_s * features.prefill_load + self.chunk_s  # eq. (2)
        if self.collectives is not None:
            total += self.collectives.seconds(n)
        return total

    def _once_s(self, features: ArFeatures) -> float:
        total = self.step_s + self.row_s * features.prefill_rows + self.head.value(features.emits)
        if self.frame is not None:
            total += self.frame.value(features.emits)
        return total + self.join_s * features.joins + self.join_token_s * features.join_tokens


class CodecModel(msgspec.Struct, frozen=True, tag="codec"):
    """A vocoder's step: once, per group of streams decoded together, per stream and per frame."""

    step_s: float = 0.0
    group_s: float = 0.0
    stream_s: float = 0.0
    frame_s: float = 0.0

    def seconds(self, features: CodecFeatures) -> float:
        return (
            self.step_s
            + self.group_s * features.groups
            + self.stream_s * features.streams
            + self.frame_s * features.frames
        )


class EncoderModel(msgspec.Struct, frozen=True, tag="encoder"):
    """A step of the encoders: once, per recording or picture, per token, per pair of a frame's tokens, per
    pixel as it comes.

    most_tokens  of a picture: larger ones are made smaller; None: as they come
    """

    step_s: float = 0.0
    audio_s: float = 0.0
    audio_token_s: float = 0.0
    visual_s: float = 0.0
    visual_token_s: float = 0.0
    visual_pair_s: float = 0.0
    visual_pixel_s: float = 0.0
    most_tokens: int | None = None

    def seconds(self, features: EncodeFeatures) -> float:
        return (
            self.step_s
            + self.audio_s * features.audio
            + self.audio_token_s * features.audio_tokens
            + self.visual_s * features.visual
            + self.visual_token_s * features.visual_tokens
            + self.visual_pair_s * features.visual_load
            + self.visual_pixel_s * features.visual_pixels
        )


class SpeechModel(msgspec.Struct, frozen=True, tag="speech"):
    """A step of a codec that reads text: once, per stream, per phrase that begins and per second that it will
    sound, per window of sound and per second of it."""

    step_s: float = 0.0
    stream_s: float = 0.0
    phrase_s: float = 0.0
    phrase_second_s: float = 0.0
    window_s: float = 0.0
    second_s: float = 0.0

    def seconds(self, features: SpeechFeatures) -> float:
        return (
            self.step_s
            + self.stream_s * features.streams
            + self.phrase_s * features.phrases
            + self.phrase_second_s * features.phrase_s
            + self.window_s * features.windows
            + self.second_s * features.sound_s
        )


StageModel = ArModel | CodecModel | EncoderModel | SpeechModel
