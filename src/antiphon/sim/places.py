"""Where the units of a simulated node are: encoders, and what writes down what they hear, beside the decoder
that reads, vocoders beside the one that speaks, as in LiveServe §7.1. Readers that share a process share
its one encoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from antiphon.core.config import NodeConfig, Unit
from antiphon.core.errors import ConfigError
from antiphon.graphs import find_graph


@dataclass(frozen=True, slots=True)
class Replicas:
    """Devices that read and write, and devices that speak. `apart`: each in a process of its own.
    Raises ConfigError."""

    thinkers: int = 1
    talkers: int = 1
    apart: bool = False

    def __post_init__(self) -> None:
        for count in (self.thinkers, self.talkers):
            if count < 1:
                raise ConfigError(f"{count} replicas; it must be 1 or more of every stage")


def devices_of(units: Iterable[Unit]) -> dict[str, list[Unit]]:
    """Units by the device that they are on, in pipeline order."""
    found: dict[str, list[Unit]] = {}
    for unit in units:
        found.setdefault(unit.device, []).append(unit)
    return found


def placed(node: NodeConfig, replicas: Replicas) -> tuple[Unit, ...]:
    """In pipeline order. A stage of which there is one goes by its own name. Raises ConfigError for talkers
    of a model without a voice."""
    there = (*node.encoder, *node.ar, *node.codec)
    reader, *speaking = [name for name in find_graph(node.graph).reply_stages if name in there]
    if not speaking and replicas.talkers > 1:
        raise ConfigError(f"{replicas.talkers} talkers: the model has no voice; leave them out")
    found: list[Unit] = []
    for stage in there:
        beside = speaking[0] if stage in speaking else reader
        count = replicas.talkers if stage in speaking else replicas.thinkers
        whole = stage in node.encoder and not replicas.apart
        for number in range(1 if whole else count):
            tail = f".{number}" if count > 1 else ""
            device = beside + tail
            name = stage if whole else stage + tail
            found.append(Unit(name, stage, device, device if replicas.apart else ""))
    return tuple(found)
