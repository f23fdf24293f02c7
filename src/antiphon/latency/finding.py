"""Profiles by what an operator calls them: a datasheet's hardware, or a file."""

from __future__ import annotations

from pathlib import Path

from antiphon.core.errors import ConfigError, no_such, system_words
from antiphon.latency.profile import Profile, Provenance
from antiphon.latency.roofline import datasheet_name, hardware_names, roofline
from antiphon.latency.shapes import ModelShape, find_shape

RELEASED = "qwen3-omni-30b-a3b"


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
        raise ConfigError(no_such("hardware", what, hardware_names(), ", or a profile's JSON file"))
    if shape is not None or ranks is not None:
        raise ConfigError(
            f"{path} is a profile, which says itself of which model it is and how many devices share its "
            f"decoders; leave that out, or name a datasheet ({', '.join(hardware_names())})"
        )
    try:
        return Profile.from_json(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {system_words(error)}") from None
