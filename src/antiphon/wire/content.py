"""Items that clients write: checked, decoded, and turned into the record's own shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from antiphon.core.conversation import (
    AudioPart,
    ImagePart,
    Item,
    Part,
    Role,
    TextPart,
    ToolCallPart,
    ToolOutputPart,
    VideoPart,
    num_bytes,
)
from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.core.ids import IdSource
from antiphon.core.model_info import ModelInfo
from antiphon.core.units import pcm16_ms
from antiphon.wire.audio import MIN_AUDIO_MS, ClientAudio
from antiphon.wire.chat import Fps
from antiphon.wire.client_events import Strict
from antiphon.wire.conversation import ROOT, WireItem
from antiphon.wire.effects import Payload
from antiphon.wire.errors import shown
from antiphon.wire.input_settings import Incoming, InputTranscription, transcript_options
from antiphon.wire.limits import Limits, MediaRoom, check
from antiphon.wire.parsing import check_depth, check_taken, converted
from antiphon.wire.ports import Media
from antiphon.wire.tools import check_place
from antiphon.wire.windows import pieces_of

MAX_ID_CHARS = 128
ALLOWED: dict[Role, tuple[str, ...]] = {
    "user": ("input_text", "input_audio", "input_image", "input_video"),
    "system": ("input_text",),
    "assistant": ("output_text", "output_audio"),
}
MEDIA = {"input_audio": "audio", "input_image": "image", "input_video": "image"}
"""What a model has to take for a part of this type."""


class ContentPart(Strict, frozen=True, kw_only=True):
    """One part of a message; which field counts depends on `type`. `input_video` is ours: its frames as
    `data:` URLs of images, `fps` of them a second."""

    type: str
    text: str | None = None
    audio: bytes | None = None
    transcript: str | None = None
    image_url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None
    video: Annotated[list[str], Meta(min_length=1)] | None = None
    fps: Fps = 2.0


class CallIn(Strict, frozen=True, kw_only=True):
    """A function call that a client says was made."""

    type: str
    name: str
    arguments: str
    call_id: str | None = None
    id: str | None = None
    object: str | None = None
    status: str | None = None


class CallOutputIn(Strict, frozen=True, kw_only=True):
    """What a function answered."""

    type: str
    call_id: str
    output: str
    id: str | None = None
    object: str | None = None
    status: str | None = None


class MessageIn(Strict, frozen=True, kw_only=True):
    """A message as clients write it. `object` and `status` are read-only and without effect."""

    type: str
    role: Literal["user", "system", "assistant"]
    content: list[ContentPart]
    id: str | None = None
    object: str | None = None
    status: str | None = None


ItemIn = MessageIn | CallIn | CallOutputIn
ITEMS: dict[str, type[ItemIn]] = {
    "message": MessageIn,
    "function_call": CallIn,
    "function_call_output": CallOutputIn,
}


@dataclass(frozen=True, slots=True)
class NewItem:
    """A client's item, as shown to clients and as the record keeps it."""

    shown: WireItem
    record: Item


class ItemReader:
    """Reads client items under the limits, decoding through the injected media functions."""

    def __init__(self, media: Media, limits: Limits, ids: IdSource, info: ModelInfo) -> None:
        self._info = info
        self._media = media
        self._ids = ids
        self._limits = limits

    def message(self, raw: dict[str, Any], at: str) -> ItemIn:
        """The item in `raw`, checked as far as possible without decoding media."""
        kind = raw.get("type", "message")
        if not isinstance(kind, str) or kind not in ITEMS:
            raise ProtocolError(
                f"Item type {shown(kind)} is not supported by this version; supported: {', '.join(ITEMS)}.",
                param=f"{at}.type",
            )
        message = converted(raw, ITEMS[kind], at)
        if message.id is not None and (not 1 <= len(message.id) <= MAX_ID_CHARS or message.id == ROOT):
            raise ProtocolError(
                f"An item id has 1 to {MAX_ID_CHARS} characters and is not 'root'.", param=f"{at}.id"
            )
        if isinstance(message, MessageIn):
            num_parts = len(message.content)
            check("max_parts", self._limits.max_parts, num_parts, f"{at}.content has too many parts")
        num_chars = _num_chars(message)
        check("max_text_chars", self._limits.max_text_chars, num_chars, f"the text of {at} is too long")
        if isinstance(message, CallIn):
            check_place((message,), "", self._info, at)  # every later reply would fail by it
            check_depth(message.arguments, f"{at}.arguments")
        return message

    def item(self, message: ItemIn, at: str, room: MediaRoom, incoming: Incoming = Incoming()) -> NewItem:
        """The item with its media decoded, which take their room, under the client's id or a new one."""
        item_id = message.id or self._ids.new("item")
        if isinstance(message, CallIn):
            return self._call(item_id, message)
        if isinstance(message, CallOutputIn):
            return _call_output(item_id, message)
        parts = tuple(
            taken
            for index, part in enumerate(message.content)
            for taken in self._taken(message.role, part, f"{at}.content[{index}]", room, incoming)
        )
        content = [_echo(part) for part in message.content]
        shown_item = WireItem(item_id, message.role, "completed", content, sum(map(num_bytes, parts)))
        return NewItem(shown_item, Item(item_id, message.role, parts))

    def _call(self, item_id: str, call: CallIn) -> NewItem:
        call_id = call.call_id or self._ids.new("call")
        record = Item(item_id, "assistant", (ToolCallPart(call_id, call.name, call.arguments),))
        fields = {"type": "function_call", "name": call.name, "call_id": call_id, "arguments": call.arguments}
        return NewItem(WireItem(item_id, "assistant", "completed", call=fields), record)

    def spoken(self, pcm16: bytes, item_id: str, asked: InputTranscription | None) -> NewItem:
        """A user's message from the input buffer, to be written down as `asked`."""
        parts = self._audio(pcm16, asked)
        content: list[Payload] = [{"type": "input_audio", "transcript": None}]
        shown_item = WireItem(item_id, "user", "completed", content, sum(map(num_bytes, parts)))
        return NewItem(shown_item, Item(item_id, "user", parts))

    def _audio(self, pcm16: bytes, asked: InputTranscription | None) -> tuple[AudioPart, ...]:
        """Audio as the record has it, in pieces that the model hears; half a sample at the end is dropped."""
        check("max_audio_s", self._limits.max_audio_s, pcm16_ms(len(pcm16)) / 1000)
        part = self._media.audio_part(pcm16[: len(pcm16) // 2 * 2])
        options = transcript_options(asked, self._info)
        return pieces_of(msgspec.structs.replace(part, options=options), self._info)

    def _recording(self, audio: bytes, at: str, incoming: Incoming) -> tuple[AudioPart, ...]:
        """Raises ProtocolError if no model hears anything in it, since every later reply would fail by it."""
        pcm16 = ClientAudio(self._media).pcm16(audio, incoming.format)
        if pcm16_ms(len(pcm16)) < MIN_AUDIO_MS:
            raise ProtocolError(
                f"The audio is {pcm16_ms(len(pcm16)) / 1000:.3f} s long; it has to be at least"
                f" {MIN_AUDIO_MS / 1000:g} s.",
                code="audio_too_short",
                param=at,
            )
        return self._audio(pcm16, incoming.transcription)

    def _taken(
        self, role: Role, part: ContentPart, at: str, room: MediaRoom, incoming: Incoming
    ) -> tuple[Part, ...]:
        try:
            decoded = self._parts(role, part, at, room, incoming)
            room.take(sum(map(num_bytes, decoded)))
        except LimitExceeded as error:
            error.param = at
            raise
        return decoded

    def _parts(
        self, role: Role, part: ContentPart, at: str, room: MediaRoom, incoming: Incoming
    ) -> tuple[Part, ...]:
        if part.type not in ALLOWED[role]:
            raise ProtocolError(
                f"Content type {shown(part.type)} is not supported in messages of role {role};"
                f" supported: {', '.join(self._taken_types(role))}.",
                param=f"{at}.type",
            )
        if part.type in MEDIA:
            check_taken(MEDIA[part.type], self._info, at)
        if part.type == "input_audio":
            return self._recording(_required(part.audio, f"{at}.audio"), f"{at}.audio", incoming)
        if part.type == "input_image":
            return (self._image(_required(part.image_url, f"{at}.image_url"), f"{at}.image_url", room),)
        if part.type == "input_video":
            return (self._video(_required(part.video, f"{at}.video"), part.fps, f"{at}.video", room),)
        if part.type == "output_audio":
            return (TextPart(_required(part.transcript, f"{at}.transcript")),)
        return (TextPart(_required(part.text, f"{at}.text")),)

    def _taken_types(self, role: Role) -> list[str]:
        return [name for name in ALLOWED[role] if name not in MEDIA or MEDIA[name] in self._info.inputs]

    def _video(self, urls: list[str], fps: float, at: str, room: MediaRoom) -> VideoPart:
        check("max_video_frames", self._limits.max_video_frames, len(urls))
        for index, url in enumerate(urls):
            _check_local(url, f"{at}[{index}]")
        try:
            return self._media.video_part(urls, fps, room)
        except ProtocolError as error:
            error.param = at
            raise

    def _image(self, url: str, at: str, room: MediaRoom) -> ImagePart:
        _check_local(url, at)
        try:
            return self._media.image_part(url, room)
        except ProtocolError as error:
            error.param = at
            raise


def _check_local(url: str, at: str) -> None:
    """Raises ProtocolError."""
    if not url.startswith("data:"):
        raise ProtocolError(
            "Remote media URLs are off (safety rule: the server fetches nothing on a client's behalf);"
            " send the image as a data: URL.",
            param=at,
        )


def _num_chars(item: ItemIn) -> int:
    if isinstance(item, CallIn):
        return len(item.name) + len(item.arguments) + len(item.call_id or "")
    if isinstance(item, CallOutputIn):
        return len(item.output) + len(item.call_id)
    return sum(len(part.text or "") + len(part.transcript or "") for part in item.content)


def _call_output(item_id: str, answer: CallOutputIn) -> NewItem:
    """The id of its call is not looked up: `response.input` may leave the call out."""
    fields = {"type": "function_call_output", "call_id": answer.call_id, "output": answer.output}
    record = Item(item_id, "tool", (ToolOutputPart(answer.call_id, answer.output),))
    return NewItem(WireItem(item_id, "tool", "completed", call=fields), record)


def _required(value: Any, at: str) -> Any:
    if value is None:
        raise ProtocolError(
            f"Missing required parameter: '{at}'.", code="missing_required_parameter", param=at
        )
    return value


def _echo(part: ContentPart) -> Payload:
    """The part without its media bytes: every server event stays small. A video is told as an image, the
    nearest that the protocol's own events can say."""
    if part.type == "input_audio":
        return {"type": part.type, "transcript": None}
    if part.type in ("input_image", "input_video"):
        return {"type": "input_image", "detail": part.detail or "auto"}
    if part.type == "output_audio":
        return {"type": part.type, "transcript": part.transcript}
    return {"type": part.type, "text": part.text}
