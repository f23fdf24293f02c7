"""Chat completions as clients read them: whole, and as chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from antiphon.core.plans import Usage
from antiphon.wire.logprobs import ChatLogprobs, Shown

OUTPUTS = ("output_text_tokens", "output_audio_tokens")
FinishReason = Literal["stop", "length", "tool_calls"]


class CalledOut(Shown, frozen=True, kw_only=True):
    """`arguments` is JSON text."""

    name: str
    arguments: str


class ToolCallOut(Shown, frozen=True, kw_only=True):
    """A call that the model makes."""

    id: str
    function: CalledOut
    type: Literal["function"] = "function"


class AudioShown(Shown, frozen=True, kw_only=True):
    """The reply's sound, base64. By `id` a later request may name the whole reply until `expires_at` (Unix
    seconds)."""

    id: str
    data: bytes
    expires_at: int
    transcript: str


class MessageShown(Shown, frozen=True, kw_only=True):
    """The reply. Spoken, its text is the transcript."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: None = None
    audio: AudioShown | None = None
    tool_calls: list[ToolCallOut] | msgspec.UnsetType = msgspec.UNSET


class Choice(Shown, frozen=True, kw_only=True):
    """A reply; a spoken one is the only one."""

    message: MessageShown
    finish_reason: FinishReason
    index: int = 0
    logprobs: ChatLogprobs | None = None


class PromptDetails(Shown, frozen=True, kw_only=True):
    """A video's frames count as images."""

    text_tokens: int
    audio_tokens: int
    image_tokens: int
    cached_tokens: int


class CompletionDetails(Shown, frozen=True, kw_only=True):
    """Audio tokens are codec frames."""

    text_tokens: int
    audio_tokens: int
    reasoning_tokens: Literal[0] = 0


class UsageShown(Shown, frozen=True, kw_only=True):
    """Token counts, told apart by kind."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class ChatCompletion(Shown, frozen=True, kw_only=True):
    """The whole answer."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: UsageShown
    object: Literal["chat.completion"] = "chat.completion"


class ChatChunk(Shown, frozen=True, kw_only=True):
    """One event of a stream. `modality` says what the delta brings, for clients that tell kinds by it."""

    id: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    modality: Literal["text", "audio"] | msgspec.UnsetType = msgspec.UNSET
    usage: UsageShown | msgspec.UnsetType | None = msgspec.UNSET


def summed(usages: Sequence[Usage], num_choices: int) -> Usage:
    """Of replies side by side, `num_choices` to each prompt in turn: a prompt counts once."""
    whole = Usage()
    for at, usage in enumerate(usages):
        counted = OUTPUTS if at % num_choices else Usage.__struct_fields__
        more = {name: getattr(whole, name) + getattr(usage, name) for name in counted}
        whole = msgspec.structs.replace(whole, **more)
    return whole


def usage_shown(usage: Usage) -> UsageShown:
    """The engine's counts in the words of chat completions."""
    tokens_in = usage.input_text_tokens + usage.input_audio_tokens + usage.input_image_tokens
    tokens_out = usage.output_text_tokens + usage.output_audio_tokens
    return UsageShown(
        prompt_tokens=tokens_in,
        completion_tokens=tokens_out,
        total_tokens=tokens_in + tokens_out,
        prompt_tokens_details=PromptDetails(
            text_tokens=usage.input_text_tokens,
            audio_tokens=usage.input_audio_tokens,
            image_tokens=usage.input_image_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        completion_tokens_details=CompletionDetails(
            text_tokens=usage.output_text_tokens, audio_tokens=usage.output_audio_tokens
        ),
    )


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands in every object of one completion. `audio_id` None: the reply is text only."""

    id: str
    created: int
    model: str
    audio_id: str | None = None

    def chunk(
        self,
        delta: dict[str, Any],
        finish: FinishReason | None = None,
        modality: Literal["text", "audio"] = "text",
        index: int = 0,
        logprobs: ChatLogprobs | None = None,
    ) -> ChatChunk:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return ChatChunk(
            id=self.id, created=self.created, model=self.model, choices=[choice], modality=modality
        )

    def opening(self, index: int = 0) -> ChatChunk:
        """Role, and under which id the sound comes."""
        if self.audio_id is None:
            return self.chunk({"role": "assistant", "content": "", "refusal": None}, index=index)
        return self.chunk(
            {"role": "assistant", "content": None, "refusal": None, "audio": {"id": self.audio_id}}
        )

    def text(self, text: str, index: int = 0, logprobs: ChatLogprobs | None = None) -> ChatChunk:
        """Text of a silent reply, or what is being said."""
        if self.audio_id is None:
            return self.chunk({"content": text}, index=index, logprobs=logprobs)
        return self.chunk({"audio": {"id": self.audio_id, "transcript": text}}, logprobs=logprobs)

    def sound(self, data: str) -> ChatChunk:
        """`data`: base64 PCM16."""
        return self.chunk({"audio": {"id": self.audio_id, "data": data}}, modality="audio")

    def call(self, number: int, call_id: str, name: str, index: int = 0) -> ChatChunk:
        """A call begins, the `number`-th of its reply."""
        function = {"name": name, "arguments": ""}
        begun = {"index": number, "id": call_id, "type": "function", "function": function}
        return self.chunk({"tool_calls": [begun]}, index=index)

    def arguments(self, number: int, delta: str, index: int = 0) -> ChatChunk:
        """More of a call."""
        return self.chunk({"tool_calls": [{"index": number, "function": {"arguments": delta}}]}, index=index)

    def expiry(self, expires_at: int) -> ChatChunk:
        """Until when the reply can be named."""
        return self.chunk({"audio": {"id": self.audio_id, "expires_at": expires_at}}, modality="audio")

    def whole(self, choices: list[Choice], usage: Usage) -> ChatCompletion:
        """Of an answer that is not streamed."""
        return ChatCompletion(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage_shown(usage)
        )

    def usage(self, usage: Usage) -> ChatChunk:
        """The last one, where it was asked for."""
        return ChatChunk(
            id=self.id, created=self.created, model=self.model, choices=[], usage=usage_shown(usage)
        )


def finish_reason(status: str, num_calls: int) -> FinishReason:
    """Why a reply that is over is over."""
    if status == "incomplete":
        return "length"
    return "tool_calls" if num_calls else "stop"
