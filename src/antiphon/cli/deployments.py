"""What commands share about deployments: the model that one names, the machine at hand, flags that win."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

import msgspec

from antiphon.assembly.deployment_file import read_deployment
from antiphon.assembly.footprint import ModelFacts, facts_of
from antiphon.assembly.placement import Machine
from antiphon.assembly.resolve import Resolved, resolve
from antiphon.core.config import EngineOptions
from antiphon.core.errors import ConfigError
from antiphon.core.model_source import name_of
from antiphon.engine.family import family_of
from antiphon.graphs import find_graph
from antiphon.latency.shapes import find_shape, shape_name


def resolved(what: str, model: str, progress: Callable[[str], None]) -> tuple[Resolved, str]:
    """The deployment that a name or a path says, with the source of the model it is for ("": none is named);
    `model` wins over the file's (`Deployment.source`). Raises ConfigError, or CheckpointError for a model
    that isn't there."""
    deployment = read_deployment(what)
    named = deployment.source(model)
    facts = model_facts(named, progress) if named else None
    machine = this_machine()
    found = resolve(deployment, facts, machine)
    return replace(found, problems=(*found.problems, *unsuited(found, machine))), named


def unsuited(found: Resolved, machine: Machine) -> list[str]:
    """What its devices cannot do. Libraries are looked for only where the devices are here."""
    import torch

    from antiphon.engine.choices import suit
    from antiphon.nn.backends import BACKENDS

    options, places = found.options, [torch.device(there) for there in found.placement.memory]
    if options is None:
        return []
    main = torch.device(machine.torch_device(options.device))
    backend = BACKENDS.get(options.attention)
    if backend is not None and backend.package and found.placement.absent(machine):
        options = msgspec.structs.replace(options, attention="auto")
    try:
        suit(options, main, places)
    except ConfigError as error:
        return [str(error)]
    return []


def model_facts(model: str, progress: Callable[[str], None]) -> ModelFacts:
    """From a checkpoint's config.json, or from the shape of a model that is known by name."""
    known = shape_name(model)
    if known is not None and not Path(model).is_dir():
        return facts_of(find_shape(known), model)
    return checkpoint_facts(model, progress)


def checkpoint_facts(model: str, progress: Callable[[str], None]) -> ModelFacts:
    """From config.json, of a checkpoint or of its parts, without weights. Raises CheckpointError or
    ConfigError."""
    from antiphon.checkpoint.files import open_directory
    from antiphon.engine.choices import read_node
    from antiphon.engine.load import takes_media

    checkpoint = open_directory(model, progress=progress, takes_media=takes_media)
    graph = find_graph(checkpoint.config["model_type"])
    family = family_of(graph)
    config = family.read_config(checkpoint.config)
    shape = family.read_shape(config, name_of(model))
    check = partial(read_node, graph, family, config, checkpoint.generation)
    stages = dict.fromkeys(unit.stage for unit in check(EngineOptions()).placed)
    tensors = {stage: family.tensor_shapes(stage, config).values() for stage in stages}
    parameters = {stage: sum(map(prod, shapes)) for stage, shapes in tensors.items()}
    return ModelFacts(model, graph, shape, parameters, check)


def derived_sizes(model: str, progress: Callable[[str], None]) -> dict[str, str]:
    """Each size that `serve` takes for a model on this machine where nothing is said, and why. Raises
    CheckpointError or ConfigError."""
    from antiphon.engine.load import open_source

    return open_source(model, EngineOptions(), lambda what, done, total: progress(what)).why


def this_machine() -> Machine:
    """All of its memory, whoever uses it now."""
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = tuple(torch.cuda.get_device_properties(index).total_memory for index in range(num_gpus))
    return Machine(gpus, host_bytes())


def host_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
