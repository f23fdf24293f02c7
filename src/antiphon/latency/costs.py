"""What a node knows of the time that its steps and copies take where a profile says it: as its configuration
has it, and as policies ask for it."""

from __future__ import annotations

from math import nan
from typing import Any

import msgspec

from antiphon.core.errors import ConfigError
from antiphon.core.facts import Ints, Mask
from antiphon.core.plans import Budget
from antiphon.latency.cutting import within
from antiphon.latency.features import CodecFeatures, row_features
from antiphon.latency.models import ArModel, CodecModel, LinkModel, StageModel


class Times(msgspec.Struct, frozen=True):
    """A part of a profile.

    stages       models of steps by stage; of encoders none, since what a step takes depends on its media.
                 Nor can a policy ask it of a codec that reads text: that depends on what is said in the step
    links        copies by where to ("host", "device")
    block_bytes  of a block by stage and KV group, as the node's stages have them
    """

    stages: dict[str, StageModel] = {}
    links: dict[str, LinkModel] = {}
    block_bytes: dict[str, dict[str, int]] = {}

    @classmethod
    def of(cls, written: dict[str, Any]) -> Times:
        """From `NodeConfig.times`. Raises ConfigError."""
        try:
            return msgspec.convert(written, cls)
        except (msgspec.MsgspecError, AssertionError) as error:
            raise ConfigError(f"times: {error}; they are part of a latency profile") from None

    @property
    def written(self) -> dict[str, Any]:
        """For `NodeConfig.times`."""
        return msgspec.to_builtins(self)


class ProfiledDecoder:
    """Implements `policy.base.StepCost` for a decoder. Rows count as if each of them drew."""

    def __init__(self, model: ArModel) -> None:
        self._model = model

    def seconds(self, counts: Ints, contexts: Ints) -> float:
        return self._model.seconds(row_features(counts, contexts)) if len(counts) else 0.0

    def within(self, budget: Budget, counts: Ints, contexts: Ints, told: Mask | None = None) -> Ints | None:
        return within(self._model.seconds, budget, counts, contexts, told)


class ProfiledCodec:
    """Implements `policy.base.StepCost` for a codec. Streams that bring equally many frames are decoded
    together."""

    def __init__(self, model: CodecModel) -> None:
        self._model = model

    def seconds(self, counts: Ints, contexts: Ints) -> float:
        frames = counts.tolist()
        if not frames:
            return 0.0
        return self._model.seconds(CodecFeatures(len(frames), sum(frames), len(set(frames))))

    def within(self, budget: Budget, counts: Ints, contexts: Ints, told: Mask | None = None) -> Ints | None:
        """Frames are no prompt: no stream is cut."""
        return counts


class ProfiledCopies:
    """Copies of a stage's blocks."""

    def __init__(self, times: Times, stages: dict[str, str]) -> None:
        """stages: of units."""
        self._times = times
        self._stages = stages

    def reported(self, unit: str, group: str, to: str, num_blocks: int, seconds: float) -> None:
        """The profile is not corrected."""

    def seconds(self, unit: str, group: str, to: str, num_blocks: int) -> float:
        """nan for what the profile does not know."""
        num_bytes = self._times.block_bytes.get(self._stages[unit], {}).get(group)
        link = self._times.links.get(to)
        return nan if num_bytes is None or link is None else link.seconds(num_bytes * num_blocks)
