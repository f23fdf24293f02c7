"""POST /v1/audio/speech: a text read aloud, chunk by chunk as it is made, or whole once it is finished."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response

from antiphon.core.errors import AntiphonError
from antiphon.core.plans import Usage
from antiphon.server.admission import check_key, check_model
from antiphon.server.bodies import MAX_TEXT_BODY_BYTES, read_body, typed
from antiphon.server.exchange import Exchange, ExchangeResponse, while_connected
from antiphon.server.http import Admitted
from antiphon.server.openapi import answers, json_body
from antiphon.server.settings import ServerSettings
from antiphon.server.sound import ENCODINGS, SoundStream
from antiphon.server.sse import EVENT_STREAM, error_event, sse
from antiphon.wire.audio_api import SpeechDelta, SpeechDone, SpeechRequest, flat_usage, read_speech
from antiphon.wire.limits import check
from antiphon.wire.reply_stream import EndPiece, SoundPiece

router = APIRouter()
PLAYED_AS_IT_COMES = ("pcm",)
"""Formats of a player; the other files are mostly fetched whole."""
TOO_LONG = "The file is sent whole: ask for another response_format, which is sent as it is made"
EVENT_BYTES = 64 << 10
"""Of a finished file that is sent in events."""
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
    is_whole = ENCODINGS[asked.response_format].is_whole
    is_live = not is_whole and (is_sse or asked.response_format in PLAYED_AS_IT_COMES)
    answer = _answer_whole if is_whole else _answer_growing
    exchange = Exchange(serving, said, key, is_live=is_live).open()
    try:
        return await answer(request, exchange, SoundStream(asked.response_format), serving.settings, is_sse)
    except BaseException:
        exchange.close()
        raise


async def _answer_growing(
    request: Request, exchange: Exchange, encoder: SoundStream, settings: ServerSettings, is_sse: bool
) -> Response:
    """Streams from the first sound on. Raises what the reply failed of before."""
    await while_connected(request, exchange.begun(SoundPiece))
    content = _events(exchange, encoder) if is_sse else _file(exchange, encoder)
    return ExchangeResponse(
        exchange, content, EVENT_STREAM if is_sse else encoder.media_type, settings.stall_s
    )


async def _answer_whole(
    request: Request, exchange: Exchange, encoder: SoundStream, settings: ServerSettings, is_sse: bool
) -> Response:
    """Begins once the file is finished. Raises what the reply failed of, and LimitExceeded."""
    file, usage = await while_connected(request, _collected(exchange, encoder, settings.max_queued_bytes))
    if is_sse:
        return ExchangeResponse(exchange, _cut(file, usage), EVENT_STREAM, settings.stall_s)
    exchange.close()
    return Response(file, media_type=encoder.media_type, headers={"Cache-Control": "no-cache"})


async def _collected(exchange: Exchange, encoder: SoundStream, most_bytes: int) -> tuple[bytes, Usage]:
    """The finished file, and what it took. Raises what the reply failed of, and LimitExceeded for a file of
    more than `most_bytes`."""
    usage = Usage()
    async for piece in exchange:
        match piece:
            case SoundPiece():
                await asyncio.to_thread(encoder.push, piece.samples)
                check("max_queued_bytes", most_bytes, encoder.num_held_bytes, TOO_LONG)
            case EndPiece(error=AntiphonError() as error):
                raise error
            case EndPiece():
                usage = piece.end.usage
            case _:
                pass
    return encoder.finish(), usage


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


async def _cut(file: bytes, usage: Usage) -> AsyncIterator[bytes]:
    for at in range(0, len(file), EVENT_BYTES):
        yield _delta(file[at : at + EVENT_BYTES])
    yield sse(SpeechDone(usage=flat_usage(usage)))


def _delta(data: bytes) -> bytes:
    """An encoder that holds back what it was given makes no event."""
    return sse(SpeechDelta(audio=base64.b64encode(data).decode())) if data else b""
