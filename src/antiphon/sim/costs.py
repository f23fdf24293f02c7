"""What things cost on virtual time: a latency profile, of an engine that was measured or from a datasheet."""

from __future__ import annotations

from typing import Protocol

from antiphon.core.plans import CopyBlocks, Step
from antiphon.latency.features import SpeechFeatures


class CostModel(Protocol):
    """Seconds that a device is busy with a step, that bytes are under way, and that a decision takes."""

    @property
    def decide_s(self) -> float:
        """A step."""
        ...

    def step_s(self, step: Step, stage: str) -> float:
        """`stage` as the graph calls it; the step names its unit."""
        ...

    def spoken_s(self, features: SpeechFeatures, stage: str) -> float:
        """A step of a codec that reads text, by what is said in it."""
        ...

    def copy_s(self, order: CopyBlocks, num_bytes: float) -> float:
        """Between tiers."""
        ...

    def host_s(self, num_bytes: float) -> float:
        """So many bytes of such copies keep the host's memory busy, which all its devices share."""
        ...

    def send_s(self, num_bytes: float) -> float:
        """Between the devices of two units."""
        ...
