"""The KV groups that a stage really has: its layers, split as configured, and the payloads beside them."""

from __future__ import annotations

from antiphon.core.config import ArConfig
from antiphon.core.errors import ConfigError
from antiphon.core.graph import LAYERS, Stage


def kv_groups(stage: Stage, config: ArConfig) -> tuple[str, ...]:
    """Group names in order; raises ConfigError if a configured one is the name of a payload."""
    split = tuple(name for name, _, _ in config.layer_groups) or (LAYERS,)
    beside = tuple(group.name for group in stage.groups if group.name != LAYERS)
    taken = sorted(set(split) & set(beside))
    if taken:
        raise ConfigError(f"layer_groups of stage {stage.name}: {taken} are groups of their own already")
    return (*split, *beside)
