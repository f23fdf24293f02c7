"""Does it fit? Weights, KV and work space of a datasheet's engine, device by device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from msgspec import structs

from antiphon.assembly.footprint import GIB, ModelFacts, UnitSizes, kv_token_bytes, parts, shape_parameters
from antiphon.assembly.sizing import gib
from antiphon.core.config import ArConfig, NodeConfig, Unit
from antiphon.core.errors import ConfigError
from antiphon.graphs import find_graph
from antiphon.latency.profile import Datasheet
from antiphon.latency.roofline import check_shared
from antiphon.latency.shapes import DecoderShape
from antiphon.wire.limits import Limits

RANKS = (2, 4, 8)
"""Devices of one host that may share a decoder."""


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """One device of a datasheet, and what a node puts on each. A decoder that several devices share takes an
    equal part of each, of its KV no less than a head; all else is whole on one."""

    sheet: Datasheet
    dtype: str
    capacity: int

    def kv_tokens(self, node: NodeConfig) -> int:
        """Of a replica of a stage: as many as the fullest device has room for, 0 or less if none."""
        found: list[int] = []
        for units in _by_place(node):
            token_bytes = sum(self._token_bytes(unit) for unit in units)
            if token_bytes:
                left = self.capacity - sum(self._bytes(node, unit, kv_tokens=0) for unit in units)
                found.append(int(left / token_bytes))
        return min(found)

    def check(self, node: NodeConfig) -> None:
        """Raises ConfigError for a device that has to hold more than it can."""
        for units in _by_place(node):
            taken = {unit.name: self._bytes(node, unit) for unit in units}
            needed = sum(taken.values())
            if needed > self.capacity:
                said = ", ".join(f"{name} {gib(num_bytes)}" for name, num_bytes in taken.items())
                raise ConfigError(
                    f"device {units[0].device} needs {gib(needed)} ({said}), and one has "
                    f"{gib(self.capacity)}; choose fewer kv_tokens or max_rows, larger hardware, or "
                    f"{self._more_ranks(node)}"
                )

    def _more_ranks(self, node: NodeConfig) -> str:
        """How many devices would have to share each decoder, in words."""
        for ranks in (ranks for ranks in RANKS if ranks > self.sheet.ranks):
            if replace(self, sheet=structs.replace(self.sheet, ranks=ranks))._holds(node):
                return f"have {ranks} devices share each decoder (--tensor-parallel {ranks})"
        return "another model: devices that share its decoders do not hold it either"

    def _holds(self, node: NodeConfig) -> bool:
        try:
            for stage, shape in self.sheet.shape.stages.items():
                check_shared(stage, shape, self.sheet.ranks)
        except ConfigError:
            return False
        taken = (sum(self._bytes(node, unit) for unit in units) for units in _by_place(node))
        return max(taken) <= self.capacity

    def _bytes(self, node: NodeConfig, unit: Unit, kv_tokens: int | None = None) -> int:
        shape, graph = self.sheet.shape, find_graph(node.graph)
        facts = ModelFacts(shape.name, graph, shape, {unit.stage: shape_parameters(shape.stages[unit.stage])})
        taken = parts(facts, unit.stage, self.dtype, _load(node, unit.stage, kv_tokens))
        kv_bytes, own = taken.pop("KV", 0), shape.stages[unit.stage]
        if isinstance(own, DecoderShape):
            ranks = self.sheet.shared_by(unit.stage)
            return sum(taken.values()) // ranks + kv_bytes // min(ranks, own.kv_heads)
        return sum(taken.values())

    def _token_bytes(self, unit: Unit) -> float:
        shape = self.sheet.shape.stages[unit.stage]
        if not isinstance(shape, DecoderShape):
            return 0.0
        return kv_token_bytes(shape, self.dtype) / min(self.sheet.shared_by(unit.stage), shape.kv_heads)


def room_of(sheet: Datasheet, dtype: str) -> DeviceRoom | None:
    """None where the memory is the host's own: nobody says how much that is."""
    return None if sheet.memory_gib is None else DeviceRoom(sheet, dtype, int(sheet.memory_gib * GIB))


def _by_place(node: NodeConfig) -> Iterable[list[Unit]]:
    places: dict[tuple[str, str], list[Unit]] = {}
    for unit in node.placed:
        places.setdefault((unit.process, unit.device), []).append(unit)
    return places.values()


def _load(node: NodeConfig, stage: str, kv_tokens: int | None) -> UnitSizes:
    config = node.ar.get(stage) or node.codec.get(stage)
    chunk = max((edge.chunk for edge in find_graph(node.graph).edges if edge.target == stage), default=1)
    decoder = config if isinstance(config, ArConfig) else None
    held = decoder.num_blocks * decoder.block_size if decoder is not None else 0
    return UnitSizes(
        config.max_rows if config is not None else 0,
        held if kv_tokens is None else kv_tokens,
        decoder.step_tokens if decoder is not None else 0,
        chunk,
        Limits().max_image_pixels,
    )
