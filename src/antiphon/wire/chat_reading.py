"""A chat completion, read: from the client's request to the one that the engine gets. Checks everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from antiphon.core.conversation import (
    AudioPart,
    Item,
    Part,
    TextPart,
    TokensPart,
    ToolCallPart,
    ToolOutputPart,
    num_bytes,
)
from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.core.facts import ResponseRequested
from antiphon.core.model_info import ModelInfo
from antiphon.wire.chat import (
    NEUTRAL,
    AssistantMessage,
    AssistantPart,
    AudioPartIn,
    AudioUrlPartIn,
    ChatRequest,
    ImagePartIn,
    Message,
    NamedTool,
    PlainText,
    RefusalPartIn,
    TextPartIn,
    ToolCallIn,
    ToolMessage,
    UserMessage,
    UserPart,
    VideoPartIn,
    VideoUrlPartIn,
    Voice,
)
from antiphon.wire.errors import shown
from antiphon.wire.guides import AskedGuide, guide_of
from antiphon.wire.limits import Limits, MediaRoom, check
from antiphon.wire.media_urls import bytes_of, media_of
from antiphon.wire.parsing import check_depth, check_taken
from antiphon.wire.ports import MediaFiles
from antiphon.wire.readers import ReaderRates
from antiphon.wire.sampling_overrides import Wishes, sampling_of
from antiphon.wire.template import read_template
from antiphon.wire.text_params import TextReading, check_delivery, reading_of, refuse, wishes_of
from antiphon.wire.tools import check_place, read_tools
from antiphon.wire.windows import pieces_of

Recall = Callable[[str], tuple[int, ...] | None]
"""The exact tokens of a reply of this server by its audio id, or None where it is not known (any more)."""


@dataclass(frozen=True, slots=True)
class ChatScope:
    """What a request is read against. `fetched`: the bytes behind its remote URLs."""

    info: ModelInfo
    limits: Limits
    media: MediaFiles
    recall: Recall
    fetched: Mapping[str, bytes]
    readers: ReaderRates = field(default_factory=ReaderRates)


@dataclass(frozen=True, slots=True)
class ChatAsked:
    """What the client wants beside the engine's part of it. `format` is that of the sound; `is_paced`: text
    is sent no faster than it is read; `counts_all_along`: usage stands in every chunk."""

    request: ResponseRequested
    format: str
    stream: bool
    include_usage: bool
    is_paced: bool = False
    counts_all_along: bool = False
    reading: TextReading = field(default_factory=TextReading)
    guide: AskedGuide | None = None
    others: tuple[ResponseRequested, ...] = ()

    @property
    def requests(self) -> tuple[ResponseRequested, ...]:
        """One a choice."""
        return (self.request, *self.others)

    @property
    def speech(self) -> bool:
        return self.request.speech


def read_chat(asked: ChatRequest, scope: ChatScope, session: str, response: str) -> ChatAsked:
    """Raises ProtocolError or LimitExceeded for whatever is wrong; decodes all media on the way."""
    refuse(asked, NEUTRAL)
    stream = bool(asked.stream)
    tools, tool_choice = _tools(asked, scope.limits), _tool_choice(asked)
    check_place(tools, tool_choice, scope.info, "tools")
    speech = "audio" in (asked.modalities or ())
    if speech and not scope.info.voices:
        raise ProtocolError(
            f"The model {scope.info.name} has no voice: leave audio out of modalities.", param="modalities"
        )
    check_delivery(asked, asked.n or 1)
    if asked.antiphon is not None and speech:
        raise ProtocolError("antiphon is for a text that is read: ask for no audio.", param="antiphon")
    if speech and asked.stop:
        raise ProtocolError(
            "stop ends a text, and what is spoken is ahead of it: leave stop out, or ask for no audio.",
            param="stop",
        )
    if (asked.n or 1) > 1 and speech:
        raise ProtocolError("n is 1 where a reply is spoken.", param="n")
    num_top = (asked.top_logprobs or 0) if asked.logprobs else None
    if asked.top_logprobs and num_top is None:
        raise ProtocolError(
            "top_logprobs needs logprobs: send logprobs: true, or leave it out.", param="top_logprobs"
        )
    max_tokens = asked.max_completion_tokens or asked.max_tokens
    reading, has_to_call = reading_of(asked, num_top), tool_choice not in ("auto", "none")
    if has_to_call:
        reading = replace(reading, stop=())  # strings end a text, and there is none
    guide = guide_of(asked, scope.limits, tools, tool_choice, json_calls=scope.info.json_calls)
    if speech and guide is not None and guide.param != "tools":
        raise ProtocolError(
            f"{guide.param} guides a text that is read: leave it out, or ask for no audio.", param=guide.param
        )
    wishes = wishes_of(asked, scope.info, max_tokens, num_top, guide=guide and guide.guide)
    # each choice has its own copy on the way to the engine
    room = MediaRoom(scope.limits, "Send fewer or smaller media, or a smaller n", copies=asked.n or 1)
    request = ResponseRequested(
        session=session,
        response=response,
        item_id="reply",
        speech=speech,
        voice=speaker(asked.audio.voice if asked.audio else None, scope.info),
        sampling=sampling_of(wishes, scope.info, response),
        max_tokens=max_tokens,
        remember=False,
        items=tuple(_items(asked.messages, scope, room)),
        tools=tools,
        tool_choice=tool_choice,
        tier="best_effort" if asked.service_tier == "flex" else "latency",
        rate=_rate(asked, scope.readers, stream, speech),
        tells_counts=asked.needs_counts,
        cache_salt=asked.cache_salt or "",
        template=read_template(asked.chat_template_kwargs),
    )
    return ChatAsked(
        request,
        _format(asked, stream),
        stream,
        asked.includes_usage,
        asked.is_paced,
        asked.counts_all_along,
        reading,
        guide,
        tuple(_another(request, wishes, scope.info, choice) for choice in range(1, asked.n or 1)),
    )


def _rate(
    asked: ChatRequest, readers: ReaderRates, is_streamed: bool, speech: bool
) -> float | Literal["auto"] | None:
    """A spoken reply has a listener, and no reader."""
    if speech:
        return None
    return readers.of(asked.antiphon and asked.antiphon.rate, is_streamed=is_streamed)


def _another(first: ResponseRequested, wishes: Wishes, info: ModelInfo, choice: int) -> ResponseRequested:
    """The request for one more reply to the first one's question, with a seed of its own."""
    session, response = f"{first.session}-{choice}", f"{first.response}-{choice}"
    sampling = sampling_of(wishes, info, response, choice)
    return msgspec.structs.replace(first, session=session, response=response, sampling=sampling)


def speaker(voice: str | Voice | None, info: ModelInfo) -> str | None:
    """The model's voice: clients may ask for other servers' voices and get the default."""
    name = (voice.id if isinstance(voice, Voice) else voice or "").lower()
    if name in info.voices:
        return name
    return info.voices[0] if info.voices else None


def _format(asked: ChatRequest, stream: bool) -> str:
    chosen = asked.audio.format if asked.audio else None
    if stream and chosen not in (None, "pcm16"):
        raise ProtocolError(
            f"A stream's audio is 'pcm16' (mono, 24 kHz); got {shown(chosen)}.", param="audio.format"
        )
    return chosen or ("pcm16" if stream else "wav")


def _tools(asked: ChatRequest, limits: Limits) -> tuple[str, ...]:
    """Each tool as the JSON that chat templates take."""
    raw: list[Any] = [msgspec.to_builtins(tool) for tool in asked.tools or ()]
    return tuple(tool.schema() for tool in read_tools(raw, limits, "tools"))


def _tool_choice(asked: ChatRequest) -> str:
    choice = asked.tool_choice or "auto"
    names = [tool.function.name for tool in asked.tools or ()]
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise ProtocolError(
                f"tool_choice names {shown(choice.function.name)}, which is not one of the tools.",
                param="tool_choice",
            )
        return choice.function.name
    if choice == "required" and not names:
        raise ProtocolError("tool_choice is 'required', but there are no tools.", param="tool_choice")
    return choice


def check_media(asked: ChatRequest, info: ModelInfo) -> None:
    """Raises ProtocolError for a part that the model does not take: before anything is fetched for it."""
    for part, at in media_of(asked):
        check_taken("audio" if isinstance(part, AudioPartIn | AudioUrlPartIn) else "image", info, at)


def _check_answers(messages: list[Message]) -> None:
    """A tool's answer is to a call before it. What a spoken reply has called is known from its tokens."""
    calls: set[str] = set()
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            if message.audio is not None:
                return
            calls.update(call.id for call in message.tool_calls or ())
        elif isinstance(message, ToolMessage) and message.tool_call_id not in calls:
            raise ProtocolError(
                f"No assistant message before it has a call {shown(message.tool_call_id)}.",
                code="invalid_tool_call_id",
                param=f"messages[{index}].tool_call_id",
            )


def _items(messages: list[Message], scope: ChatScope, room: MediaRoom) -> Iterator[Item]:
    check("max_items", scope.limits.max_items, len(messages))
    _check_answers(messages)
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        match message:
            case UserMessage():
                yield Item(f"item-{index}", "user", _user_parts(message, scope, room, at))
            case AssistantMessage():
                yield Item(f"item-{index}", "assistant", _assistant_parts(message, scope, at))
            case ToolMessage():
                text = _text(message.content, scope, at)
                yield Item(f"item-{index}", "tool", (ToolOutputPart(message.tool_call_id, text),))
            case _:
                yield Item(f"item-{index}", "system", (TextPart(_text(message.content, scope, at)),))


def _text(content: str | list[PlainText] | list[AssistantPart], scope: ChatScope, at: str) -> str:
    if not isinstance(content, str):
        check("max_parts", scope.limits.max_parts, len(content), f"{at}.content has too many parts")
        content = "".join(part.refusal if isinstance(part, RefusalPartIn) else part.text for part in content)
    check("max_text_chars", scope.limits.max_text_chars, len(content), f"the text of {at} is too long")
    return content


def _assistant_parts(message: AssistantMessage, scope: ChatScope, at: str) -> tuple[Part, ...]:
    if message.audio is not None:
        tokens = scope.recall(message.audio.id)
        if tokens is None:
            raise ProtocolError(
                f"The audio {shown(message.audio.id)} is not known here (any more); send its transcript as"
                " content instead.",
                code="audio_not_found",
                param=f"{at}.audio.id",
            )
        return (TokensPart(tokens),)
    content = message.content if message.content is not None else message.refusal or ""
    text = _text(content, scope, at)
    calls = message.tool_calls or []
    check("max_parts", scope.limits.max_parts, len(calls), f"{at}.tool_calls are too many")
    if not text and not calls:
        raise ProtocolError(
            f"Missing required parameter: '{at}.content' (or audio, or tool_calls).",
            code="missing_required_parameter",
            param=f"{at}.content",
        )
    return ((TextPart(text),) if text else ()) + _calls(calls, scope, at)


def _calls(calls: list[ToolCallIn], scope: ChatScope, at: str) -> tuple[ToolCallPart, ...]:
    check_place(calls, "", scope.info, f"{at}.tool_calls")
    limits = scope.limits
    num_chars = sum(len(call.function.name) + len(call.function.arguments) for call in calls)
    check("max_text_chars", limits.max_text_chars, num_chars, f"the text of {at}.tool_calls is too long")
    for index, call in enumerate(calls):
        check_depth(call.function.arguments, f"{at}.tool_calls[{index}].function.arguments")
    return tuple(ToolCallPart(call.id, call.function.name, call.function.arguments) for call in calls)


def _user_parts(message: UserMessage, scope: ChatScope, room: MediaRoom, at: str) -> tuple[Part, ...]:
    content = message.content
    if isinstance(content, str):
        return (TextPart(_text(content, scope, at)),)
    check("max_parts", scope.limits.max_parts, len(content), f"{at}.content has too many parts")
    num_chars = sum(len(part.text) for part in content if isinstance(part, TextPartIn))
    check("max_text_chars", scope.limits.max_text_chars, num_chars, f"the text of {at} is too long")
    places = [f"{at}.content[{index}]" for index in range(len(content))]
    taken = [_user_part(part, scope, room, at) for part, at in zip(content, places, strict=True)]
    return tuple(part for parts in taken for part in parts)


def _user_part(part: UserPart, scope: ChatScope, room: MediaRoom, at: str) -> tuple[Part, ...]:
    """What stands for it in the record: of a long recording, its pieces."""
    try:
        decoded = _decoded(part, scope, room, at)
        room.take(num_bytes(decoded))
    except (ProtocolError, LimitExceeded) as error:
        error.param = error.param or at
        raise
    return pieces_of(decoded, scope.info) if isinstance(decoded, AudioPart) else (decoded,)


def _decoded(part: UserPart, scope: ChatScope, room: MediaRoom, at: str) -> Part:
    media, limits = scope.media, scope.limits
    match part:
        case TextPartIn():
            return TextPart(part.text)
        case ImagePartIn():
            data = bytes_of(part.image_url.url, scope.fetched, limits.max_image_bytes, f"{at}.image_url.url")
            return media.image_file(data, room)
        case AudioPartIn():
            check("max_file_bytes", limits.max_file_bytes, len(part.input_audio.data))
            return media.audio_file(part.input_audio.data)
        case AudioUrlPartIn():
            return media.audio_file(
                bytes_of(part.audio_url.url, scope.fetched, limits.max_file_bytes, f"{at}.audio_url.url")
            )
        case VideoUrlPartIn():
            return media.video_file(
                bytes_of(part.video_url.url, scope.fetched, limits.max_file_bytes, f"{at}.video_url.url"),
                room,
            )
        case VideoPartIn():
            check("max_video_frames", limits.max_video_frames, len(part.video))
            urls = [(url, f"{at}.video[{index}]") for index, url in enumerate(part.video)]
            frames = [bytes_of(url, scope.fetched, limits.max_image_bytes, place) for url, place in urls]
            return media.video_frames(frames, part.fps, room)
