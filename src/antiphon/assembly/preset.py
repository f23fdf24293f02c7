"""Presets: a YAML file that names one policy for each decision, with options, checked when it is read.

    step: fcfs
    pace: {policy: mine.py:Hold, lead_s: 2.0, stages: {thinker: {lead_s: 4.0}}}
    observe: true

`observe: true`, of the whole preset or of one decision, is logging-only mode (LiveServe §6): the policies are
asked, what they would have done is counted, and the baseline's answers are carried out.

One that ships goes by its name, an operator's own by its path. A file that is not named is never loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import msgspec

from antiphon.assembly.deployment import Deployment
from antiphon.assembly.guard import Guard
from antiphon.assembly.registry import (
    DECISIONS,
    OBSERVE,
    digest,
    find_policy,
    is_foreign,
    make_policy,
    make_with_digest,
    placed,
    policy_label,
)
from antiphon.assembly.yaml_file import check_plain, child, parse, read, shipped
from antiphon.core.config import NodeConfig, PolicyChoice, Unit
from antiphon.core.errors import ConfigError, no_such
from antiphon.core.graph import Edge, StageKind
from antiphon.graphs import all_graphs
from antiphon.policy.base import DevicePolicy, ReplicaPolicy
from antiphon.policy.memory import KvPolicies
from antiphon.stage.policies import StagePolicies
from antiphon.wire.readers import ReaderRates

BASELINE = "baseline"
WHOLE = ("device", "replica")
"""Decisions among stages and replicas: there is one policy for all of them."""
OF_ANY_STAGE = ("step", "pace")
"""Decisions that a stage without a decoder takes."""
_PRESETS = files("antiphon.assembly").joinpath("presets")


def preset_names() -> tuple[str, ...]:
    """Presets that ship with the package."""
    return shipped(_PRESETS)


def is_path(preset: str) -> bool:
    """Is it a file's path, and not a name?"""
    return preset.endswith((".yaml", ".yml")) or "/" in preset


def preset_label(preset: str) -> str:
    """As logs and tables call it: a file without folder and ending."""
    return Path(preset).stem if is_path(preset) else preset


def read_preset(preset: str) -> dict[str, PolicyChoice]:
    """What a preset says, by decision. Every policy is made once to see that it can be. There may be options
    for stages of any known model, so that models share a preset. Raises ConfigError with the file, the line
    and the decision that is wrong, and what is allowed there."""
    return dict(_read_shipped(preset)) if preset in preset_names() else _read(preset)


@cache
def _read_shipped(preset: str) -> Mapping[str, PolicyChoice]:
    """Once: every node reads the baseline, and what ships stays as it is."""
    return _read(preset)


def _read(preset: str) -> dict[str, PolicyChoice]:
    where = f"preset {preset}"
    if is_path(preset):
        text = read(preset, where, "preset")
        folder = Path(preset).expanduser().resolve().parent
    elif preset in preset_names():
        text, folder = _PRESETS.joinpath(f"{preset}.yaml").read_text(encoding="utf-8"), Path()
    else:
        raise ConfigError(no_such("preset", preset, preset_names(), ", or the path of a .yaml file"))
    known = tuple(dict.fromkeys(stage.name for graph in all_graphs() for stage in graph.stages))
    written, node = parse(text, where, "a preset maps each decision to a policy")
    if not written.keys() & {*DECISIONS} and written.keys() & Deployment.model_fields.keys():
        raise ConfigError(
            f"{where} is a deployment, which names its own preset: give it as --config; "
            "`antiphon config show` prints it"
        )
    for key in written:
        if key not in (*DECISIONS, OBSERVE):
            line, _ = child(node, key) or (0, None)
            found = no_such("decision", key, (*DECISIONS, OBSERVE))
            raise ConfigError(f"{where}:{line}: {found}")
    if missing := [decision for decision in DECISIONS if decision not in written]:
        raise ConfigError(f"{where}: no policy for {', '.join(missing)}; each decision needs exactly one")
    observe = written.get(OBSERVE, False)
    _check_observe(f"{where}: ", observe)
    choices: dict[str, PolicyChoice] = {}
    for decision in DECISIONS:
        line, _ = child(node, decision) or (0, None)
        try:
            choices[decision] = _choice(decision, written[decision], folder, known, observe)
        except ConfigError as error:
            raise ConfigError(f"{where}:{line}: {error}") from None
    _check_device(where, choices)
    for decision in DECISIONS:
        line, _ = child(node, decision) or (0, None)
        _check_together(f"{where}:{line}", decision, choices)
    return choices


def schedules_by_reading(choices: Mapping[str, PolicyChoice]) -> bool:
    """Does it make a difference to the steps of any stage how fast a text is read? Policies say so themselves
    (`by_reading`)."""
    step = choices["step"]
    deciding = [stage for stage in ("", *step.stages) if not step.observes(stage)]
    return any(getattr(find_policy("step", step.of(stage)[0]), "by_reading", False) for stage in deciding)


def readers_of(choices: Mapping[str, PolicyChoice], readers: ReaderRates) -> ReaderRates:
    """Who reads a text whose request says nothing: as the operator says, or as is estimated where steps are
    scheduled by it."""
    return readers.estimated() if schedules_by_reading(choices) else readers


def with_preset(config: NodeConfig, preset: str) -> NodeConfig:
    """With what another preset says. Raises ConfigError."""
    return msgspec.structs.replace(config, preset=preset, policies=read_preset(preset))


def resolved(config: NodeConfig) -> NodeConfig:
    """With what its preset says, if that was not looked up yet. Raises ConfigError, also where the source of
    a policy has changed since it was."""
    if not config.policies:
        return with_preset(config, config.preset)
    for decision, choice in config.policies.items():
        for policy, known in choice.digests.items():
            if digest(decision, policy) != known:
                raise ConfigError(_changed(decision, policy))
    return config


def replayable(config: NodeConfig, preset: str = "") -> NodeConfig:
    """The configuration of a record. A record is data: policies that neither ship nor are registered by an
    installed package are loaded only if the operator names their `preset`, which must say what the record
    says. Raises ConfigError."""
    if not preset:
        foreign = [config.preset] if not config.policies and is_path(config.preset) else _foreign(config)
        if foreign:
            raise ConfigError(
                f"this was recorded with {', '.join(foreign)}; code that a record names is not loaded unless "
                "you name it too: say --preset FILE, the preset that was served with"
            )
        return resolved(config)
    given = with_preset(config, preset)
    for decision in DECISIONS if config.policies else ():
        was, now = config.policies[decision], given.policies[decision]
        if _labels(was) != _labels(now):
            raise ConfigError(
                f"{decision}: this was recorded with {_said(was)}, and preset {preset} says {_said(now)}"
            )
        if sorted(was.digests.values()) != sorted(now.digests.values()):
            raise ConfigError(_changed(decision, now.policy))
    return given


def _changed(decision: str, policy: str) -> str:
    return (
        f"{decision}: the source of policy {policy_label(policy)} has changed since this was recorded, so it "
        "may decide otherwise; replay with the source that was served with"
    )


def _foreign(config: NodeConfig) -> list[str]:
    """Policies of the record that its operator must name."""
    asked = {
        (decision, choice.of(stage)[0])
        for decision, choice in config.policies.items()
        for stage in ("", *choice.stages)
    }
    return sorted({policy_label(policy) for decision, policy in asked if is_foreign(decision, policy)})


def _labels(choice: PolicyChoice) -> object:
    """What must be the same, wherever its files are."""
    stages = {name: (*choice.of(name), choice.observes(name)) for name in ("", *choice.stages)}
    return {name: (policy_label(policy), *others) for name, (policy, *others) in stages.items()}


def _said(choice: PolicyChoice) -> str:
    written = choice.options | ({"stages": choice.stages} if choice.stages else {})
    written |= {OBSERVE: True} if choice.observe else {}
    options = ", ".join(f"{name}: {value}" for name, value in written.items())
    return f"{policy_label(choice.policy)} ({options})" if options else policy_label(choice.policy)


def _check_observe(where: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{where}{OBSERVE} is {value!r}; it must be true or false")


def _check_device(where: str, choices: Mapping[str, PolicyChoice]) -> None:
    """Raises ConfigError where a device policy is observed and steps are not: it looks into units that the
    baseline leaves alone, and their policies' wishes to be asked again would change what is done."""
    apart = [
        decision
        for decision in ("step", "pace")
        if not all(choices[decision].observes(stage) for stage in ("", *choices[decision].stages))
    ]
    if choices["device"].observe and apart:
        raise ConfigError(
            f"{where}: device is observed and {', '.join(apart)} not everywhere; observe the whole preset, "
            "or let device decide"
        )


def _check_together(where: str, decision: str, choices: Mapping[str, PolicyChoice]) -> None:
    """Raises ConfigError where the policy shares what it knows among several decisions (`together`), and
    another of them is taken by another object. What a stage does not decide is not looked at."""
    for stage in dict.fromkeys(("", *(stage for choice in choices.values() for stage in choice.stages))):
        taken = _taken(stage)
        if decision not in taken:
            continue
        policy, _ = choices[decision].of(stage)
        together: Sequence[str] = getattr(find_policy(decision, policy), "together", ())
        for other in together:
            if other not in DECISIONS or other in WHOLE:
                of_stages = tuple(one for one in DECISIONS if one not in WHOLE)
                shown = f"{where}: {decision}: `together` of {policy_label(policy)}"
                raise ConfigError(f"{shown}: {no_such('decision', other, of_stages)}")
            alike = _object_key(choices[decision], stage) == _object_key(choices[other], stage)
            if other in taken and not alike:
                at = f" (for stage {stage})" if stage else ""
                raise ConfigError(
                    f"{where}: {decision} is {_said_of(choices[decision], stage)} and {other} is "
                    f"{_said_of(choices[other], stage)}{at}, but {policy_label(policy)} takes "
                    f"{', '.join(together)} as one object; write the same policy with the same options for "
                    "each of these, or another policy for all"
                )


def _taken(stage: str) -> tuple[str, ...]:
    """Decisions that a stage takes, of whichever model that has one of this name; "": one of any name."""
    found = (one for graph in all_graphs() for one in graph.stages if one.name == stage or not stage)
    return DECISIONS if any(one.kind is StageKind.AR for one in found) else OF_ANY_STAGE


def _said_of(choice: PolicyChoice, stage: str) -> str:
    policy, options = choice.of(stage)
    return _said(PolicyChoice(policy, options, observe=choice.observes(stage)))


def _choice(decision: str, value: Any, folder: Path, known: Sequence[str], observe: bool) -> PolicyChoice:
    written = {"policy": value} if isinstance(value, str) else value
    if not isinstance(written, dict) or not isinstance(cast(dict[str, Any], written).get("policy"), str):
        raise ConfigError(f"{decision}: give a policy's name, or {{policy: name, option: value, …}}")
    check_plain(decision, written)
    options = dict(cast(dict[str, Any], written))
    policy = placed(options.pop("policy"), folder)
    observe = options.pop(OBSERVE, observe)
    _check_observe(f"{decision}: ", observe)
    stages = _stages(decision, options.pop("stages", {}), known)
    for own in stages.values():
        _check_observe(f"{decision}: ", own.get(OBSERVE, observe))
        if "policy" in own:
            own["policy"] = placed(str(own["policy"]), folder)
    choice = PolicyChoice(policy, options, stages, observe=observe)
    digests: dict[str, str] = {}
    for stage in ("", *stages):
        asked, chosen = choice.of(stage)
        try:
            _, source = make_with_digest(decision, asked, chosen)
        except ConfigError as error:
            raise ConfigError(f"{error} (for stage {stage})" if stage else str(error)) from None
        if source:
            digests[asked] = source
    return msgspec.structs.replace(choice, digests=digests)


def _stages(decision: str, value: Any, known: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options for single stages. Raises ConfigError for what is none of the `known` ones."""
    if not isinstance(value, dict) or not all(
        isinstance(one, dict) for one in cast(dict[Any, Any], value).values()
    ):
        raise ConfigError(
            f"{decision}: `stages` maps stages to options, such as {{talker: {{alpha: 2}}}}, or to a "
            "policy, {talker: {policy: fcfs}}"
        )
    stages = {str(stage): dict(one) for stage, one in cast(dict[Any, dict[str, Any]], value).items()}
    if stages and decision in WHOLE:
        raise ConfigError(f"{decision}: it is decided among stages, so it has no `stages`; take them out")
    for stage in stages:
        if stage not in known:
            raise ConfigError(f"{decision}: {no_such('stage', stage, known)}")
    return stages


_Key = tuple[str, str, bool]
"""A policy's name and options, and whether it is observed: what is alike in these is one object of a unit."""
_Made = dict[_Key, Any]


def _object_key(choice: PolicyChoice, stage: str) -> _Key:
    policy, options = choice.of(stage)
    return policy, repr(sorted(options.items())), choice.observes(stage)


class Preset:
    """Makes the policies of a node, guarded: the same policy with the same options for several decisions of a
    unit is one object, and another where it is only observed: what it remembers of answers that were not
    carried out is its own."""

    def __init__(self, policies: Mapping[str, PolicyChoice], guard: Guard) -> None:
        self._policies = policies
        self._guard = guard
        self._baseline = read_preset(BASELINE)

    def policies(self, unit: Unit, taken: Sequence[str] = DECISIONS) -> StagePolicies:
        """New ones for a unit that takes these decisions. In the place of the others stands the baseline,
        which is never asked, shown or counted."""
        made: _Made = {}
        step, pace, admission, evict, write, fetch = (
            self._made(decision, unit.name, unit.stage, made)
            if decision in taken
            else make_policy(decision, *self._baseline[decision].of(unit.stage))
            for decision in ("step", "pace", "admission", "evict", "write", "fetch")
        )
        return StagePolicies(step, pace, admission, KvPolicies(evict, write, fetch))

    def check_leads(self, unit: Unit, edge: Edge, frame_s: float) -> None:
        """The log is told of leads (P_safe) below a chunk, which sounds only once all of it is there."""
        self._guard.check_leads(unit.name, edge, frame_s)

    def device_policy(self, name: str) -> DevicePolicy:
        return self._made("device", name, "", {})

    def replica_policy(self) -> ReplicaPolicy:
        return self._made("replica", "", "", {})

    def _made(self, decision: str, unit: str, stage: str, made: _Made) -> Any:
        policy, options = self._policies[decision].of(stage)
        key = _object_key(self._policies[decision], stage)
        if key not in made:
            made[key], source = make_with_digest(decision, policy, options)
            if self._policies[decision].digests.get(policy, source) != source:
                raise ConfigError(_changed(decision, policy))
        fallback = make_policy(decision, *self._baseline[decision].of(stage))
        is_observed = self._policies[decision].observes(stage)
        return self._guard.watched(decision, unit, made[key], fallback, is_observed)
