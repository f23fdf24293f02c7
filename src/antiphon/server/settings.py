"""What an operator sets about the server. The engine has settings of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.assembly.deployment import DeploymentLimits
from antiphon.wire.limits import MIB, Limits
from antiphon.wire.readers import ReaderRates

_LIMITS = DeploymentLimits()


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Names carry units.

    origins   web origins (`https://host[:port]`) that may open sockets beside the server's own
    api_keys  when given, every /v1 request needs one of them
    """

    limits: Limits = field(default_factory=Limits)
    readers: ReaderRates = field(default_factory=ReaderRates)
    origins: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    max_sessions: int = _LIMITS.max_sessions
    """Sockets and HTTP requests that are being answered, together; best-effort requests apart. A
    paced text counts until it is written (see `serving.PACED_PER_SESSION`)."""
    max_open_responses: int = _LIMITS.max_open_responses
    """Live replies in the making, of all sessions together; one more is refused."""
    max_best_effort_responses: int = _LIMITS.max_best_effort_responses
    """Best-effort replies in the making: `service_tier: flex`, and what sessions have written down."""
    min_lead_s: float = _LIMITS.min_lead_s
    """Seconds of audio that every live listener should have left: while one lately had less, new sessions are
    refused (see `pressure`). 0: no guard. Speech that is paced must be kept further ahead than this."""
    prefix_cache: bool = True
    """The KV of an HTTP request stays as cache for prompts that begin alike, until its room is needed."""
    media_hosts: tuple[str, ...] = ()
    """Hosts from which media URLs are fetched, `host` or `host:port`."""
    media_timeout_s: float = 10.0
    max_kept_replies: int = 1024
    reply_ttl_s: float = 3600.0
    """How long a spoken reply can be named by its audio id."""
    max_queued_bytes: int = 32 * MIB
    """Events that one client may leave unread before it is disconnected."""
    stall_s: float = 30.0
    """How long one event may wait for a client that reads nothing at all, and a request for the next piece of
    its body."""
    drain_s: float = 20.0
    """How long running responses may go on after a request to stop."""
    retry_after_s: float = 5.0
