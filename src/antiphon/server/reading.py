"""POST /v1/reading: how far the reader of a streamed text is."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from antiphon.core.errors import ProtocolError
from antiphon.core.facts import PlaybackReported
from antiphon.server.admission import check_key
from antiphon.server.bodies import MAX_NOTE_BYTES, read_body, typed
from antiphon.server.http import Admitted, json_answer
from antiphon.server.openapi import STATUSES, answers, json_body
from antiphon.wire.errors import shown
from antiphon.wire.reading import ReadingAnswer, ReadingReport

router = APIRouter()


@router.post(
    "/v1/reading",
    summary="Say how far a streamed text has been read",
    openapi_extra=json_body(ReadingReport),
    responses=answers(ReadingAnswer, errors=tuple(STATUSES)),
)
async def reading(request: Request, serving: Admitted) -> Response:
    body = await read_body(request, serving.settings, MAX_NOTE_BYTES)
    report = await typed(body, ReadingReport)
    key = check_key(request, serving.settings.api_keys)
    stream = serving.readers.get(report.completion_id)
    engine = serving.engine
    if stream is None or engine is None or (stream.session, key) not in serving.keys.items():
        # the same words for one that is not there and for one of another key
        raise ProtocolError(
            f"No text {shown(report.completion_id)} with a reader's rate is streamed under this API key.",
            code="completion_not_found",
            param="completion_id",
        )
    told_s = stream.reported(report.read_chars)
    if told_s is not None:
        engine.send(PlaybackReported(stream.session, stream.response, told_s))
    reader = stream.reader
    return json_answer(ReadingAnswer(report.completion_id, reader.read_chars, reader.sent_chars))
