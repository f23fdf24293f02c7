"""Which transcribers and voices are served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.core.errors import CheckpointError


def check_served(
    part: str, config: Mapping[str, Any], model_type: str, known: Mapping[str, Sequence[Any]]
) -> None:
    """Raise CheckpointError unless a part's config.json is of this type and says nothing that is not known.

    known   setting -> the values that are served, what it is where it is not said first
    """
    if config.get("model_type") != model_type:
        raise CheckpointError(f"{part}: {config.get('model_type')!r} is not served; it must be {model_type}")
    for name, allowed in known.items():
        if config.get(name, allowed[0]) not in allowed:
            wanted = " or ".join(map(repr, allowed))
            raise CheckpointError(f"{part}: {name} {config[name]!r} is not supported, only {wanted}")
