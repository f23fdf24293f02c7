"""The event log of a run: what a client saw and did, one JSON object a line. All figures come from it alone.

Whoever runs people against a server (over the wire, or on virtual time) writes these events; `t_s` is seconds
since the run's start on the writer's monotonic clock. `Log` order is the order in which things happened.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class LogEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True, omit_defaults=True):
    """Everything in a log has a time."""

    t_s: float


class RunStarted(LogEvent, frozen=True, kw_only=True):
    """First line. `label` names what is measured (a preset, a server); `unix_s` dates the run."""

    label: str
    url: str
    workload: str
    seed: int
    command: str
    commit: str
    machine: str
    version: str
    unix_s: float
    options: dict[str, Any] = {}


class RunEnded(LogEvent, frozen=True, kw_only=True):
    """Last line of a run that was not killed. `reason`: finished | duration | interrupted | server_lost |
    failed (the server would have no such session, or the load generator broke).

    overruled  of a simulated run: how many of a policy's decisions the baseline took, by "step of talker"
    """

    reason: str
    message: str = ""
    overruled: dict[str, int] = {}


class SessionQueued(LogEvent, frozen=True, kw_only=True):
    """A person or job arrived where the load's bound on sessions left no place: it waits for one."""

    session: str


class SessionStarted(LogEvent, frozen=True, kw_only=True):
    """A person or job came to the server.

    arrival_s  when the workload wanted it (open loop)
    waited_s   how long it waited for a place before (a load with a bound on sessions)
    """

    session: str
    kind: Literal["person", "job"]
    tier: Literal["latency", "best_effort"] = "latency"
    arrival_s: float | None = None
    waited_s: float | None = None
    reading_tokens_per_s: float | None = None


class SessionRefused(LogEvent, frozen=True, kw_only=True):
    """The server would not take it (HTTP status or error code in `code`)."""

    session: str
    code: str
    message: str = ""
    retry_after_s: float | None = None


class SessionEnded(LogEvent, frozen=True, kw_only=True):
    """`reason`: done | lost (the connection broke) | failed (the client gave up on a reply) | stopped."""

    session: str
    reason: str
    message: str = ""


class TurnStarted(LogEvent, frozen=True, kw_only=True):
    """The person began to speak or type (or the job's call was sent)."""

    session: str
    turn: int
    modality: Literal["speech", "text"]


class TurnEnded(LogEvent, frozen=True, kw_only=True):
    """All of the person's turn is with the server.

    t_s           when the last byte of it was written (audio; the response.create of a text turn)
    speech_end_s  when the voice itself ended, in `t_s` time: earlier by the silence that end-pointing needed
    manual        the client committed; False: the server's own end-pointing decides
    """

    session: str
    turn: int
    speech_end_s: float
    audio_s: float = 0.0
    manual: bool = True


class ResponseStarted(LogEvent, frozen=True, kw_only=True):
    """response.created, for turn `turn`."""

    session: str
    turn: int
    response: str
    wants: Literal["speech", "text"]


class TextDelta(LogEvent, frozen=True, kw_only=True):
    """Characters of the reply (or of its transcript)."""

    session: str
    response: str
    chars: int


class AudioDelta(LogEvent, frozen=True, kw_only=True):
    """Seconds of the reply's audio."""

    session: str
    response: str
    audio_s: float


class AckSent(LogEvent, frozen=True, kw_only=True):
    """playback.ack was sent."""

    session: str
    response: str
    played_s: float


class Interrupted(LogEvent, frozen=True, kw_only=True):
    """The person spoke over a reply after hearing `heard_s` of it. Only a barge_in stops the playback."""

    session: str
    response: str
    kind: Literal["barge_in", "failed_barge_in", "backchannel"]
    heard_s: float


class SpeechNoticed(LogEvent, frozen=True, kw_only=True):
    """The server said input_audio_buffer.speech_started (`what="started"`) or speech_stopped."""

    session: str
    what: Literal["started", "stopped"]


class ResponseEnded(LogEvent, frozen=True, kw_only=True):
    """response.done. Token counts as the server reported them; None where it did not."""

    session: str
    response: str
    status: str
    reason: str = ""
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_text_tokens: int | None = None
    output_audio_tokens: int | None = None


class ErrorSeen(LogEvent, frozen=True, kw_only=True):
    """An error event, or a failure of the client's own."""

    session: str
    code: str
    message: str

    @property
    def is_late_cancel(self) -> bool:
        """A reply that had just ended was cancelled: nobody's fault, and no figure counts it. So is, by its
        code, one that never was, which the people of a workload don't cancel."""
        return self.code == "response_cancel_not_active"


class ServerSampled(LogEvent, frozen=True, kw_only=True):
    """The server's own counters (Prometheus names with labels), where it offers them."""

    values: dict[str, float]


class ClientSampled(LogEvent, frozen=True, kw_only=True):
    """The load generator's own cost: CPU seconds so far, and how late its event loop ran at worst since the
    last sample."""

    cpu_s: float
    lag_s: float


Event = (
    RunStarted
    | RunEnded
    | SessionQueued
    | SessionStarted
    | SessionRefused
    | SessionEnded
    | TurnStarted
    | TurnEnded
    | ResponseStarted
    | TextDelta
    | AudioDelta
    | AckSent
    | Interrupted
    | SpeechNoticed
    | ResponseEnded
    | ErrorSeen
    | ServerSampled
    | ClientSampled
)
