"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response

from antiphon.core.errors import AntiphonError, ProtocolError
from antiphon.core.logprobs import TokenLog, read_logs
from antiphon.core.plans import ResponseEnded, Usage
from antiphon.server.admission import check_key, check_model
from antiphon.server.bodies import MAX_TEXT_BODY_BYTES, read_body, typed
from antiphon.server.exchange import Exchanges, answered, while_connected
from antiphon.server.http import Admitted, json_answer
from antiphon.server.openapi import answers, json_body
from antiphon.server.serving import Serving
from antiphon.server.sse import LAST_EVENT, error_event, sse
from antiphon.server.stream_reader import StreamReader
from antiphon.wire.chat_replies import UsageShown, summed, usage_shown
from antiphon.wire.completions import (
    Completion,
    CompletionAsked,
    CompletionChoice,
    CompletionRequest,
    Raw,
    read_completion,
)
from antiphon.wire.logprobs import completion_logprobs
from antiphon.wire.reply_stream import EndPiece, TextPiece

router = APIRouter()
FinishReason = Literal["stop", "length"]


@router.post(
    "/v1/completions",
    summary="Continue a prompt as it stands",
    openapi_extra=json_body(CompletionRequest),
    responses=answers(Completion, stream=(Completion,)),
)
async def completions(request: Request, serving: Admitted) -> Response:
    body = await read_body(request, serving.settings, MAX_TEXT_BODY_BYTES)
    asked = await typed(body, CompletionRequest)
    check_model(asked.model, serving)
    wanted = await asyncio.to_thread(
        read_completion, asked, serving.info, serving.settings.limits, serving.ids, serving.settings.readers
    )
    echoes = await asyncio.to_thread(_echoes, wanted, serving)
    key = check_key(request, serving.settings.api_keys)
    if wanted.guide is not None:
        await while_connected(request, serving.check_guide(wanted.guide, key))
    serving.check_room(wanted.requests[0].tier, len(wanted.requests), key, is_paced=wanted.is_paced)
    replies = Exchanges(serving, wanted.requests, key, wanted.reading, wanted.is_paced)
    name, told = (
        serving.ids.new("cmpl", "-"),
        {"is_streamed": wanted.stream and not wanted.prompts, "is_paced": wanted.is_paced},
    )
    answer = _Answer(
        replies,
        wanted,
        [_Choice(index, echo) for index, echo in enumerate(echoes)],
        Completion(id=name, created=int(time.time()), model=serving.info.name, choices=[]),
        serving.reader_of(name, wanted.requests, **told),
    )
    try:
        return await answered(
            request, replies, answer, stream=wanted.stream, stall_s=serving.settings.stall_s
        )
    except ProtocolError as error:
        raise _of_the_prompt(error) from None


def _of_the_prompt(error: ProtocolError) -> ProtocolError:
    """What the engine says of a prompt names the field."""
    if error.param is None and error.code in ("invalid_prompt", "context_length_exceeded"):
        return ProtocolError(str(error), code=error.code, param="prompt")
    return error


def _echoes(wanted: CompletionAsked, serving: Serving) -> list[str]:
    """What stands before each choice's own text."""
    texts = {prompt: _text(prompt, serving) for prompt in dict.fromkeys(wanted.prompts)}
    return [texts[prompt] for prompt in wanted.prompts] or [""] * len(wanted.requests)


def _text(prompt: Raw, serving: Serving) -> str:
    if isinstance(prompt, str):
        return prompt
    assert serving.detokenisers is not None
    reader = serving.detokenisers()
    try:
        return reader.push(list(prompt)) + reader.flush()
    except (OverflowError, ValueError):
        return ""  # ids that are none: the engine says so


@dataclass(slots=True)
class _Choice:
    """A choice as it is written. echo: what stands before its text, until that has been told."""

    index: int
    echo: str
    offset: int = 0
    """Where the next token's text begins."""
    counts: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class _Answer:
    """choices: of the replies, in order; heading: what stands in every object."""

    replies: Exchanges
    wanted: CompletionAsked
    choices: list[_Choice]
    heading: Completion
    reader: StreamReader | None

    async def whole(self) -> Response:
        texts = [""] * len(self.choices)
        before = [b""] * len(self.choices)
        logs: list[list[TokenLog]] = [[] for _ in self.choices]
        finish: dict[int, FinishReason] = {}
        async for index, piece in self.replies:
            match piece:
                case EndPiece(error=AntiphonError() as error):
                    raise error
                case TextPiece() | EndPiece():
                    prompt, text, told = self._more(index, piece)
                    before[index] += prompt
                    texts[index] += text
                    logs[index] += told
                    if isinstance(piece, EndPiece):
                        finish[index] = self._finish(piece.end)
                case _:
                    pass
        return await asyncio.to_thread(self._put_together, texts, before, logs, finish)

    def _put_together(
        self,
        texts: list[str],
        before: list[bytes],
        logs: list[list[TokenLog]],
        finish: dict[int, FinishReason],
    ) -> Response:
        """Apart from the serving loop: what is told of long prompts is long. Each choice is written before
        the next is read."""
        choices: list[Any] = [
            msgspec.Raw(msgspec.json.encode(self._shown(choice, text, prompt, told, finish[choice.index])))
            for choice, text, prompt, told in zip(self.choices, texts, before, logs, strict=True)
        ]
        return json_answer(msgspec.structs.replace(self.heading, choices=choices, usage=self._usage()))

    async def events(self) -> AsyncIterator[bytes]:
        async for index, piece in self.replies:
            match piece:
                case EndPiece(error=AntiphonError() as error):
                    yield error_event(error)
                    return
                case TextPiece() | EndPiece():
                    if self.reader is not None and isinstance(piece, TextPiece):
                        await self.reader.takes(piece.text, piece.num_read)
                    finish = self._finish(piece.end) if isinstance(piece, EndPiece) else None
                    prompt, text, logs = self._more(index, piece)
                    told = self.choices[index], text, prompt, logs, finish
                    shown = await asyncio.to_thread(self._shown, *told) if prompt else self._shown(*told)
                    chunk = msgspec.structs.replace(self.heading, choices=[shown])
                    if self.wanted.counts_all_along:
                        chunk = msgspec.structs.replace(chunk, usage=self._usage())
                    yield sse(chunk)
                case _:
                    pass
        if self.wanted.include_usage:
            yield sse(msgspec.structs.replace(self.heading, usage=self._usage()))
        yield LAST_EVENT

    def _more(self, index: int, piece: TextPiece | EndPiece) -> tuple[bytes, str, list[TokenLog]]:
        """What is told of the prompt, if it is the first; a piece's text, and what is told of its tokens."""
        choice, stream = self.choices[index], self.replies.each[index].stream
        logs: list[TokenLog] = []
        text, prompt = choice.echo, stream.prompt_logs
        choice.echo, stream.prompt_logs = "", b""
        if isinstance(piece, EndPiece):
            choice.counts = piece.end.usage
        else:
            so_far = choice.counts.output_text_tokens + piece.num_tokens
            choice.counts = msgspec.structs.replace(stream.counts, output_text_tokens=so_far)
        if self.wanted.is_prompt_only:
            choice.counts = msgspec.structs.replace(choice.counts, output_text_tokens=0)
        elif isinstance(piece, TextPiece):
            text += piece.text
            logs += piece.logs
        return prompt, text, logs

    def _shown(
        self,
        choice: _Choice,
        text: str,
        prompt: bytes,
        logs: list[TokenLog],
        finish: FinishReason | None,
    ) -> CompletionChoice:
        told, num_top = None, self.wanted.reading.num_top
        if num_top is not None:
            logs = [*read_logs(prompt, num_top), *logs]
            stream = self.replies.each[choice.index].stream
            told = completion_logprobs(logs, stream.spelled, choice.offset)
            choice.offset += sum(map(len, told.tokens))
        return CompletionChoice(index=choice.index, text=text, logprobs=told, finish_reason=finish)

    def _usage(self) -> UsageShown:
        return usage_shown(summed([choice.counts for choice in self.choices], self.wanted.num_each))

    def _finish(self, end: ResponseEnded) -> FinishReason:
        return "length" if end.status == "incomplete" or self.wanted.is_prompt_only else "stop"
