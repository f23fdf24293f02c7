"""How large a deployment's units are, as written or as shares of memory leave it, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.assembly.deployment import Deployment, StageSizes, WrittenEdge
from antiphon.assembly.footprint import GIB, MemoryUse, ModelFacts, UnitSizes, kv_token_bytes, parts
from antiphon.assembly.placement import Placement
from antiphon.core.config import EngineOptions, Unit
from antiphon.core.graph import StageGraph, StageKind
from antiphon.latency.shapes import DecoderShape

Memory = Mapping[str, Mapping[MemoryUse, int]]
USUAL = EngineOptions().of("")
SIZES = {StageKind.ENCODER: (), StageKind.CODEC: ("max_rows",), StageKind.AR: tuple(StageSizes.model_fields)}
"""What of them a unit of the kind has."""
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Sizing:
    """`problems` is added to."""

    deployment: Deployment
    placement: Placement
    graph: StageGraph
    model: ModelFacts | None
    problems: list[str]

    def sizes(self, stage: str) -> dict[str, int]:
        """What the stage has a size of, as written for it or for all; KV by its share of memory where that
        says it."""
        spec, names = self.deployment.stage(stage), SIZES[self.graph.stage(stage).kind]
        own = written(spec)
        self.problems.extend(
            f"stages.{stage}.{name}: only decoders have that; take it out"
            for name in own
            if name not in names
        )
        chosen = {**written(self.deployment.defaults), **own}
        if self.graph.stage(stage).kind is StageKind.AR and spec.kv_tokens is None:
            share = self._kv_share(stage, chosen)
            chosen |= {} if share is None else {"kv_tokens": share}
        return {name: value for name, value in chosen.items() if name in names}

    def load(self, stage: str, sizes: Mapping[str, int]) -> UnitSizes:
        return UnitSizes(
            sizes.get("max_rows", USUAL.max_rows),
            sizes.get("kv_tokens", usual_kv_tokens(self.deployment)),
            sizes.get("step_tokens", USUAL.step_tokens),
            self._chunk(stage),
            self.deployment.limits.session.max_image_pixels,
        )

    def memory(self, sizes: Mapping[str, Mapping[str, int]]) -> dict[str, dict[MemoryUse, int]]:
        """Bytes of each unit. Decoders of one stage share their weights in a process."""
        model = self.model
        assert model is not None, "nobody asks for the memory of a model that is not known"
        found: dict[str, dict[MemoryUse, int]] = {}
        loaded: set[tuple[str, str, str]] = set()
        for unit in self.placement.units:
            there = self.placement.torch_device(unit)
            taken = parts(model, unit.stage, self.dtype(there), self.load(unit.stage, sizes[unit.stage]))
            place = (unit.stage, unit.process, there)
            if place in loaded and self.graph.stage(unit.stage).kind is StageKind.AR:
                taken["weights"] = 0
            loaded.add(place)
            found[unit.name] = taken
        return found

    def dtype(self, torch_device: str) -> str:
        if self.deployment.dtype != "auto":
            return self.deployment.dtype
        return "float32" if torch_device == "cpu" else "bfloat16"

    def _kv_share(self, stage: str, sizes: Mapping[str, int]) -> int | None:
        """Tokens that the smallest share of its units leaves beside weights and work space; None: no share is
        given, or it can't be told."""
        fraction = self.deployment.stage(stage).memory_fraction
        if fraction is None:
            return None
        if self.model is None:
            self.problems.append(
                f"stages.{stage}.memory_fraction: how much KV that leaves depends on the model; name one, or "
                "say kv_tokens"
            )
            return None
        found = [self._kv_of(unit, fraction, sizes, self.model) for unit in self.placement.of(stage)]
        return min((tokens for tokens in found if tokens is not None), default=None)

    def _kv_of(self, unit: Unit, fraction: float, sizes: Mapping[str, int], model: ModelFacts) -> int | None:
        there = self.placement.torch_device(unit)
        capacity, shape = self.placement.memory[there], model.shape.stages[unit.stage]
        assert isinstance(shape, DecoderShape), "a stage with KV"
        if capacity is None:
            self.problems.append(
                f"stages.{unit.stage}.memory_fraction: it is not known how much memory "
                f"{unit.device or there} has; say its `kind` or `memory_gib`, or say kv_tokens"
            )
            return None
        dtype, block = self.dtype(there), sizes.get("block_size", USUAL.block_size)
        taken = parts(model, unit.stage, dtype, self.load(unit.stage, {**sizes, "kv_tokens": 0}))
        left = int(fraction * capacity) - sum(taken.values())
        tokens = max(left, 0) // kv_token_bytes(shape, dtype) // block * block
        least = self.deployment.limits.max_context_tokens
        if tokens < least:
            needed = sum(taken.values()) + least * kv_token_bytes(shape, dtype)
            self.problems.append(
                f"stages.{unit.stage}.memory_fraction: {fraction:g} of {there} ({gib(capacity)}) leaves KV "
                f"for {tokens} tokens, and one context (limits.max_context_tokens) has {least}; that needs "
                f"{needed / capacity:.2f} at least"
            )
            return None
        return tokens

    def _chunk(self, stage: str) -> int:
        """Frames that a codec decodes together."""
        into = [edge for edge in self.graph.edges if edge.target == stage]
        return max((self._edge_chunk(edge.source, stage, edge.chunk) for edge in into), default=1)

    def _edge_chunk(self, source: str, target: str, usual: int) -> int:
        return self.deployment.edges.get(f"{source} -> {target}", WrittenEdge()).chunk or usual


def overfull(sizing: Sizing, sizes: Mapping[str, Mapping[str, int]], memory: Memory) -> list[str]:
    """Devices of which more than all is shared out or taken, and units that take more than their share."""
    placement = sizing.placement
    problems: list[str] = []
    for there, capacity in placement.memory.items():
        units = [unit for unit in placement.units if placement.torch_device(unit) == there]
        shares = {unit.name: sizing.deployment.stage(unit.stage).memory_fraction or 0.0 for unit in units}
        if sum(shares.values()) > 1 + ROUNDING:
            said = ", ".join(f"{name} {share:g}" for name, share in shares.items() if share)
            problems.append(f"{there}: fractions sum to {sum(shares.values()):g} ({said}); 1 at most")
        if capacity is not None:
            problems += _too_much(there, capacity, units, memory, shares)
    return problems + _host_tiers(sizing, sizes)


def _too_much(
    there: str, capacity: int, units: list[Unit], memory: Memory, shares: Mapping[str, float]
) -> list[str]:
    taken = {unit.name: sum(memory.get(unit.name, {}).values()) for unit in units}
    problems = [
        f"{there}: {name} takes {gib(bytes_)}, and its share ({shares[name]:g} of {gib(capacity)}) is "
        f"{gib(int(shares[name] * capacity))}; raise memory_fraction, or have fewer rows or kv_tokens"
        for name, bytes_ in taken.items()
        if shares[name] and bytes_ > shares[name] * capacity * (1 + ROUNDING)
    ]
    if sum(taken.values()) > capacity:
        said = ", ".join(f"{name} {gib(bytes_)}" for name, bytes_ in taken.items())
        problems.append(
            f"{there} has {gib(capacity)}, and its stages take {gib(sum(taken.values()))} ({said}); put some "
            "elsewhere, or have fewer kv_tokens"
        )
    return problems


def _host_tiers(sizing: Sizing, sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """KV is copied, to the host or from a unit that reads to one that writes, within one device a process."""
    placement, problems = sizing.placement, list[str]()
    ar = [unit for unit in placement.units if sizing.graph.stage(unit.stage).kind is StageKind.AR]
    for unit in ar:
        beside = {placement.torch_device(each) for each in ar if each.process == unit.process}
        keys = {"host_kv_tokens": sizes[unit.stage].get("host_kv_tokens"), "prefill": unit.role != "both"}
        problems += [
            f"stages.{unit.stage}.{key}: the decoders of its process are on {', '.join(sorted(beside))}, "
            "and need one device for that; give them processes of their own"
            for key, chosen in keys.items()
            if chosen and len(beside) > 1
        ]
    return problems


def written(spec: StageSizes) -> dict[str, int]:
    """The sizes that stand in the file."""
    return {name: value for name in StageSizes.model_fields if (value := getattr(spec, name)) is not None}


def usual_kv_tokens(deployment: Deployment) -> int:
    """Where nothing says: one context at least, in whole blocks."""
    block = deployment.defaults.block_size or USUAL.block_size
    return max(USUAL.kv_tokens, -(-deployment.limits.max_context_tokens // block) * block)


def gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB / 10 else f"{num_bytes / 2**20:.1f} MiB"
