"""POST /v1/audio/speech: a text read aloud, chunk by chunk as it is made."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response

from antiphon.core.errors import AntiphonError
from antiphon.server.admission import check_key, check_model
from antiphon.server.bodies import MAX_TEXT_BODY_BYTES, read_body, typed
from antiphon.server.exchange import Exchange, ExchangeResponse, while_connected
from antiphon.server.http import Admitted
from antiphon.server.openapi import answers, json_body
from antiphon.server.sound import ENCODINGS, SoundStream
from antiphon.server.sse import EVENT_STREAM, error_event, sse
from antiphon.wire.audio_api import SpeechDelta, SpeechDone, SpeechRequest, flat_usage, read_speech
from antiphon.wire.reply_stream import EndPiece, SoundPiece

router = APIRouter()
PLAYED_AS_IT_COMES = ("pcm",)
"""Formats of a player; the other files are mostly fetched whole."""
SOUNDS = sorted({encoding.media_type for encoding in ENCODINGS.values()})


@router.post(
    "/v1/audio/speech",
    summary="Read a text aloud",
    openapi_extra=json_body(SpeechRequest),
    responses=answers(None, stream=(SpeechDelta, SpeechDone), binary=SOUNDS),
)
async def speech(request: Request, serving: Admitted) -> Response:
    body = await read_body(request, serving.settings, MAX_TEXT_BODY_BYTES)
    asked = await typed(body, SpeechRequest)
    check_model(asked.model, serving)
    ids = serving.ids
    said = read_speech(asked, serving.info, serving.settings.limits, ids.new("sess"), ids.new("resp"))
    key = check_key(request, serving.settings.api_keys)
    serving.check_room(key=key)
    is_sse = asked.stream_format == "sse"
    is_live = is_sse or asked.response_format in PLAYED_AS_IT_COMES
    exchange = Exchange(serving, said, key, is_live=is_live).open()
    try:
        await while_connected(request, exchange.begun(SoundPiece))
        encoder = SoundStream(asked.response_format)
    except BaseException:
        exchange.close()
        raise
    content = _events(exchange, encoder) if is_sse else _file(exchange, encoder)
    media_type = EVENT_STREAM if is_sse else encoder.media_type
    return ExchangeResponse(exchange, content, media_type, serving.settings.stall_s)


async def _file(exchange: Exchange, encoder: SoundStream) -> AsyncIterator[bytes]:
    """The file as it grows. One that breaks off ends the connection, so that nobody takes it for whole."""
    async for piece in exchange:
        match piece:
            case SoundPiece():
                yield await asyncio.to_thread(encoder.push, piece.samples)
            case EndPiece(error=AntiphonError() as error):
                raise error
            case EndPiece():
                yield encoder.finish()
            case _:
                pass


async def _events(exchange: Exchange, encoder: SoundStream) -> AsyncIterator[bytes]:
    async for piece in exchange:
        match piece:
            case SoundPiece():
                data = await asyncio.to_thread(encoder.push, piece.samples)
                yield _delta(data)
            case EndPiece(error=AntiphonError() as error):
                yield error_event(error)
            case EndPiece():
                yield _delta(encoder.finish())
                yield sse(SpeechDone(usage=flat_usage(piece.end.usage)))
            case _:
                pass


def _delta(data: bytes) -> bytes:
    """An encoder that holds back what it was given makes no event."""
    return sse(SpeechDelta(audio=base64.b64encode(data).decode())) if data else b""
