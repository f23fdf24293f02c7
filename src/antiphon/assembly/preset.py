"""Presets: a YAML file that names one policy for each decision, checked when it is loaded."""

from __future__ import annotations

from importlib.resources import files

import yaml

from antiphon.assembly.registry import (
    DEVICE_POLICIES,
    EVICT_POLICIES,
    FETCH_POLICIES,
    REPLICA_POLICIES,
    STEP_POLICIES,
    WRITE_POLICIES,
)
from antiphon.core.errors import ConfigError
from antiphon.policy.base import DevicePolicy, ReplicaPolicy, StepPolicy
from antiphon.policy.memory import KvPolicies

DECISIONS = ("step", "device", "replica", "evict", "write", "fetch")

_PRESETS = files("antiphon.assembly").joinpath("presets")


def preset_names() -> tuple[str, ...]:
    """Presets that ship with the package."""
    return tuple(sorted(file.name[:-5] for file in _PRESETS.iterdir() if file.name.endswith(".yaml")))


class Preset:
    """One policy per decision. Raises ConfigError for a preset, decision or policy that does not exist."""

    def __init__(self, name: str) -> None:
        if name not in preset_names():
            raise ConfigError(f"unknown preset {name!r}; known: {', '.join(preset_names())}")
        choice: dict[str, str] = yaml.safe_load(_PRESETS.joinpath(f"{name}.yaml").read_text())
        if set(choice) != set(DECISIONS):
            wanted = ", ".join(DECISIONS)
            raise ConfigError(f"preset {name!r} must name each of {wanted} once; it has {sorted(choice)}")
        self.name = name
        self._choice = choice

    def step_policy(self) -> StepPolicy:
        return STEP_POLICIES.create(self._choice["step"])

    def device_policy(self) -> DevicePolicy:
        return DEVICE_POLICIES.create(self._choice["device"])

    def replica_policy(self) -> ReplicaPolicy:
        return REPLICA_POLICIES.create(self._choice["replica"])

    def kv_policies(self) -> KvPolicies:
        return KvPolicies(
            EVICT_POLICIES.create(self._choice["evict"]),
            WRITE_POLICIES.create(self._choice["write"]),
            FETCH_POLICIES.create(self._choice["fetch"]),
        )
