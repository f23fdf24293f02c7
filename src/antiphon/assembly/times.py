"""What is known in a node of how long steps and copies take: by the profile that its configuration has, or by
what steps and copies reported."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan

import msgspec
import numpy as np

from antiphon.core.config import ArConfig, NodeConfig, Unit
from antiphon.core.errors import ConfigError
from antiphon.core.facts import NO_INTS, Fact, StepDone, StepFailed
from antiphon.core.graph import LAYERS
from antiphon.core.plans import ArStep, CodecStep, EncodeStep, Step
from antiphon.graphs import find_graph
from antiphon.latency.costs import ProfiledCodec, ProfiledCopies, ProfiledDecoder, Times
from antiphon.latency.models import ArModel, CodecModel, SpeechModel, StageModel
from antiphon.latency.observed import ObservedCopies, ObservedSteps
from antiphon.latency.profile import Profile
from antiphon.policy.base import StepCost
from antiphon.stage.beside import Beside
from antiphon.stage.lanes import Lanes

BLOCK_SIZE = 16
"""Of a datasheet's profile."""
BlockBytes = Mapping[tuple[str, str], int]
"""Of a block, per (stage, KV group)."""


class NodeTimes:
    """Makes what units ask; owner of the moving models."""

    def __init__(self, config: NodeConfig, units: tuple[Unit, ...]) -> None:
        """Raises ConfigError for a profile that is of another model."""
        self._config = config
        self._times = Times.of(config.times)
        self._stages = {unit.name: unit.stage for unit in units}
        self._costs: dict[str, StepCost] = {}
        self._observed: dict[str, ObservedSteps] = {}
        self._lanes: dict[tuple[str, str], Lanes] = {}
        self._beside: dict[tuple[str, str], Beside] = {}
        if config.times:
            self._check()

    def steps(self, unit: Unit) -> StepCost:
        """Of a unit that begins, or begins anew."""
        match self._times.stages.get(unit.stage):
            case ArModel() as model:
                cost = ProfiledDecoder(model)
            case CodecModel() as model:
                cost = ProfiledCodec(model)
            case _:
                cost = self._observed[unit.name] = ObservedSteps(unit.stage in self._config.ar)
        self._costs[unit.name] = cost
        return cost

    def lanes(self, unit: Unit) -> Lanes:
        """Those of the unit's device, as its process has it; of a unit that begins, or begins anew."""
        place = unit.process, unit.device
        if place not in self._lanes:
            is_told = bool(self._config.times)
            cost = ProfiledCopies(self._times, self._stages) if is_told else ObservedCopies()
            self._lanes[place] = Lanes(cost)
        self._lanes[place].forget(unit.name)
        return self._lanes[place]

    def beside(self, unit: Unit) -> Beside:
        """The live work on the unit's device."""
        return self._beside.setdefault((unit.process, unit.device), Beside())

    def tell_time(self, now: float) -> None:
        """Before facts of `now` are folded in."""
        for lanes in self._lanes.values():
            lanes.tell_time(now)

    def observe(self, fact: Fact) -> None:
        """Fold the report of a step in."""
        if isinstance(fact, StepDone | StepFailed) and fact.stage in self._observed:
            seconds = fact.seconds if isinstance(fact, StepDone) else nan
            self._observed[fact.stage].reported(fact.step, seconds)

    def ordered(self, step: Step) -> None:
        if step.stage in self._observed:
            self._observed[step.stage].ordered(step)

    def step_s(self, step: Step) -> float:
        """nan: not known."""
        cost = self._costs[step.stage]
        match step:
            case ArStep():
                return cost.seconds(step.counts, step.starts)
            case CodecStep():
                return cost.seconds(step.counts, NO_INTS)
            case EncodeStep():
                return cost.seconds(np.ones(len(step.media), np.int64), NO_INTS)

    def _check(self) -> None:
        config = self._config
        for stages, kind in ((config.ar, ArModel), (config.codec, CodecModel | SpeechModel)):
            for stage in stages:
                if not isinstance(self._times.stages.get(stage), kind):
                    known = ", ".join(self._times.stages) or "no stage"
                    raise ConfigError(
                        f"the latency profile does not say what a step of the {stage} takes (it has: "
                        f"{known}); name one of this model, or none"
                    )


def with_profile(node: NodeConfig, profile: Profile) -> NodeConfig:
    """The node decides by the profile's times. Raises ConfigError for a profile of another model."""
    stages: dict[str, StageModel] = {
        name: one.model
        for name, one in profile.stages.items()
        if isinstance(one.model, ArModel | CodecModel | SpeechModel) and name in (*node.ar, *node.codec)
    }
    served = {} if profile.served is None else profile.served.node.ar
    before = {name: served[name].block_size if name in served else BLOCK_SIZE for name in node.ar}
    known = {
        (name, group): size for name, one in profile.stages.items() for group, size in one.block_bytes.items()
    }
    block_bytes: dict[str, dict[str, int]] = {}
    for (stage, group), size in rescaled(known, before, node).items():
        block_bytes.setdefault(stage, {})[group] = size
    links = {to: link for to, link in profile.links.items() if to in ("host", "device")}
    made = msgspec.structs.replace(node, times=Times(stages, links, block_bytes).written)
    NodeTimes(made, made.placed)
    return made


def rescaled(block_bytes: BlockBytes, block_sizes: Mapping[str, int], after: NodeConfig) -> BlockBytes:
    """Of the blocks and KV groups of the node `after`: its stages keep as many bytes a token as with blocks
    of `block_sizes`."""
    return {
        (stage, group): num_bytes
        for stage, config in after.ar.items()
        for group, num_bytes in _of_stage(
            {group: size for (name, group), size in block_bytes.items() if name == stage},
            {group.name for group in find_graph(after.graph).stage(stage).groups} - {LAYERS},
            block_sizes[stage],
            config,
        ).items()
    }


def _of_stage(
    known: Mapping[str, int], payloads: set[str], block_size: int, config: ArConfig
) -> dict[str, int]:
    """Payloads are groups of their own; each group of layers has its share of what all layers keep."""
    scale = config.block_size / block_size
    found = {group: round(size * scale) for group, size in known.items() if group in payloads}
    layers = [size for group, size in known.items() if group not in payloads]
    if not layers:
        return found
    whole = sum(layers) * scale
    if not config.layer_groups:
        return {LAYERS: round(whole), **found}
    num_layers = config.layer_groups[-1][2]
    shares = {name: (end - first) / num_layers for name, first, end in config.layer_groups}
    return {name: round(whole * share) for name, share in shares.items()} | found
