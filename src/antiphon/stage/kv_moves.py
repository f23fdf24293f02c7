"""What becomes of KV, as a watch is told: how many blocks of an owner left, came or were copied."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class KvMoved:
    """So many blocks of an owner, whose session it is.

    tickets  of the copies that were ordered for it
    """

    unit: str
    move: KvMove
    owner: str
    session: str
    num_blocks: int
    tickets: Set[int] = frozenset()

    @property
    def is_past(self) -> bool:
        """It is the session's past, and not the KV of one request."""
        return self.owner == self.session

    @property
    def is_evicted(self) -> bool:
        """The blocks left the device."""
        return self.move in (KvMove.EVICTED, KvMove.TAKEN)


KvWatch = Callable[[KvMoved], None]
"""Is told of every move of KV, in order."""
