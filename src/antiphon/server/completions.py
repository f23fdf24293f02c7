"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import msgspec
from fastapi import APIRouter, Request, Response

from antiphon.core.errors import AntiphonError, ProtocolError
from antiphon.core.plans import ResponseEnded, Usage
from antiphon.server.admission import check_key, check_model
from antiphon.server.bodies import read_body, typed
from antiphon.server.exchange import ExchangeResponse, Exchanges, while_connected
from antiphon.server.http import Admitted, json_answer
from antiphon.server.openapi import answers, json_body
from antiphon.server.serving import Serving
from antiphon.server.sse import EVENT_STREAM, LAST_EVENT, error_event, sse
from antiphon.wire.chat_replies import UsageShown, summed, usage_shown
from antiphon.wire.completions import (
    Completion,
    CompletionAsked,
    CompletionChoice,
    CompletionRequest,
    Raw,
    read_completion,
)
from antiphon.wire.reply_stream import EndPiece, TextPiece

router = APIRouter()


@router.post(
    "/v1/completions",
    summary="Continue a prompt as it stands",
    openapi_extra=json_body(CompletionRequest),
    responses=answers(Completion, stream=(Completion,)),
)
async def completions(request: Request, serving: Admitted) -> Response:
    body = await read_body(request, serving.settings.limits)
    asked = typed(body, CompletionRequest)
    check_model(asked.model, serving)
    wanted = await asyncio.to_thread(
        read_completion, asked, serving.info, serving.settings.limits, serving.ids
    )
    serving.check_room(wanted.requests[0].tier, len(wanted.requests))
    echoes = await asyncio.to_thread(_echoes, wanted, serving)
    answer = _Answer(
        Exchanges(serving, wanted.requests, check_key(request, serving.settings.api_keys), wanted.end),
        wanted,
        echoes,
        Completion(id=serving.ids.new("cmpl"), created=int(time.time()), model=serving.info.name, choices=[]),
    )
    replies = answer.replies.open()
    try:
        if not wanted.stream:
            return await while_connected(request, answer.whole())
        await while_connected(request, replies.begun())
    except ProtocolError as error:
        replies.close()
        raise _of_the_prompt(error) from None
    except BaseException:
        replies.close()
        raise
    finally:
        if not wanted.stream:
            replies.close()
    return ExchangeResponse(replies, answer.events(), EVENT_STREAM, serving.settings.stall_s)


def _of_the_prompt(error: ProtocolError) -> ProtocolError:
    """What the engine says of a prompt names the field."""
    if error.param is None and error.code in ("invalid_prompt", "context_length_exceeded"):
        return ProtocolError(str(error), code=error.code, param="prompt")
    return error


def _echoes(wanted: CompletionAsked, serving: Serving) -> list[str]:
    """What stands before each choice's own text."""
    return [_text(prompt, serving) for prompt in wanted.prompts] or [""] * len(wanted.requests)


def _text(prompt: Raw, serving: Serving) -> str:
    if isinstance(prompt, str):
        return prompt
    assert serving.detokenisers is not None
    reader = serving.detokenisers()
    try:
        return reader.push(list(prompt)) + reader.flush()
    except (OverflowError, ValueError):
        return ""  # ids that are none: the engine says so


@dataclass(frozen=True, slots=True)
class _Answer:
    """echoes: what stands before each choice's text; heading: what stands in every object."""

    replies: Exchanges
    wanted: CompletionAsked
    echoes: list[str]
    heading: Completion

    async def whole(self) -> Response:
        texts = list(self.echoes)
        ends: dict[int, ResponseEnded] = {}
        async for index, piece in self.replies:
            match piece:
                case TextPiece():
                    texts[index] += piece.text
                case EndPiece(error=AntiphonError() as error):
                    raise error
                case EndPiece():
                    ends[index] = piece.end
                case _:
                    pass
        choices = [
            CompletionChoice(index=index, text=text, finish_reason=_finish(ends[index]))
            for index, text in enumerate(texts)
        ]
        usage = self._usage([ends[index].usage for index in range(len(texts))])
        return json_answer(msgspec.structs.replace(self.heading, choices=choices, usage=usage))

    async def events(self) -> AsyncIterator[bytes]:
        for index, echo in enumerate(self.echoes):
            if echo:
                yield self._chunk(CompletionChoice(index=index, text=echo), None)
        counts = [Usage()] * len(self.echoes)
        async for index, piece in self.replies:
            match piece:
                case TextPiece():
                    counts[index] = self._counted(index, counts[index], piece.num_tokens)
                    yield self._chunk(CompletionChoice(index=index, text=piece.text), counts)
                case EndPiece(error=AntiphonError() as error):
                    yield error_event(error)
                    return
                case EndPiece():
                    counts[index] = piece.end.usage
                    last = CompletionChoice(index=index, text="", finish_reason=_finish(piece.end))
                    yield self._chunk(last, counts)
                case _:
                    pass
        if self.wanted.include_usage:
            yield sse(msgspec.structs.replace(self.heading, usage=self._usage(counts)))
        yield LAST_EVENT

    def _counted(self, index: int, before: Usage, num_tokens: int) -> Usage:
        so_far = before.output_text_tokens + num_tokens
        return msgspec.structs.replace(self.replies.each[index].stream.counts, output_text_tokens=so_far)

    def _chunk(self, choice: CompletionChoice, counts: list[Usage] | None) -> bytes:
        chunk = msgspec.structs.replace(self.heading, choices=[choice])
        if self.wanted.counts_all_along and counts is not None:
            chunk = msgspec.structs.replace(chunk, usage=self._usage(counts))
        return sse(chunk)

    def _usage(self, counts: list[Usage]) -> UsageShown:
        return usage_shown(summed(counts, 1))


def _finish(end: ResponseEnded) -> Literal["stop", "length"]:
    return "length" if end.status == "incomplete" else "stop"
