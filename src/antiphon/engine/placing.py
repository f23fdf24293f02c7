"""What an operator chose for single stages and edges, and what the devices must hold of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import msgspec
import torch

from antiphon.checkpoint.files import BYTES_PER_GIB, Checkpoint
from antiphon.core.config import ArConfig, EngineOptions, NodeConfig, Unit
from antiphon.core.errors import CheckpointError, ConfigError
from antiphon.core.graph import StageGraph
from antiphon.engine.family import Family
from antiphon.latency.shapes import DecoderShape


class Placed(Protocol):
    """A checkpoint that has been understood (`engine.load.Opened`), as far as places go."""

    @property
    def node(self) -> NodeConfig: ...
    @property
    def family(self) -> Family: ...
    @property
    def config(self) -> Any: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def checkpoint(self) -> Checkpoint: ...
    def device_of(self, unit: Unit) -> torch.device: ...
    def keeps_blocks(self, device: torch.device) -> bool: ...


def configured(node: NodeConfig, graph: StageGraph, options: EngineOptions) -> NodeConfig:
    """The checkpoint's node with sampling and chunks as chosen. Raises ConfigError for a stage or an edge
    that it has not, and for chunks where none are gathered."""
    held = [*node.encoder, *node.ar, *node.codec]
    if unknown := [name for name in options.stages if name not in held]:
        raise ConfigError(
            f"stages: {unknown[0]!r} is not a stage of this checkpoint; it has {', '.join(held)}"
        )
    for edge in options.edges:
        graph.changed(edge.source, edge.target, **edge.chosen)
    ar = {name: _drawing(name, config, options) for name, config in node.ar.items()}
    return msgspec.structs.replace(node, ar=ar, edges=options.edges)


def check_places(opened: Placed, available: Callable[[torch.device], int]) -> None:
    """Raise CheckpointError where the weights of a device's stages need more than is available there."""
    for device, units in _by_device(opened).items():
        needed = _weights(opened, units)
        if needed > available(device):
            raise CheckpointError(
                f"{device} has {_gib(available(device))} available, and the weights of "
                f"{', '.join(_stages(units))} as {opened.dtype} need {_gib(needed)}. Use a smaller dtype, or "
                "put stages on other devices"
            )


def check_kv(opened: Placed, available: Callable[[torch.device], int]) -> None:
    """Raise ConfigError where KV does not fit beside the weights of a device's stages."""
    for device, units in _by_device(opened).items():
        kv = {unit: _kv(opened, unit) for unit in units if unit.stage in opened.node.ar}
        weights, free = _weights(opened, units), available(device)
        if kv and weights + sum(kv.values()) > free:
            sizes = ((unit, opened.node.ar[unit.stage], needed) for unit, needed in kv.items())
            said = ", ".join(
                f"{unit.name} {_gib(needed)} for kv_tokens {config.num_blocks * config.block_size}"
                for unit, config, needed in sizes
            )
            raise ConfigError(
                f"{device} has {_gib(free)} available; weights take {_gib(weights)} of it, and KV needs more "
                f"than the rest ({said}). Have fewer kv_tokens, or, since one context has to fit, fewer "
                "max_context_tokens, a smaller dtype, or put stages on other devices"
            )


def check_tiers(opened: Placed) -> None:
    """Raises ConfigError where one process would have to copy KV to the host from several devices, or from
    one to another."""
    ar = [unit for unit in opened.node.placed if unit.stage in opened.node.ar]
    tiered = [unit for unit in ar if opened.node.ar[unit.stage].host_blocks or unit.role != "both"]
    for unit in tiered:
        beside = [other for other in ar if other.process == unit.process]
        why = "host_kv_tokens needs" if unit.role == "both" else f"its role ({unit.role}) needs"
        if len(set(map(opened.device_of, beside))) > 1:
            raise ConfigError(
                f"stage {unit.stage}: {why} the decoders of a process on one device; give "
                "those on another device a process of their own"
            )


def _drawing(name: str, config: ArConfig, options: EngineOptions) -> ArConfig:
    if name not in options.stages:
        return config
    try:
        sampling = options.stages[name].sampling.over(config.sampling)
    except ConfigError as error:
        raise ConfigError(f"stage {name}: {error}") from None
    return msgspec.structs.replace(config, sampling=sampling)


def _by_device(opened: Placed) -> dict[torch.device, list[Unit]]:
    found: dict[torch.device, list[Unit]] = {}
    for unit in opened.node.placed:
        found.setdefault(opened.device_of(unit), []).append(unit)
    return found


def _stages(units: list[Unit]) -> list[str]:
    return list(dict.fromkeys(unit.stage for unit in units))


def _weights(opened: Placed, units: list[Unit]) -> int:
    """Bytes. Of all stages the files say it, and no stage's modules are imported to lay it out."""
    keeps_blocks = opened.keeps_blocks(opened.device_of(units[0]))
    if opened.checkpoint.tensors and {*_stages(units)} == {unit.stage for unit in opened.node.placed}:
        return opened.checkpoint.bytes_held(opened.dtype, keeps_blocks=keeps_blocks)
    shapes = _shapes(opened.family, opened.config, _stages(units))
    quantised = [
        info
        for name in shapes
        if (info := opened.checkpoint.tensors.get(name)) is not None and info.is_quantised
    ]
    spared = sum(
        info.num_elements * opened.dtype.itemsize - info.bytes_held(opened.dtype, keeps_blocks=keeps_blocks)
        for info in quantised
    )
    return sum(map(prod, shapes.values())) * opened.dtype.itemsize - spared


def num_weights(family: Family, config: Any, stages: list[str]) -> int:
    """Elements."""
    return sum(map(prod, _shapes(family, config, stages).values()))


def _shapes(family: Family, config: Any, stages: list[str]) -> dict[str, tuple[int, ...]]:
    """By tensor; what two stages share is there once."""
    shapes: dict[str, tuple[int, ...]] = {}
    for stage in stages:
        shapes |= family.tensor_shapes(stage, config)
    return shapes


def _kv(opened: Placed, unit: Unit) -> int:
    """Bytes of a decoder's pages, with the payload beside them."""
    shape, config = opened.family.read_shape(opened.config, "").stages[unit.stage], opened.node.ar[unit.stage]
    assert isinstance(shape, DecoderShape), "a stage with KV"
    return config.num_blocks * config.block_size * shape.token_elements * opened.dtype.itemsize


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / BYTES_PER_GIB:.2f} GiB"
