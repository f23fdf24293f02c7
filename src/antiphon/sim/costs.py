"""What things cost on virtual time: a latency profile, of an engine that was measured or from a datasheet."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from antiphon.core.errors import ConfigError
from antiphon.core.plans import CopyBlocks, Step
from antiphon.latency.profile import Profile, Provenance
from antiphon.latency.roofline import datasheet_name, hardware_names, roofline
from antiphon.latency.shapes import ModelShape, find_shape

RELEASED = "qwen3-omni-30b-a3b"


class CostModel(Protocol):
    """Seconds that a device is busy with a step, that bytes are under way, and that a decision takes."""

    @property
    def decide_s(self) -> float:
        """A step."""
        ...

    def step_s(self, step: Step, stage: str) -> float:
        """`stage` as the graph calls it; the step names its unit."""
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


def find_costs(what: str, shape: ModelShape | None = None, ranks: int | None = None) -> Profile:
    """The datasheet of hardware by its name, or a profile's JSON file.

    shape  of the model on a datasheet; None: Qwen3-Omni-30B-A3B
    ranks  devices of a datasheet that share each decoder; None: one has it whole

    Raises ConfigError.
    """
    if datasheet_name(what) is not None:
        return roofline(what, shape or find_shape(RELEASED), Provenance(), ranks=ranks or 1)
    path = Path(what)
    if path.suffix != ".json" and not path.is_file():
        known = ", ".join(hardware_names())
        raise ConfigError(f"unknown hardware {what!r}; known: {known}, or a profile's JSON file")
    if shape is not None or ranks is not None:
        raise ConfigError(
            f"{path} is a profile, which says itself of which model it is and how many devices share its "
            f"decoders; leave that out, or name a datasheet ({', '.join(hardware_names())})"
        )
    try:
        return Profile.from_json(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
