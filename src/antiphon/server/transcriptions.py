"""POST /v1/audio/transcriptions: what was said, in writing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from msgspec import UNSET
from starlette.datastructures import FormData, UploadFile

from antiphon.core.conversation import AudioPart
from antiphon.core.errors import AntiphonError, ProtocolError
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import ResponseEnded
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ
from antiphon.server.admission import check_key, check_model
from antiphon.server.bodies import fields_of, read_body, read_form
from antiphon.server.exchange import Exchange, ExchangeResponse, while_connected
from antiphon.server.http import Admitted, json_answer
from antiphon.server.openapi import answers, form_body
from antiphon.server.serving import Serving
from antiphon.server.sse import EVENT_STREAM, error_event, sse
from antiphon.wire.audio_api import (
    TranscriptDelta,
    TranscriptDone,
    Transcription,
    TranscriptionRequest,
    heard_usage,
    read_transcription,
    transcript_usage,
)
from antiphon.wire.input_settings import read_language
from antiphon.wire.limits import check
from antiphon.wire.parsing import converted
from antiphon.wire.reply_stream import EndPiece, TextPiece
from antiphon.wire.windows import pieces_of

router = APIRouter()
LISTS = ("include", "timestamp_granularities")
FLAGS = {"true": True, "1": True, "false": False, "0": False}


@router.post(
    "/v1/audio/transcriptions",
    summary="Write down what was said",
    openapi_extra=form_body(TranscriptionRequest, "file"),
    responses=answers(Transcription, stream=(TranscriptDelta, TranscriptDone), binary=["text/plain"]),
)
async def transcriptions(request: Request, serving: Admitted) -> Response:
    key = check_key(request, serving.settings.api_keys)
    serving.check_room(key=key)
    form = await read_form(request, await read_body(request, serving.settings))
    try:
        asked = _fields(form)
        check_model(asked.model, serving)
        audio = await while_connected(request, _audio(form, serving, key))
    finally:
        await form.close()
    ids = serving.ids
    wanted = read_transcription(
        asked, audio, serving.info, serving.settings.limits, ids.new("sess"), ids.new("resp")
    )
    serving.check_room(wanted.tier, key=key)
    exchange = Exchange(serving, wanted, key)
    if not asked.stream:
        async with exchange:
            text, end = await while_connected(request, _written(exchange))
        return _answer(asked, audio, serving.info, text, end)
    exchange.open()
    try:
        await while_connected(request, exchange.begun())
    except BaseException:
        exchange.close()
        raise
    events = _events(exchange, has_tokens=not serving.info.has_transcriber)
    return ExchangeResponse(exchange, events, EVENT_STREAM, serving.settings.stall_s)


def _fields(form: FormData) -> TranscriptionRequest:
    fields = fields_of(form, LISTS)
    if "stream" in fields:
        stream = FLAGS.get(fields["stream"].lower())
        if stream is None:
            raise ProtocolError("stream is true or false.", param="stream")
        fields["stream"] = stream
    if "temperature" in fields:
        try:
            fields["temperature"] = float(fields["temperature"])
        except ValueError:
            raise ProtocolError(
                "temperature is a number.", code="invalid_type", param="temperature"
            ) from None
    return converted(fields, TranscriptionRequest)


async def _audio(form: FormData, serving: Serving, key: int | None) -> tuple[AudioPart, ...]:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise ProtocolError(
            "Missing required parameter: 'file'.", code="missing_required_parameter", param="file"
        )
    data = await file.read()
    check("max_file_bytes", serving.settings.limits.max_file_bytes, len(data))
    try:
        return await serving.decoding.run(key, _decoded, data, serving)
    except ProtocolError as error:
        error.param = "file"
        raise


def _decoded(data: bytes, serving: Serving) -> tuple[AudioPart, ...]:
    return pieces_of(serving.files.audio_file(data), serving.info)


async def _written(exchange: Exchange) -> tuple[str, ResponseEnded]:
    text = ""
    async for piece in exchange:
        if isinstance(piece, TextPiece):
            text += piece.text
        elif isinstance(piece, EndPiece):
            if piece.error is not None:
                raise piece.error
            return text.strip(), piece.end
    raise AssertionError("a reply has an end")


def _answer(
    asked: TranscriptionRequest, audio: Sequence[AudioPart], info: ModelInfo, text: str, end: ResponseEnded
) -> Response:
    if asked.response_format == "text":
        return PlainTextResponse(text)
    seconds = sum(part.num_samples for part in audio) / MODEL_SAMPLE_RATE_HZ
    usage = heard_usage(end.usage, seconds, info)
    if asked.response_format == "json":
        return json_answer(Transcription(text=text, usage=usage))
    # a transcriber that is told no language hears its own, the first
    known = info.languages[0] if info.languages else "unknown"
    language = read_language(asked.language, info, "language") or known
    return json_answer(
        Transcription(text=text, usage=usage, task="transcribe", language=language, duration=seconds)
    )


async def _events(exchange: Exchange, *, has_tokens: bool) -> AsyncIterator[bytes]:
    text = ""
    async for piece in exchange:
        match piece:
            case TextPiece():
                delta = piece.text if text else piece.text.lstrip()
                text += delta
                if delta:
                    yield sse(TranscriptDelta(delta=delta))
            case EndPiece(error=AntiphonError() as error):
                yield error_event(error)
            case EndPiece():
                usage = transcript_usage(piece.end.usage) if has_tokens else UNSET
                yield sse(TranscriptDone(text=text, usage=usage))
            case _:
                pass
