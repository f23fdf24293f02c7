"""Settings of a preset's urgency and most-urgent policies that can be swept, and presets with others written
as files."""

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
URGENCY, MOST_URGENT = "urgency", "most-urgent"
STEP, PACE, DEVICE = "step", "pace", "device"
SAFE_S, RATIO, BRINK_S, SPARE_S = "safe_s", "beta/alpha", "brink_s", "spare_s"
EVERYWHERE = ""
"""Stage of a setting that is not of one stage."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value for one stage and decision; of `device`, which chooses among stages, for all of them.

    option  in seconds: safe_s (P_safe), brink_s, and of the device spare_s | beta/alpha: only their ratio
            decides anything (LiveServe eq. 1)
    """

    stage: str
    decision: str
    option: str
    value: float

    def __str__(self) -> str:
        unit = "" if self.option == RATIO else " s"
        place = f"{self.decision} of {self.stage}" if self.stage else self.decision
        return f"{place}: {self.option} {self.value:g}{unit}"

    @property
    def policy(self) -> str:
        """The one that has this option."""
        return MOST_URGENT if self.decision == DEVICE else URGENCY

    @property
    def written(self) -> dict[str, float]:
        """As options of the policy."""
        return {"alpha": 1.0, "beta": self.value} if self.option == RATIO else {self.option: self.value}


def knobs(
    preset: str,
    stages: Sequence[str],
    safe_s: Sequence[float],
    ratios: Sequence[float],
    brink_s: Sequence[float] = (),
    spare_s: Sequence[float] = (),
) -> tuple[tuple[Setting, ...], ...]:
    """What is to be tried, a group for each stage, decision and option, the device's last. Raises ConfigError
    where the preset lets none of the two policies decide what is to be tried, or only observes it, and for a
    value that the policy refuses."""
    choices = read_preset(preset)
    wanted = (
        (stage, decision, option, values)
        for stage in dict.fromkeys(stages)
        for decision, option, values in (
            (STEP, SAFE_S, safe_s),
            (STEP, RATIO, ratios),
            (STEP, BRINK_S, brink_s),
            (PACE, SAFE_S, safe_s),
            (PACE, RATIO, ratios),
        )
    )
    groups = tuple(
        group
        for stage, decision, option, values in (*wanted, (EVERYWHERE, DEVICE, SPARE_S, spare_s))
        if (group := tuple(Setting(stage, decision, option, value) for value in dict.fromkeys(values)))
        if choices[decision].of(stage)[0] == group[0].policy and not choices[decision].observes(stage)
    )
    if not groups:
        raise ConfigError(
            f"preset {preset}: there is nothing to tune, since policy {URGENCY} decides neither step nor "
            f"pace of {', '.join(stages)}, or no values are given; start from a preset such as liveserve"
        )
    if spare_s and groups[-1][0].option != SPARE_S:
        raise ConfigError(
            f"preset {preset}: {SPARE_S} is an option of {MOST_URGENT}, which does not decide device there"
        )
    for setting in (setting for group in groups for setting in group):
        make_policy(setting.decision, setting.policy, setting.written)
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
    known = options_of(find_policy(setting.decision, setting.policy))
    defaults = {name: default for name, (_, default) in known.items()}
    options = defaults | choices[setting.decision].of(setting.stage)[1]
    return float(options["beta"] / options["alpha"] if setting.option == RATIO else options[setting.option])


def changed(choices: Choices, setting: Setting) -> dict[str, PolicyChoice]:
    """The preset with the setting."""
    choice = choices[setting.decision]
    if setting.stage == EVERYWHERE:
        options = {**choice.options, **setting.written}
        return {**choices, setting.decision: msgspec.structs.replace(choice, options=options)}
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
