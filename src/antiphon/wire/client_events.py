"""Client events as types. Only what this version does has a field; anything else is refused by name.

Fields typed `Any` are known to the protocol and checked where their meaning is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

Prepare = Literal["history", "turn"]
ExpectedS = Annotated[float, Meta(ge=0, le=3600)]
Confidence = Annotated[float, Meta(ge=0, le=1)]


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object whose unknown fields are errors: a typo must not do nothing."""


class AudioInputPatch(Strict, frozen=True, kw_only=True):
    """`session.audio.input`. Absent keeps, null clears."""

    format: Any = UNSET
    transcription: Any = UNSET
    noise_reduction: Any = UNSET
    turn_detection: Any = UNSET


class AudioOutputPatch(Strict, frozen=True, kw_only=True):
    """`audio.output` of a session or a response."""

    format: Any = UNSET
    voice: str | dict[str, Any] | UnsetType | None = UNSET
    speed: float | None = None


class SessionAudioPatch(Strict, frozen=True, kw_only=True):
    """`session.audio`."""

    input: AudioInputPatch | None = None
    output: AudioOutputPatch | None = None


class ResponseAudioPatch(Strict, frozen=True, kw_only=True):
    """`response.audio`."""

    output: AudioOutputPatch | None = None


class GenerationPatch(Strict, frozen=True, kw_only=True):
    """What a session and a response may both say about replies. Absent keeps, null resets."""

    output_modalities: list[str] | UnsetType | None = UNSET
    instructions: str | UnsetType | None = UNSET
    max_output_tokens: int | str | UnsetType | None = UNSET
    tools: list[Any] | UnsetType | None = UNSET
    tool_choice: Any = UNSET
    prompt: Any = None
    reasoning: Any = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    """Not in the GA protocol; taken from older clients, without effect: the checkpoint's sampling is used."""


class SessionPatch(GenerationPatch, frozen=True, kw_only=True):
    """`session.update.session`."""

    type: str
    model: str | None = None
    """Without effect: the connection chose the model. Agents repeat their own default name here; the echo
    shows the model that is served."""
    audio: SessionAudioPatch | None = None
    include: list[Any] | None = None
    tracing: Any = None
    truncation: Any = UNSET
    id: Any = None
    object: Any = None
    expires_at: Any = None
    client_secret: Any = None
    x_extensions: Any = None
    """From `id` on read-only: clients that send back the whole object are not refused."""


class ResponseParams(GenerationPatch, frozen=True, kw_only=True):
    """`response.create.response`."""

    conversation: str | None = None
    input: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None
    audio: ResponseAudioPatch | None = None


class Event(Strict, frozen=True, kw_only=True):
    """Every client event may carry an id of its own, echoed in errors."""

    event_id: str | None = None


class SessionUpdate(Event, frozen=True, kw_only=True, tag="session.update"):
    session: SessionPatch


class AppendAudio(Event, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    audio: bytes


class CommitAudio(Event, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    pass


class ClearAudio(Event, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    pass


class CreateItem(Event, frozen=True, kw_only=True, tag="conversation.item.create"):
    item: dict[str, Any]
    previous_item_id: str | None = None


class RetrieveItem(Event, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    item_id: str


class DeleteItem(Event, frozen=True, kw_only=True, tag="conversation.item.delete"):
    item_id: str


class TruncateItem(Event, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    item_id: str
    audio_end_ms: int
    content_index: int = 0


class CreateResponse(Event, frozen=True, kw_only=True, tag="response.create"):
    response: ResponseParams | None = None


class CancelResponse(Event, frozen=True, kw_only=True, tag="response.cancel"):
    response_id: str | None = None


class PlaybackAck(Event, frozen=True, kw_only=True, forbid_unknown_fields=False, tag="playback.ack"):
    """An extension: how much of a reply the client's device has played. Whatever else it says is ignored."""

    played_ms: Any = None
    item_id: Any = None
    response_id: Any = None


class Advise(Event, frozen=True, kw_only=True, tag="antiphon.advise"):
    """An extension: the session's next turn is coming, complete in `expected_arrival` seconds from now.
    Answered by `antiphon.advised`, which only clients that send this get."""

    prepare: Prepare = "history"
    expected_arrival: ExpectedS | None = None
    confidence: Confidence | None = None


ClientEvent = (
    SessionUpdate
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
    | PlaybackAck
    | Advise
)
EVENTS: dict[str, type[ClientEvent]] = {
    str(event.__struct_config__.tag): event
    for event in (
        SessionUpdate,
        AppendAudio,
        CommitAudio,
        ClearAudio,
        CreateItem,
        RetrieveItem,
        DeleteItem,
        TruncateItem,
        CreateResponse,
        CancelResponse,
        PlaybackAck,
        Advise,
    )
}
"""Event types by name, in the order in which an error lists them."""
