"""What only tests read of the system."""

from __future__ import annotations

from antiphon.core.plans import Budget
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor, MonitoredReply
from antiphon.kv.host import HostTier
from antiphon.kv.stage_blocks import StageBlocks


def places(host: HostTier, owner: str) -> list[int]:
    """Places in the owner's sequence whose blocks have a copy on the host."""
    return [index for index, copy in enumerate(host._held.get(owner, ())) if copy is not None]


def num_shared(blocks: StageBlocks) -> int:
    """Blocks that more than one sequence holds."""
    return sum(used + kept > 1 for used, kept in zip(blocks.used, blocks._kept, strict=True))


def num_taken(frontier: Frontier) -> int:
    """Slots that responses have."""
    return len(frontier._dry_at) - 1 - len(frontier._free)


def heard_of(monitor: Monitor) -> MonitoredReply:
    """The reply that session "s" heard last."""
    reply = monitor.heard_reply("s")
    assert reply is not None
    return reply


def bounded(seconds: float, unread_s: float | None = None) -> Budget:
    """Of a step that is bounded by its time alone."""
    return Budget(1 << 30, 1 << 30, seconds, unread_s)
