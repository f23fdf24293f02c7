"""What becomes of KV, as a watch is told: how many blocks of an owner left, came or were copied."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum
from typing import Protocol


class KvMove(StrEnum):
    """What becomes of an owner's blocks."""

    EVICTED = "evicted"
    """Left the device, as the policy chose."""
    TAKEN = "taken"
    """Left the device for what is wanted, beyond what the policy chose."""
    COPIED = "copied"
    """Copied to the host as they left the device."""
    WRITTEN = "written"
    """Copied to the host before they had to leave."""
    DROPPED = "dropped"
    """Left the host."""
    FETCHED = "fetched"
    """Ordered from the host for a request that waits."""
    PRELOADED = "preloaded"
    """Ordered from the host though no request waits."""


class KvWatch(Protocol):
    """Is told of every move of KV, in order."""

    def __call__(
        self, unit: str, move: KvMove, owner: str, session: str, num_blocks: int, tickets: Set[int]
    ) -> None: ...
