"""The shape of a model, as far as arithmetic and memory traffic depend on it: what a roofline is made from.

A checkpoint's own comes from its config (`read_shape` of its family); shapes.yaml has those of released
models, so that a profile can be made without any file of them.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from math import prod

import msgspec
import yaml

from antiphon.core.errors import ConfigError, no_such
from antiphon.latency.features import AUDIO_TOKENS_PER_S


class DecoderShape(msgspec.Struct, frozen=True, tag="decoder", tag_field="kind", forbid_unknown_fields=True):
    """A paged decoder. `mlp` is the width of a dense MLP, or of the shared expert beside routed ones.

    payload    elements a token keeps beside its KV, for a stage that speaks
    predictor  completes each token to a frame of `codebooks` codes
    vocoder    makes sound of each token within the stage. Such a decoder draws nothing but whether it ends,
               and is whole on one device, however many share the others
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    mlp: int = 0
    experts: int = 0
    picks: int = 0
    expert: int = 0
    payload: int = 0
    codebooks: int = 1
    predictor: DecoderShape | None = None
    vocoder: PatchVocoderShape | None = None

    def shared_by(self, ranks: int) -> int:
        """Of so many devices, how many share it."""
        return ranks if self.vocoder is None else 1

    @property
    def num_logits(self) -> int:
        return self.vocab if self.vocoder is None else 2

    @property
    def token_elements(self) -> int:
        """What a token keeps in all layers, with the payload beside them."""
        return self.layers * self.kv_elements + self.payload

    @property
    def projections(self) -> int:
        """Weights of a layer's q, k, v and o."""
        return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)

    @property
    def expert_weights(self) -> int:
        """Of one routed expert."""
        return 3 * self.hidden * self.expert

    def layer_weights_read(self, num_tokens: float) -> float:
        """Weights of one layer that a step reads: of E experts those picked at least once when each token
        picks k at random, E (1 - (1 - k/E)^n)."""
        hit = self.experts * (1 - (1 - self.picks / self.experts) ** num_tokens) if self.experts else 0.0
        return self._always + hit * self.expert_weights

    @property
    def layer_weights_used(self) -> float:
        """Weights of one layer that one token is multiplied with."""
        return self._always + self.picks * self.expert_weights

    @property
    def kv_elements(self) -> int:
        """Of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def _always(self) -> int:
        return self.projections + 3 * self.hidden * self.mlp + self.hidden * self.experts


class VocoderShape(msgspec.Struct, frozen=True, tag="vocoder", tag_field="kind", forbid_unknown_fields=True):
    """A transformer over frames, then transposed convolutions up to samples."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    window: int
    decoder: int
    ratios: tuple[int, ...]
    rates: tuple[int, ...]

    @property
    def frame_samples(self) -> int:
        """24 kHz samples of a frame."""
        return prod(self.ratios) * prod(self.rates)

    @property
    def delay_samples(self) -> int:
        """Samples that the newest frames still owe: each transposed convolution looks one input ahead."""
        delay = 0
        for rate in self.rates:
            delay = (delay + 1) * rate
        return delay

    @property
    def weights(self) -> float:
        return self._parts[0]

    @property
    def weights_read(self) -> float:
        """By one step."""
        return self.weights

    @property
    def launches(self) -> int:
        """Layers of one step, as far as each costs something to begin."""
        return self.layers + 4 * (len(self.ratios) + len(self.rates))

    @property
    def frame_products(self) -> float:
        """Multiplications of one frame."""
        return self._parts[1]

    @property
    def _parts(self) -> tuple[float, float]:
        """Weights, and multiplications a frame, of: layers; a transposed convolution and a ConvNeXt block a
        ratio; the convolution into the decoder; a transposed convolution and three residual units a rate."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        weights = self.layers * (attention + 3 * self.hidden * self.mlp)
        products = weights + self.layers * 2 * self.heads * self.head_dim * self.window
        steps = 1
        for ratio in self.ratios:
            up, block = ratio * self.hidden**2, 8 * self.hidden**2
            products += steps * up + steps * ratio * block
            weights += up + block
            steps *= ratio
        first = 7 * self.hidden * self.decoder
        weights, products = weights + first, products + steps * first
        up_weights, up_products = _upsampling(self.decoder, self.rates, 3 * 8)
        return weights + up_weights, products + steps * up_products


class FlowVocoderShape(
    msgspec.Struct, frozen=True, tag="flow_vocoder", tag_field="kind", forbid_unknown_fields=True
):
    """Codes to mel frames by flow matching, these to sound by residual convolutions, window by window.

    inputs       width of what enters the transformer: the noisy mel frame, the code, the speaker
    evaluations  of the transformer that a window takes, each with the speaker and without
    repeats      mel frames of a code
    block        codes that sound together; a window has `back` blocks before them and `ahead` behind
    mel          bins of a mel frame
    decoder      channels of the convolutions; each rate halves them
    kernels      of the residual units behind each rate, three pairs of convolutions each
    """

    layers: int
    hidden: int
    heads: int
    head_dim: int
    mlp: int
    inputs: int
    evaluations: int
    repeats: int
    block: int
    back: int
    ahead: int
    mel: int
    decoder: int
    rates: tuple[int, ...]
    kernels: tuple[int, ...]

    @property
    def frame_samples(self) -> int:
        """24 kHz samples of a code."""
        return self.repeats * prod(self.rates)

    @property
    def window_blocks(self) -> int:
        return self.back + 1 + self.ahead

    @property
    def weights(self) -> float:
        return self._flow_weights + self._convolutions[0]

    @property
    def weights_read(self) -> float:
        """By one window."""
        return self.evaluations * self._flow_weights + self._convolutions[0]

    @property
    def launches(self) -> int:
        return self.evaluations * self.layers + len(self.rates) * (1 + 6 * len(self.kernels))

    @property
    def frame_products(self) -> float:
        """Multiplications for one code that sounds: those of its share of a window."""
        seen = 2 * self.heads * self.head_dim * self.block * self.repeats
        one = self.layers * (self._layer + seen) + self.inputs * self.hidden + self.hidden * self.mel
        return self.window_blocks * self.repeats * (2 * self.evaluations * one + self._convolutions[1])

    @property
    def _layer(self) -> int:
        return self.hidden * (4 * self.heads * self.head_dim + 2 * self.mlp)

    @property
    def _flow_weights(self) -> int:
        """Layers, each with what it makes of the time, and both ends."""
        ends = (self.inputs + self.mel) * self.hidden
        return self.layers * (self._layer + 6 * self.hidden**2) + ends

    @property
    def _convolutions(self) -> tuple[float, float]:
        """Weights, and multiplications a mel frame, of the convolution into the decoder and all behind it."""
        first = 7.0 * self.mel * self.decoder
        weights, products = _upsampling(self.decoder, self.rates, 6 * sum(self.kernels))
        return first + weights, first + products


class TowerShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A transformer, `positions` of it a token that it gives. `stem` are multiplications a token before the
    layers; in `whole` of them all tokens see each other (0: in all)."""

    layers: int
    hidden: int
    mlp: int
    positions: int = 1
    stem: float = 0.0
    whole: int = 0

    @property
    def weights(self) -> float:
        return self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.mlp)

    @property
    def token_products(self) -> float:
        return self.positions * self.weights + self.stem

    @property
    def pair_products(self) -> float:
        """Attention, for a pair of tokens that see each other."""
        return 2 * (self.whole or self.layers) * self.hidden * self.positions**2


class PatchVocoderShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder's token to a patch of latents by flow matching, and these to sound.

    frame_samples  24 kHz samples of a patch
    evaluations    of `flow` that a patch takes, each with the token's state and without
    flow           over the patch, those before it, and the state
    aggregator     from the patch to the decoder's next input
    decoder        from the patch to sound
    """

    frame_samples: int
    evaluations: int
    flow: TowerShape
    aggregator: TowerShape
    decoder: TowerShape

    @property
    def delay_samples(self) -> int:
        return 0

    @property
    def weights(self) -> float:
        return self.flow.weights + self.aggregator.weights + self.decoder.weights

    @property
    def passes(self) -> tuple[tuple[TowerShape, int, int], ...]:
        """Each tower, how often it runs for a patch, and how many of its inputs run side by side."""
        return (self.flow, self.evaluations, 2), (self.aggregator, 1, 1), (self.decoder, 1, 1)


class EncodersShape(
    msgspec.Struct, frozen=True, tag="encoders", tag_field="kind", forbid_unknown_fields=True
):
    """Both towers, or that of sound alone. A second of a recording is `tokens_per_s`, of which `window`
    see each other."""

    audio: TowerShape
    vision: TowerShape | None = None
    window: int = 104
    tokens_per_s: int = AUDIO_TOKENS_PER_S


class ReaderShape(msgspec.Struct, frozen=True, tag="reader", tag_field="kind", forbid_unknown_fields=True):
    """A codec that reads text: as much of it as memory depends on. What its steps take depends on what it
    says in them, which only a measurement tells.

    weights          of all its parts
    stream_elements  of a stream, a phrase's frames
    window_elements  of the widest layer over a window of sound, with the frames around it
    """

    weights: int
    stream_elements: int
    window_elements: int


def _upsampling(channels: int, rates: tuple[int, ...], unit: int) -> tuple[int, int]:
    """Weights, and multiplications of one input, of a transposed convolution a rate, twice as wide as it
    strides, and of residual units of `unit` weights a square channel. Each rate halves the channels."""
    weights, products, steps = 0, 0, 1
    for rate in rates:
        up, units = 2 * rate * channels * (channels // 2), unit * (channels // 2) ** 2
        weights += up + units
        products += steps * (up + rate * units)
        steps, channels = steps * rate, channels // 2
    return weights, products


CodecShape = VocoderShape | FlowVocoderShape
StageShape = DecoderShape | CodecShape | EncodersShape | ReaderShape


class ModelShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stages of a model's graph by name.

    context  tokens that it was made for; None: not told
    """

    name: str
    stages: dict[str, StageShape]
    context: int | None = None

    @property
    def vocoder(self) -> CodecShape | PatchVocoderShape | None:
        """What makes its sound, be it a stage or part of one; None: it has no voice."""
        for shape in self.stages.values():
            if isinstance(shape, CodecShape):
                return shape
            if isinstance(shape, DecoderShape) and shape.vocoder is not None:
                return shape.vocoder
        return None


def shape_names() -> tuple[str, ...]:
    """Models of which the package has the shape."""
    return tuple(sorted(_library()))


def shape_name(model: str) -> str | None:
    """The name of the shape that a released model has, by its hub id or the end of it; None: none is known.

    Variants are known by how they begin: meta-llama/Llama-3.1-8B-Instruct is a llama-3.1-8b.
    """
    last = model.rpartition("/")[2].lower()
    return next((name for name in shape_names() if last.startswith(name)), None)


def find_shape(name: str) -> ModelShape:
    """Raises ConfigError for a name that isn't there."""
    known = _library()
    if name.lower() not in known:
        more = ", or the directory of a checkpoint (its config.json is enough)"
        raise ConfigError(no_such("shape of a model", name, sorted(known), more))
    found = known[name.lower()]
    return ModelShape(name.lower(), found.stages, found.context)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stages: dict[str, StageShape]
    context: int | None = None


@cache
def _library() -> dict[str, _Entry]:
    text = files("antiphon.latency").joinpath("shapes.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), dict[str, _Entry])
