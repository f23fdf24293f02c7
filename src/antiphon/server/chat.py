"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter, Request, Response

from antiphon.core.errors import AntiphonError
from antiphon.core.plans import ResponseEnded
from antiphon.core.playback import Playback
from antiphon.server.admission import check_key, check_model
from antiphon.server.bodies import read_body, typed
from antiphon.server.exchange import Exchange, ExchangeResponse, while_connected
from antiphon.server.http import Admitted, json_answer
from antiphon.server.openapi import answers, json_body
from antiphon.server.serving import Serving
from antiphon.server.sound import sound_file
from antiphon.server.sse import EVENT_STREAM, LAST_EVENT, error_event, sse
from antiphon.wire.audio import pcm16
from antiphon.wire.chat import ChatRequest
from antiphon.wire.chat_reading import ChatAsked, ChatScope, read_chat
from antiphon.wire.chat_replies import (
    AudioShown,
    ChatChunk,
    ChatCompletion,
    Choice,
    Heading,
    MessageShown,
    finish_reason,
    usage_shown,
)
from antiphon.wire.media_urls import remote_urls
from antiphon.wire.reply_stream import (
    ArgumentsPiece,
    CallPiece,
    EndPiece,
    ReplyAccumulator,
    SoundPiece,
    TextPiece,
)

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation in text or in speech",
    openapi_extra=json_body(ChatRequest),
    responses=answers(ChatCompletion, stream=(ChatChunk,)),
)
async def chat_completions(request: Request, serving: Admitted) -> Response:
    body = await read_body(request, serving.settings.limits)
    asked = typed(body, ChatRequest)
    check_model(asked.model, serving)
    chat = await _read(asked, serving)
    serving.check_room(chat.request.tier)
    heading = Heading(
        serving.ids.new("chatcmpl"),
        int(time.time()),
        serving.info.name,
        serving.ids.new("audio") if chat.speech else None,
    )
    exchange = Exchange(serving, chat.request, check_key(request, serving.settings.api_keys))
    if chat.stream:
        exchange.open()
        try:
            await while_connected(request, exchange.begun())
        except BaseException:
            exchange.close()
            raise
        chunks = _events(exchange, chat, heading, serving)
        return ExchangeResponse(exchange, chunks, EVENT_STREAM, serving.settings.stall_s)
    async with exchange:
        return await while_connected(request, _whole(exchange, chat, heading, serving))


async def _read(asked: ChatRequest, serving: Serving) -> ChatAsked:
    """Fetching and decoding leave the loop, so that nobody else's audio waits."""
    fetched = await serving.fetcher.fetch(remote_urls(asked))
    scope = ChatScope(
        serving.info,
        serving.settings.limits,
        serving.files,
        lambda audio_id: serving.replies.recall(audio_id, time.monotonic()),
        fetched,
    )
    session, response = serving.ids.new("sess"), serving.ids.new("resp")
    return await asyncio.to_thread(read_chat, asked, scope, session, response)


async def _whole(exchange: Exchange, chat: ChatAsked, heading: Heading, serving: Serving) -> Response:
    said = ReplyAccumulator()
    async for piece in exchange:
        match piece:
            case EndPiece():
                if piece.error is not None:
                    raise piece.error
                audio = await _audio(exchange, chat, heading, serving, said.text, bytes(said.sound))
                message = MessageShown(
                    content=said.text if not chat.speech and (said.text or not said.calls) else None,
                    audio=audio,
                    tool_calls=said.shown_calls() or msgspec.UNSET,
                )
                return json_answer(_completion(heading, message, piece.end))
            case _:
                said.add(piece)
    raise AssertionError("a reply has an end")


async def _audio(
    exchange: Exchange, chat: ChatAsked, heading: Heading, serving: Serving, text: str, samples: bytes
) -> AudioShown | None:
    if heading.audio_id is None:
        return None
    data = await asyncio.to_thread(sound_file, chat.format, samples)
    expires_at = _keep(exchange, heading.audio_id, serving)
    return AudioShown(id=heading.audio_id, data=data, expires_at=expires_at, transcript=text)


def _keep(exchange: Exchange, audio_id: str, serving: Serving) -> int:
    """Keep the reply's exact tokens under its id; until when, in Unix seconds."""
    serving.replies.keep(audio_id, exchange.stream.token_ids, time.monotonic())
    return int(time.time() + serving.replies.ttl_s)


def _completion(heading: Heading, message: MessageShown, end: ResponseEnded) -> ChatCompletion:
    choice = Choice(message=message, finish_reason=finish_reason(end.status, len(message.tool_calls or ())))
    return ChatCompletion(
        id=heading.id,
        created=heading.created,
        model=heading.model,
        choices=[choice],
        usage=usage_shown(end.usage),
    )


async def _events(
    exchange: Exchange, chat: ChatAsked, heading: Heading, serving: Serving
) -> AsyncIterator[bytes]:
    yield sse(heading.opening())
    reader = Playback()
    async for piece in exchange:
        match piece:
            case TextPiece():
                if chat.is_paced:
                    await _until_wanted(reader, piece.num_tokens, chat.request.rate)
                yield sse(heading.text(piece.text))
            case SoundPiece():
                yield sse(heading.sound(base64.b64encode(pcm16(piece.samples)).decode()))
            case CallPiece():
                yield sse(heading.call(piece.index, piece.call_id, piece.name))
            case ArgumentsPiece():
                yield sse(heading.arguments(piece.index, piece.delta))
            case EndPiece(error=AntiphonError() as error):
                yield error_event(error)
            case EndPiece():
                for chunk in _closing(exchange, chat, heading, piece.end, serving):
                    yield sse(chunk)
                yield LAST_EVENT


async def _until_wanted(reader: Playback, num_tokens: int, rate: float | str | None) -> None:
    """Wait until the reader has read all that was sent; then these tokens are theirs. What the engine makes
    meanwhile waits in the exchange."""
    assert isinstance(rate, float | int)
    now = time.monotonic()
    wanted_at = max(reader.dry_at, now)
    reader.add(num_tokens / rate, wanted_at)
    await asyncio.sleep(wanted_at - now)


def _closing(
    exchange: Exchange, chat: ChatAsked, heading: Heading, end: ResponseEnded, serving: Serving
) -> list[ChatChunk]:
    chunks = []
    if heading.audio_id is not None:
        chunks.append(heading.expiry(_keep(exchange, heading.audio_id, serving)))
    chunks.append(heading.chunk({}, finish_reason(end.status, exchange.stream.num_calls)))
    if chat.include_usage:
        chunks.append(heading.usage(end.usage))
    return chunks
