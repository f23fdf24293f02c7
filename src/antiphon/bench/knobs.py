"""Settings of a preset's urgency policy that can be swept, and presets with others written as files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from antiphon.assembly.preset import read_preset
from antiphon.assembly.registry import OBSERVE, find_policy, make_policy, options_of
from antiphon.core.config import PolicyChoice
from antiphon.core.errors import ConfigError
from antiphon.graphs import find_graph

Choices = Mapping[str, PolicyChoice]
URGENCY = "urgency"
DECISIONS = "step", "pace"
"""Those that the policy takes."""
SAFE_S, RATIO = "safe_s", "beta/alpha"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value for one stage and decision.

    option  safe_s: P_safe, in seconds | beta/alpha: only their ratio decides anything (LiveServe eq. 1)
    """

    stage: str
    decision: str
    option: str
    value: float

    def __str__(self) -> str:
        unit = " s" if self.option == SAFE_S else ""
        return f"{self.decision} of {self.stage}: {self.option} {self.value:g}{unit}"

    @property
    def written(self) -> dict[str, float]:
        """As options of the policy."""
        return {SAFE_S: self.value} if self.option == SAFE_S else {"alpha": 1.0, "beta": self.value}


def knobs(
    preset: str, stages: Sequence[str], safe_s: Sequence[float], ratios: Sequence[float]
) -> tuple[tuple[Setting, ...], ...]:
    """What is to be tried, a group for each stage, decision and option. Raises ConfigError where the preset
    lets `urgency` decide nothing there, or only observes it, and for a value that the policy refuses."""
    choices = read_preset(preset)
    groups = tuple(
        tuple(Setting(stage, decision, option, value) for value in dict.fromkeys(values))
        for stage in dict.fromkeys(stages)
        for decision in DECISIONS
        if choices[decision].of(stage)[0] == URGENCY and not choices[decision].observes(stage)
        for option, values in ((SAFE_S, safe_s), (RATIO, ratios))
        if values
    )
    if not groups:
        raise ConfigError(
            f"preset {preset}: there is nothing to tune, since policy {URGENCY} decides neither step nor "
            f"pace of {', '.join(stages)}, or no values are given; start from a preset such as liveserve"
        )
    for setting in (setting for group in groups for setting in group):
        make_policy(setting.decision, URGENCY, setting.written)
    return groups


def choices_of(preset: str, graph: str) -> dict[str, PolicyChoice]:
    """What a preset says to a model of this graph (of any, if it is ""), without options of stages that the
    model lacks, which a file may not have."""
    choices = read_preset(preset)
    if not graph:
        return choices
    known = [stage.name for stage in find_graph(graph).stages]
    return {
        decision: msgspec.structs.replace(
            choice, stages={stage: own for stage, own in choice.stages.items() if stage in known}
        )
        for decision, choice in choices.items()
    }


def value_of(choices: Choices, setting: Setting) -> float:
    """What the preset says in the setting's place: where it says nothing, the policy's default."""
    known = options_of(find_policy(setting.decision, URGENCY))
    defaults = {name: default for name, (_, default) in known.items()}
    options = defaults | choices[setting.decision].of(setting.stage)[1]
    return float(options[SAFE_S] if setting.option == SAFE_S else options["beta"] / options["alpha"])


def changed(choices: Choices, setting: Setting) -> dict[str, PolicyChoice]:
    """The preset with the setting."""
    choice = choices[setting.decision]
    own = {**choice.stages.get(setting.stage, {}), **setting.written}
    stages = {**choice.stages, setting.stage: own}
    return {**choices, setting.decision: msgspec.structs.replace(choice, stages=stages)}


def preset_digest(choices: Choices) -> str:
    """Eight hex digits of what the preset says and of the sources of policies that do not ship."""
    sources = [choice.digests for choice in choices.values()]
    return hashlib.blake2b(f"{preset_text(choices, '')}{sources}".encode(), digest_size=4).hexdigest()


def preset_text(choices: Choices, about: str) -> str:
    """As a preset's file has it; `about`, lines, stands above as a comment."""
    comment = "".join(f"# {line}\n" for line in about.splitlines())
    tree = {decision: _written(choice) for decision, choice in choices.items()}
    return comment + yaml.safe_dump(tree, sort_keys=False)


def _written(choice: PolicyChoice) -> str | dict[str, Any]:
    tree = {"policy": choice.policy, **choice.options}
    if choice.observe:
        tree[OBSERVE] = True
    if choice.stages:
        tree["stages"] = choice.stages
    return choice.policy if tree.keys() == {"policy"} else tree
