"""What a unit of a stage takes of its device's memory: weights, KV and state by the model's shape, work space
by an estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from antiphon.core.config import EngineOptions
from antiphon.core.graph import StageGraph
from antiphon.graphs import graph_with
from antiphon.latency.roofline import ELEMENT_BYTES
from antiphon.latency.shapes import (
    CodecShape,
    DecoderShape,
    EncodersShape,
    FlowVocoderShape,
    ModelShape,
    ReaderShape,
    StageShape,
)

GIB = 2**30
MemoryUse = Literal["weights", "KV", "codec state", "work space"]

CONV_STATE_ELEMENTS = 250_000
"""Of a vocoder's stream, beside its KV (about 1 MB in fp32)."""
CODE_BYTES = 8
LIVE_BUFFERS = 4
"""Activations of a layer that are there at once."""
LOGIT_COPIES = 3


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as far as its memory goes.

    shape       of its stages; one that is not in it (a cascade's ears and voice) is counted by its weights
    parameters  of each stage that it has; from a checkpoint they are exact, from a shape within a few percent
    check       raises ConfigError for options that the model cannot do; None where its shape alone is known
    """

    name: str
    graph: StageGraph
    shape: ModelShape
    parameters: Mapping[str, int]
    check: Callable[[EngineOptions], object] | None = None

    @property
    def stages(self) -> tuple[str, ...]:
        """Those that the checkpoint has, in pipeline order."""
        return tuple(stage.name for stage in self.graph.stages if stage.name in self.parameters)


@dataclass(frozen=True, slots=True)
class UnitSizes:
    """What a unit is sized for; chunk: frames that a vocoder decodes together."""

    max_rows: int
    kv_tokens: int
    step_tokens: int
    chunk: int
    image_pixels: int


def facts_of(shape: ModelShape, name: str) -> ModelFacts:
    """Of a model whose shape alone is known. Raises ConfigError for stages that no family has."""
    parameters = {stage: shape_parameters(each) for stage, each in shape.stages.items()}
    return ModelFacts(name, graph_with(shape.stages), shape, parameters)


def shape_parameters(shape: StageShape) -> int:
    """Weights of a stage whose tensors are not at hand."""
    match shape:
        case DecoderShape():
            return _decoder_parameters(shape)
        case EncodersShape():
            return int(shape.audio.weights + (0 if shape.vision is None else shape.vision.weights))
        case _:
            return int(shape.weights)


def parts(facts: ModelFacts, stage: str, dtype: str, load: UnitSizes) -> dict[MemoryUse, int]:
    """Bytes of one unit, by what they are for."""
    shape = facts.shape.stages.get(stage)
    element = max(ELEMENT_BYTES[dtype], 4) if shape is None else element_bytes(shape, dtype)
    found: dict[MemoryUse, int] = {"weights": facts.parameters[stage] * element}
    match shape:
        case None:
            pass
        case DecoderShape():
            found["KV"] = load.kv_tokens * kv_token_bytes(shape, dtype)
            found["work space"] = _decoder_work(shape, load, element)
        case EncodersShape():
            found["work space"] = _encoder_work(shape, load, element, facts.graph.token_pixels)
        case ReaderShape():
            found["codec state"] = load.max_rows * shape.stream_elements * element
            found["work space"] = LIVE_BUFFERS * load.max_rows * shape.window_elements * element
        case _:
            found["codec state"] = load.max_rows * _stream_bytes(shape, element)
            found["work space"] = _vocoder_work(shape, load, element)
    return found


def kv_token_bytes(shape: DecoderShape, dtype: str) -> int:
    """Of one token in all layers, with the payload that is kept beside them."""
    return shape.token_elements * ELEMENT_BYTES[dtype]


def element_bytes(shape: StageShape, dtype: str) -> int:
    """A vocoder runs in fp32 at least."""
    wide = isinstance(shape, CodecShape | ReaderShape)
    return max(ELEMENT_BYTES[dtype], 4) if wide else ELEMENT_BYTES[dtype]


def _decoder_parameters(shape: DecoderShape) -> int:
    """Layers, embeddings and head, and its own vocoder; a predictor has a table and a head a codebook but the
    first."""
    experts = shape.experts * (shape.expert_weights + shape.hidden)
    layer = shape.projections + 3 * shape.hidden * shape.mlp + experts
    own = shape.layers * layer + (shape.vocab + shape.num_logits) * shape.hidden
    if shape.vocoder is not None:
        own += int(shape.vocoder.weights)
    if shape.predictor is None:
        return own
    inner = shape.predictor
    tables = 2 * (shape.codebooks - 1) * inner.vocab * inner.hidden
    return own + _decoder_parameters(inner) - 2 * inner.vocab * inner.hidden + tables


def _decoder_work(shape: DecoderShape, load: UnitSizes, element: int) -> int:
    """A layer's activations over a step's tokens, the logits of all rows, and what a predictor keeps of a
    frame's positions."""
    widest = max(3 * shape.mlp, shape.picks * (3 * shape.expert + shape.hidden))
    token = LIVE_BUFFERS * shape.hidden + (shape.heads + shape.kv_heads) * 2 * shape.head_dim + widest
    logits = LOGIT_COPIES * load.max_rows * shape.num_logits * 4
    frame = 0
    if shape.predictor is not None:
        frame = load.max_rows * shape.codebooks * shape.predictor.layers * shape.predictor.kv_elements
    return (load.step_tokens * token + frame) * element + logits


def _stream_bytes(shape: CodecShape, element: int) -> int:
    """A stream that is decoded window by window keeps its last codes only."""
    if isinstance(shape, FlowVocoderShape):
        return (shape.window_blocks + 1) * shape.block * CODE_BYTES
    kv = shape.layers * 2 * shape.kv_heads * shape.head_dim * shape.window
    return (kv + CONV_STATE_ELEMENTS) * element


def _vocoder_work(shape: CodecShape, load: UnitSizes, element: int) -> int:
    """The widest of what the convolutions make of a chunk, for all rows."""
    if isinstance(shape, FlowVocoderShape):
        frames = shape.repeats * ((shape.window_blocks - 1) * shape.block + load.chunk)
        widest, steps = 0, 1
    else:
        frames, widest, steps = load.chunk, shape.hidden, 1
        for ratio in shape.ratios:
            steps *= ratio
            widest = max(widest, 4 * steps * shape.hidden)
    channels = shape.decoder
    for rate in shape.rates:
        steps, channels = steps * rate, channels // 2
        widest = max(widest, steps * channels)
    return LIVE_BUFFERS * widest * frames * load.max_rows * element


def _encoder_work(shape: EncodersShape, load: UnitSizes, element: int, token_pixels: int) -> int:
    """One picture of the most pixels allowed: wider than any window of sound. Of sound alone, one window."""
    vision = shape.vision
    if vision is None:
        audio = shape.audio
        return shape.window * audio.positions * (LIVE_BUFFERS * audio.hidden + audio.mlp) * element
    positions = -(-load.image_pixels // token_pixels) * vision.positions
    return positions * (LIVE_BUFFERS * vision.hidden + vision.mlp) * element
