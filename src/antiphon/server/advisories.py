"""POST /v1/advisories: the next turn of an open realtime session is coming."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from antiphon.core.errors import ProtocolError, SessionGone, Throttled
from antiphon.server.admission import check_key
from antiphon.server.bodies import MAX_NOTE_BYTES, read_body, typed
from antiphon.server.http import Admitted, json_answer
from antiphon.server.openapi import STATUSES, answers, json_body
from antiphon.server.realtime import ADVISORY_WAIT_S
from antiphon.wire.advisories import AdvisoryAnswer, AdvisoryRequest, pending, told
from antiphon.wire.errors import shown

router = APIRouter()


@router.post(
    "/v1/advisories",
    summary="Say that a session's next turn is coming",
    openapi_extra=json_body(AdvisoryRequest),
    status_code=202,
    responses=answers(AdvisoryAnswer, errors=tuple(STATUSES), status=202),
)
async def advisories(request: Request, serving: Admitted) -> Response:
    body = await read_body(request, serving.settings, MAX_NOTE_BYTES)
    asked = await typed(body, AdvisoryRequest)
    session = serving.sessions.get(asked.session_id)
    if session is None or serving.key_of(asked.session_id) != check_key(request, serving.settings.api_keys):
        serving.metrics.advisories.labels("unknown").inc()
        raise _unknown(asked)
    try:
        answer = await session.advise(asked)
    except SessionGone:
        raise _unknown(asked) from None
    except Throttled:
        serving.metrics.advisories.labels("throttled").inc()
        raise
    if answer is None:
        return json_answer(pending(asked.session_id, asked.prepare, ADVISORY_WAIT_S), 202)
    return json_answer(told(answer), 202)


def _unknown(asked: AdvisoryRequest) -> ProtocolError:
    """Of a session that is not there or belongs to another key: the words do not tell which."""
    return ProtocolError(
        f"No session {shown(asked.session_id)} is open under this API key.",
        code="session_not_found",
        param="session_id",
    )
