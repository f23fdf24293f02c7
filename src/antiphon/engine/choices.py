"""What an operator chose, held against the model and the devices: all that can be told without weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import torch

from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph
from antiphon.engine.device import pick_dtype
from antiphon.engine.family import Family
from antiphon.engine.placing import configured
from antiphon.nn.backends import pick_backend


def suit(
    options: EngineOptions, device: torch.device, others: Iterable[torch.device] = ()
) -> tuple[torch.dtype, str]:
    """The dtype, and the attention of the main device. Raises ConfigError for what a device cannot do."""
    dtype = pick_dtype(options.dtype, device)
    attention = pick_backend(options.attention, device, dtype, may_round=options.dtype == "auto")
    for place in (device, *others):
        if options.graphs == "on" and place.type != "cuda":
            raise ConfigError(f"--cuda-graphs needs CUDA, and the device is {place}")
    return dtype, attention


def read_node(
    graph: StageGraph, family: Family, config: Any, generation: Mapping[str, Any], options: EngineOptions
) -> NodeConfig:
    """The model's node with sizes, units, sampling and chunks as chosen. Raises ConfigError for what it
    cannot do."""
    node = family.read_geometry(config, generation, options)
    units = options.units
    if options.stages_apart:
        units = tuple(msgspec.structs.replace(unit, process=unit.name) for unit in node.placed)
    node = configured(msgspec.structs.replace(node, graph=graph.family, units=units), graph, options)
    for name in options.divided:
        if name not in node.ar:
            raise ConfigError(f"divided: {name!r} is not a decoder; those are {', '.join(node.ar)}")
    for name in filter(options.is_divided, node.ar):
        family.check_ranks(name, config, options.tensor_parallel)
    return node
