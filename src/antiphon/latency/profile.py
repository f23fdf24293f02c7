"""What an engine's steps and copies take, as a file: measured on a running engine, or from a datasheet."""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from antiphon.core.config import NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.core.plans import ArStep, CodecStep, CopyBlocks, Step
from antiphon.latency.features import SpeechFeatures, ar_features, codec_features, encode_features
from antiphon.latency.models import (
    ArModel,
    AttentionModel,
    CodecModel,
    EncoderModel,
    LinkModel,
    SpeechModel,
    StageModel,
)
from antiphon.latency.shapes import DecoderShape, FlowVocoderShape, ModelShape

VERSION = 1
SHARED_MEMORY = LinkModel(2e-4, 1 / 4e9)
"""Between processes of one host, where nobody measured it (benchmarks/connectors.py)."""
NO_LINK = LinkModel()


class Residuals(msgspec.Struct, frozen=True):
    """Relative errors |predicted - measured| / measured on steps that were not fitted: mean and P90."""

    mean: float
    p90: float
    num_steps: int


class StageProfile(msgspec.Struct, frozen=True):
    """One stage.

    block_bytes    bytes of one block of each KV group, which copies move
    cpu_attention  eq. (3) for one layer of a decoder whose attention is computed on the host's CPU
    residuals      None for what nobody measured
    """

    model: StageModel
    block_bytes: dict[str, int] = {}
    cpu_attention: AttentionModel | None = None
    residuals: Residuals | None = None


class Provenance(msgspec.Struct, frozen=True):
    """Where the figures come from. `notes` says what a roofline assumes."""

    command: str = ""
    commit: str = ""
    machine: str = ""
    model: str = ""
    device: str = ""
    dtype: str = ""
    threads: int = 0
    when: str = ""
    notes: str = ""


class Replies(msgspec.Struct, frozen=True):
    """How much a model says: lognormal tokens a reply, and codec frames a token of it that is spoken."""

    median_tokens: float = 60.0
    sigma: float = 0.6
    frames_per_token: float = 3.15


class SoundWindow(msgspec.Struct, frozen=True):
    """Frames sound in blocks of `block`, each as soon as `ahead` more blocks are there, or the end is."""

    block: int
    ahead: int

    def num_sure(self, known: int, is_last: bool) -> int:
        """Of a stream's first `known` frames, those that may sound."""
        return known if is_last else max(known // self.block - self.ahead, 0) * self.block


class Reading(msgspec.Struct, frozen=True):
    """How a codec that reads text speaks it: phrase by phrase, each made into sound window by window.

    first_tokens    of a reply's text that have to be there before its first phrase begins
    phrase_tokens   of each later phrase
    token_samples   24 kHz samples that a token sounds
    window_samples  24 kHz samples of a window
    """

    first_tokens: int
    phrase_tokens: int
    token_samples: int
    window_samples: int


class Served(msgspec.Struct, frozen=True):
    """The engine that was measured, as far as a simulator has to know it.

    node           what it decides by
    depth          steps in flight while the next is decided; 0: a step holds up the driver
    frame_samples  24 kHz samples of a codec frame; delay_samples of them a stream's first chunk lacks
    window         of a vocoder that decodes windows; None: every frame sounds when it is decoded
    replies        None where nobody says
    reading        of a codec that reads text; None: it takes frames
    max_recording_s  what it hears at once; None: any
    """

    node: NodeConfig
    depth: int = 0
    frame_samples: int = 1920
    delay_samples: int = 555
    window: SoundWindow | None = None
    replies: Replies | None = None
    reading: Reading | None = None
    max_recording_s: float | None = None


def served(node: NodeConfig, depth: int, shape: ModelShape) -> Served:
    """By a model's shape, its frames."""
    vocoder = shape.vocoder
    if vocoder is None:
        return Served(node, depth)
    if isinstance(vocoder, FlowVocoderShape):
        window = SoundWindow(vocoder.block, vocoder.ahead)
        return Served(node, depth, vocoder.frame_samples, 0, window)
    return Served(node, depth, vocoder.frame_samples, vocoder.delay_samples)


class Datasheet(msgspec.Struct, frozen=True):
    """What a profile was worked out for: a model, and devices that share each of its decoders.

    memory_gib  of one device; None where it is the host's own
    """

    shape: ModelShape
    ranks: int = 1
    memory_gib: float | None = None

    def shared_by(self, stage: str) -> int:
        """Of its devices, those that share the stage. Encoders and vocoders are whole on one."""
        shape = self.shape.stages[stage]
        return shape.shared_by(self.ranks) if isinstance(shape, DecoderShape) else 1


class Profile(msgspec.Struct, frozen=True):
    """Everything that a simulator or a policy asks about time.

    links     copies by where to ("host", "device"), "peer": from one process's device to another's,
              "host_memory": what copies of all devices together have of it, and "ranks": a collective
    decide_s  of the deciding half and the driver, per step
    served    None of a datasheet
    datasheet None of what was measured
    """

    stages: dict[str, StageProfile]
    links: dict[str, LinkModel]
    source: Literal["measured", "roofline"]
    provenance: Provenance
    decide_s: float = 0.0
    served: Served | None = None
    datasheet: Datasheet | None = None
    version: int = VERSION

    def step_s(self, step: Step, stage: str | None = None) -> float:
        """Seconds from the order of a step to its report; `stage` where the step is of one of its units.

        Raises ConfigError for a stage it doesn't have.
        """
        model = self.stage(stage or step.stage).model
        if isinstance(step, ArStep):
            if isinstance(model, ArModel):
                return model.seconds(ar_features(step, model.layers))
        elif isinstance(step, CodecStep):
            if isinstance(model, CodecModel):
                return model.seconds(codec_features(step))
        elif isinstance(model, EncoderModel):
            return model.seconds(encode_features(step.media, model.most_tokens or inf))
        raise self._other_kind(step.stage)

    def spoken_s(self, features: SpeechFeatures, stage: str) -> float:
        """Seconds from the order of a step of a codec that reads text to its report. Raises ConfigError for a
        stage that it does not have, or has as another kind."""
        model = self.stage(stage).model
        if isinstance(model, SpeechModel):
            return model.seconds(features)
        raise self._other_kind(stage)

    def _other_kind(self, stage: str) -> ConfigError:
        return ConfigError(
            f"the profile of {self.provenance.model!r} has stage {stage!r} as another kind than the "
            "graph has it; profile this model"
        )

    def copy_s(self, order: CopyBlocks, num_bytes: float) -> float:
        """Seconds from the order of a copy of so many bytes to its report. Raises ConfigError."""
        if order.to not in self.links:
            known = ", ".join(sorted(self.links)) or "none"
            raise ConfigError(
                f"the profile of {self.provenance.model!r} has no link to {order.to!r}; it has {known}"
            )
        return self.links[order.to].seconds(num_bytes)

    def host_s(self, num_bytes: float) -> float:
        """Seconds of the host's memory that copies of so many bytes take; 0 where nobody knows."""
        return self.links.get("host_memory", NO_LINK).seconds(num_bytes)

    def send_s(self, num_bytes: float) -> float:
        """Seconds that so many bytes take to a unit in another process."""
        return self.links.get("peer", SHARED_MEMORY).seconds(num_bytes)

    def stage(self, name: str) -> StageProfile:
        """Raises ConfigError for a stage that was not profiled."""
        if name not in self.stages:
            raise ConfigError(
                f"the profile of {self.provenance.model!r} has no stage {name!r} (it has: "
                f"{', '.join(sorted(self.stages))}); make one of the model that is run: antiphon profile"
            )
        return self.stages[name]

    def with_host_link(self, bytes_per_s: float) -> Profile:
        """A copy of the profile in which copies to the host and back run at this rate, each way."""
        links = {
            to: LinkModel(self.links.get(to, NO_LINK).alpha_s, 1 / bytes_per_s) for to in ("host", "device")
        }
        return msgspec.structs.replace(self, links=self.links | links)

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)

    @classmethod
    def from_json(cls, data: bytes, name: str = "profile") -> Profile:
        """Raises ConfigError that says where the file, called `name`, is wrong."""
        try:
            profile = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, AssertionError) as error:
            raise ConfigError(
                f"{name} is not a latency profile: {error}. Make one: antiphon profile"
            ) from None
        if profile.version != VERSION:
            raise ConfigError(f"{name} has version {profile.version}, this program reads {VERSION}")
        return profile
