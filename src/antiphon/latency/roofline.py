"""A profile of hardware that is not at hand: each part of a step takes as long as reading what it reads or as
computing what it computes, whichever is longer, at shares of a datasheet's figures.

What is assumed stands in hardware.yaml, beside the figures; a profile says in its notes that it was made so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import msgspec
import yaml

from antiphon.core.errors import ConfigError, no_such
from antiphon.latency.features import AUDIO_TOKENS_PER_S
from antiphon.latency.ladder import Ladder
from antiphon.latency.models import ArModel, AttentionModel, CodecModel, Collectives, EncoderModel, LinkModel
from antiphon.latency.profile import Datasheet, Profile, Provenance, StageProfile
from antiphon.latency.shapes import (
    CodecShape,
    DecoderShape,
    EncodersShape,
    ModelShape,
    PatchVocoderShape,
    ReaderShape,
    StageShape,
    TowerShape,
)

ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
KNOTS = tuple(2**i for i in range(15))
ROWS = tuple(2**i for i in range(11))
ALIASES = {"h100": "H100-SXM", "a100": "A100-80", "a6000": "RTX-A6000", "4090": "RTX-4090"}
COPY_ALPHA_S = 20e-6
COLLECTIVE_ALPHA_S = 15e-6
DECIDE_S = 300e-6
"""What a step costs the deciding half at a few dozen rows (benchmarks/deciding.py)."""

ONLY_MEASURED = (
    "no datasheet tells what a voice that reads text takes: it depends on what is said in a step. Measure "
    "the model where it shall run (antiphon profile CHECKPOINT --out FILE.json), and say --hardware "
    "FILE.json without --model"
)

NOTES = (
    "from a datasheet, not measured: every part takes the longer of reading and computing, at {products:g} "
    "of the products, {memory:g} of the memory's bandwidth, {attention:g} of the products in prompts' "
    "attention and {link:g} of the links'; experts are picked at random"
)


class Efficiency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of a peak."""

    products: float
    memory: float
    attention: float
    link: float


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device; hardware.yaml says what the fields are."""

    dtype: str
    tflops: float
    memory_gb_per_s: float
    host_gb_per_s: float
    link_gb_per_s: float
    rank_gb_per_s: float
    layer_overhead_us: float
    step_overhead_us: float
    memory_gib: float | None = None


class _Library(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    efficiency: Efficiency
    devices: dict[str, Hardware]


def hardware_names() -> tuple[str, ...]:
    return tuple(_library().devices)


def hardware_memory_gib(device: str) -> float | None:
    """Of a device by a name of `hardware_names`; None where it is the host's own."""
    return _library().devices[device].memory_gib


def datasheet_name(what: str) -> str | None:
    """The name of a device as `hardware_names` writes it, however it is spelt; None if it isn't known."""
    wanted = ALIASES.get(what.lower(), what).lower()
    return next((name for name in hardware_names() if name.lower() == wanted), None)


def roofline(
    device: str, shape: ModelShape, provenance: Provenance, *, ranks: int = 1, block_size: int = 16
) -> Profile:
    """Of this model on `ranks` such devices, its decoders divided among them (`DecoderShape.shared_by`).
    Raises ConfigError for a device that isn't known, and for decoders that so many cannot share."""
    library, name = _library(), datasheet_name(device)
    if name is None:
        raise ConfigError(no_such("datasheet of", device, library.devices))
    for stage, one in shape.stages.items():
        check_shared(stage, one, ranks)
    hardware = library.devices[name]
    roof = Roof(hardware, library.efficiency, ranks, block_size)
    notes = NOTES.format(**msgspec.structs.asdict(library.efficiency))
    where = f"{ranks} x {name}" if ranks > 1 else name
    about = msgspec.structs.replace(
        provenance, device=where, dtype=hardware.dtype, model=shape.name, notes=notes
    )
    return Profile(
        stages={stage: roof.stage(one) for stage, one in shape.stages.items()},
        links=roof.links(),
        source="roofline",
        provenance=about,
        decide_s=DECIDE_S,
        datasheet=Datasheet(shape, ranks, hardware.memory_gib),
    )


def on_cores(shape: DecoderShape, cores: int) -> ArModel:
    """A decoder's steps on so many cores of a CPU that was not measured. Each core is half of the datasheet's
    `cpu-2core`; beyond 16 the memory's bandwidth stays the same."""
    library = _library()
    two, share = library.devices["cpu-2core"], cores / 2
    bandwidth = two.memory_gb_per_s * min(share, 8)
    hardware = msgspec.structs.replace(two, tflops=two.tflops * share, memory_gb_per_s=bandwidth)
    model = Roof(hardware, library.efficiency, 1, 16).stage(shape).model
    assert isinstance(model, ArModel), "of a decoder"
    return model


def check_shared(stage: str, shape: StageShape, ranks: int) -> None:
    """As a decoder is divided: heads and widths evenly, and ranks beyond the KV heads share one. Raises
    ConfigError."""
    if ranks < 1:
        raise ConfigError(f"{ranks} devices; it must be 1 or more")
    if not isinstance(shape, DecoderShape) or shape.shared_by(ranks) == 1:
        return
    for what, size in (("heads", shape.heads), ("MLP", shape.mlp), ("experts' width", shape.expert)):
        if size % ranks:
            raise ConfigError(f"{ranks} devices do not divide the {stage}'s {what}, {size}")
    if shape.kv_heads % ranks and ranks % shape.kv_heads:
        raise ConfigError(
            f"{ranks} devices and the {stage}'s {shape.kv_heads} KV heads don't divide each other"
        )


@dataclass(frozen=True, slots=True)
class Roof:
    """One kind of device, and what it makes of a shape."""

    hardware: Hardware
    efficiency: Efficiency
    ranks: int
    block_size: int

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.hardware.dtype]

    def stage(self, shape: StageShape) -> StageProfile:
        match shape:
            case DecoderShape():
                return self._for(shape)._decoder(shape)
            case EncodersShape():
                return StageProfile(self._encoders(shape))
            case ReaderShape():
                raise ConfigError(ONLY_MEASURED)
            case _:
                return StageProfile(self._vocoder(shape))

    def links(self) -> dict[str, LinkModel]:
        share = self.efficiency.link
        host = LinkModel(COPY_ALPHA_S, 1 / (self.hardware.link_gb_per_s * 1e9 * share))
        peer = LinkModel(COPY_ALPHA_S, 1 / (self.hardware.rank_gb_per_s * 1e9 * share))
        memory = LinkModel(0.0, 1 / self._host_memory)
        links = {"host": host, "device": host, "host_memory": memory, "peer": peer}
        return links if self.ranks == 1 else links | {"ranks": self._all_reduce}

    def _for(self, shape: DecoderShape) -> Roof:
        """As many of its devices as share this decoder."""
        return replace(self, ranks=shape.shared_by(self.ranks))

    @property
    def _all_reduce(self) -> LinkModel:
        """A ring: each byte crosses 2 (r - 1) / r times."""
        crossings = 2 * (self.ranks - 1) / self.ranks
        rate = self.hardware.rank_gb_per_s * 1e9 * self.efficiency.link
        return LinkModel(COLLECTIVE_ALPHA_S, crossings / rate)

    def _decoder(self, shape: DecoderShape) -> StageProfile:
        kv_bytes = shape.kv_elements * self.element_bytes / min(self.ranks, shape.kv_heads)
        groups = {"kv": self.block_size * shape.layers * shape.kv_elements * self.element_bytes}
        if shape.payload:
            groups["hidden"] = self.block_size * shape.payload * self.element_bytes
        model = ArModel(
            layers=shape.layers,
            dense=ladder(KNOTS, lambda n: self._launch_s(1) + self._layer_s(shape, n)),
            head=ladder(ROWS, lambda rows: self._products_s(shape.num_logits * shape.hidden, rows)),
            decode=AttentionModel(token_s=kv_bytes / self._memory),
            pair_s=4 * shape.heads * shape.head_dim / self.ranks / self._flops(self.efficiency.attention),
            frame=self._frame(shape),
            step_s=self._step_s,
            collectives=self._collectives(shape),
        )
        cpu = AttentionModel(token_s=shape.kv_elements * self.element_bytes / self._host_memory)
        return StageProfile(model, groups, cpu_attention=cpu)

    def _collectives(self, shape: DecoderShape) -> Collectives | None:
        """After the attention's output and after the MLP."""
        if self.ranks == 1:
            return None
        return Collectives(self._all_reduce, 2, shape.hidden * self.element_bytes)

    def _vocoder(self, shape: CodecShape) -> CodecModel:
        """Its weights are fp32 wherever it runs, and its convolutions run at the rate of the products."""
        return CodecModel(
            step_s=self._step_s,
            group_s=shape.weights_read * 4 / self._memory + self._launch_s(shape.launches),
            frame_s=2 * shape.frame_products / self._flops(self.efficiency.products),
        )

    def _encoders(self, shape: EncodersShape) -> EncoderModel:
        flops = self._flops(self.efficiency.products)
        audio, vision = shape.audio, shape.vision
        in_window = min(shape.window, 8 * shape.tokens_per_s) * audio.pair_products
        # features count this model's sound in the other's tokens
        rate = shape.tokens_per_s / AUDIO_TOKENS_PER_S
        return EncoderModel(
            step_s=self._step_s,
            audio_s=self._once_s(audio),
            audio_token_s=2 * rate * (audio.token_products + in_window) / flops,
            visual_s=0.0 if vision is None else self._once_s(vision),
            visual_token_s=0.0 if vision is None else 2 * vision.token_products / flops,
            visual_pair_s=0.0 if vision is None else 2 * vision.pair_products / flops,
        )

    def _once_s(self, tower: TowerShape) -> float:
        """Of a medium, whatever its size: the weights are read, and each layer is launched."""
        return tower.weights * self.element_bytes / self._memory + self._launch_s(tower.layers)

    def _layer_s(self, shape: DecoderShape, num_tokens: int) -> float:
        return self._products_s(shape.layer_weights_used, num_tokens, shape.layer_weights_read(num_tokens))

    def _products_s(self, weights: float, rows: float, read: float | None = None) -> float:
        """A matrix of so many weights, times so many rows. `read`: weights that are read for it; None: each
        once."""
        read_s = (weights if read is None else read) * self.element_bytes / self.ranks / self._memory
        return max(read_s, 2 * rows * weights / self.ranks / self._flops(self.efficiency.products))

    def _frame(self, shape: DecoderShape) -> Ladder | None:
        """What a drawn token takes beyond the draw."""
        if shape.vocoder is not None:
            vocoder = shape.vocoder
            return ladder(ROWS, lambda rows: self._patch_s(vocoder, rows))
        return None if shape.predictor is None else ladder(ROWS, lambda rows: self._frame_s(shape, rows))

    def _patch_s(self, vocoder: PatchVocoderShape, rows: int) -> float:
        """Each tower reads its weights in every pass, whatever the rows."""
        total = 0.0
        for tower, times, beside in vocoder.passes:
            products = tower.token_products + tower.pair_products
            one_s = self._products_s(products, rows * beside, tower.weights)
            total += times * (one_s + self._launch_s(tower.layers))
        return total

    def _frame_s(self, shape: DecoderShape, rows: int) -> float:
        """The predictor's passes, one a codebook but the first; the first pass has two positions."""
        assert shape.predictor is not None, "a stage that speaks"
        predictor = shape.predictor
        layer = predictor.layer_weights_used * predictor.layers
        head = predictor.vocab * predictor.hidden
        whole = Roof(self.hardware, self.efficiency, 1, self.block_size)
        layer_s = whole._products_s(layer, rows)
        pass_s = layer_s + whole._products_s(head, rows) + self._launch_s(predictor.layers)
        return (shape.codebooks - 1) * pass_s + whole._products_s(layer, 2 * rows) - layer_s

    def _launch_s(self, layers: int) -> float:
        """What so many layers cost to begin, whatever they compute."""
        return layers * self.hardware.layer_overhead_us * 1e-6

    @property
    def _step_s(self) -> float:
        return self.hardware.step_overhead_us * 1e-6

    @property
    def _memory(self) -> float:
        """Bytes a second."""
        return self.hardware.memory_gb_per_s * 1e9 * self.efficiency.memory

    @property
    def _host_memory(self) -> float:
        """Bytes a second of the host's own."""
        return self.hardware.host_gb_per_s * 1e9 * self.efficiency.memory

    def _flops(self, share: float) -> float:
        return self.hardware.tflops * 1e12 * share


def ladder(at: Iterable[int], seconds: Callable[[int], float]) -> Ladder:
    return Ladder.of((n, seconds(n)) for n in at)


@cache
def _library() -> _Library:
    text = files("antiphon.latency").joinpath("hardware.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), _Library)
