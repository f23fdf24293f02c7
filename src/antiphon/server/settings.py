"""What an operator sets about the server. The engine has settings of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.wire.limits import MIB, Limits


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Names carry units.

    origins   web origins (`https://host[:port]`) that may open sockets beside the server's own
    api_keys  when given, every /v1 request needs one of them
    """

    limits: Limits = field(default_factory=Limits)
    origins: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    max_sessions: int = 64
    max_queued_bytes: int = 32 * MIB
    """Events that one client may leave unread before it is disconnected."""
    stall_s: float = 30.0
    """How long one event may wait for a client that reads nothing at all."""
    drain_s: float = 20.0
    """How long running responses may go on after a request to stop."""
    retry_after_s: float = 5.0
