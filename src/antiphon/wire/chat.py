"""Chat completions as clients write them: the request's types. Their meaning is in `chat_reading`.

What is not done is refused by name; what can do no harm is taken without effect (both are listed there).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from antiphon.wire.client_events import Strict
from antiphon.wire.text_params import NEUTRAL_TEXT, NumTop, Positive, TextParams

AudioFormat = Literal["wav", "mp3", "flac", "opus", "pcm16"]
Fps = Annotated[float, Meta(ge=0.01, le=1000)]


class TextPartIn(Strict, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class PlainText(Strict, frozen=True, kw_only=True):
    """Text, where nothing else can be."""

    type: Literal["text"]
    text: str


class RefusalPartIn(Strict, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """What an assistant said instead of an answer; it is text of the conversation."""

    refusal: str


class ImageUrl(Strict, frozen=True, kw_only=True):
    """A data: URL, or http(s) where the operator allows the host. `detail` is without effect."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePartIn(Strict, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    """A picture: PNG, JPEG, WebP or GIF."""

    image_url: ImageUrl


class InputAudio(Strict, frozen=True, kw_only=True):
    """A sound file in base64."""

    data: bytes
    format: Literal["wav", "mp3", "flac", "ogg", "opus"]


class AudioPartIn(Strict, frozen=True, kw_only=True, tag_field="type", tag="input_audio"):
    """A recording."""

    input_audio: InputAudio


class MediaUrl(Strict, frozen=True, kw_only=True):
    """A data: URL, or http(s) where the operator allows the host."""

    url: str


class AudioUrlPartIn(Strict, frozen=True, kw_only=True, tag_field="type", tag="audio_url"):
    """A recording by URL: WAV, MP3, FLAC or OGG."""

    audio_url: MediaUrl


class VideoUrlPartIn(Strict, frozen=True, kw_only=True, tag_field="type", tag="video_url"):
    """An animation by URL: GIF, APNG or WebP. Other containers: send frames instead."""

    video_url: MediaUrl


class VideoPartIn(Strict, frozen=True, kw_only=True, tag_field="type", tag="video"):
    """A video as pictures, `fps` of them a second."""

    video: Annotated[list[str], Meta(min_length=1)]
    fps: Fps = 2.0


UserPart = TextPartIn | ImagePartIn | AudioPartIn | AudioUrlPartIn | VideoUrlPartIn | VideoPartIn
AssistantPart = TextPartIn | RefusalPartIn


class SystemMessage(Strict, frozen=True, kw_only=True, tag_field="role", tag="system"):
    """How to behave."""

    content: str | list[PlainText]
    name: str | None = None


class DeveloperMessage(Strict, frozen=True, kw_only=True, tag_field="role", tag="developer"):
    """Another name for `system`."""

    content: str | list[PlainText]
    name: str | None = None


class UserMessage(Strict, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """What a person said or showed."""

    content: str | list[UserPart]
    name: str | None = None


class CalledFunction(Strict, frozen=True, kw_only=True):
    """`arguments` is JSON text."""

    name: str
    arguments: str


class ToolCallIn(Strict, frozen=True, kw_only=True):
    """A call that the assistant made."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None


class SpokenBefore(Strict, frozen=True, kw_only=True):
    """A spoken reply of this server, by its id. The other fields of that reply may come back with it."""

    id: str
    data: Any = None
    expires_at: Any = None
    transcript: Any = None


class AssistantMessage(Strict, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """What the assistant said. `audio` stands for the whole reply, exactly as it was."""

    content: str | list[AssistantPart] | None = None
    audio: SpokenBefore | None = None
    tool_calls: list[ToolCallIn] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: Any = None
    function_call: None = None


class ToolMessage(Strict, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    """What a tool answered."""

    content: str | list[PlainText]
    tool_call_id: str


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Voice(Strict, frozen=True, kw_only=True):
    """A voice as an object, as some clients write it."""

    id: str


class AudioParams(Strict, frozen=True, kw_only=True):
    """How the reply is spoken. An unknown voice becomes the model's default voice."""

    voice: str | Voice | None = None
    format: AudioFormat | None = None


class FunctionIn(Strict, frozen=True, kw_only=True):
    """`parameters` is a JSON schema, which a call's arguments follow where `tool_choice` asks for the call.
    `strict` is without effect."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolIn(Strict, frozen=True, kw_only=True):
    """A function that the model may call."""

    function: FunctionIn
    type: Literal["function"] = "function"


class FunctionName(Strict, frozen=True, kw_only=True):
    """Which function."""

    name: str


class NamedTool(Strict, frozen=True, kw_only=True):
    """The function that must be called."""

    function: FunctionName
    type: Literal["function"] = "function"


class ChatRequest(TextParams, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioParams | None = None
    tools: list[ToolIn] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: NumTop | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # refused unless they ask for what is done anyway
    prediction: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None
    # without effect
    metadata: Any = None
    store: Any = None
    parallel_tool_calls: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    skip_special_tokens: Any = None


NEUTRAL: dict[str, tuple[Any, ...]] = NEUTRAL_TEXT | {
    "prediction": (),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "web_search_options": (),
}
"""Fields that are refused, with the values (beside null) that ask for nothing special."""
