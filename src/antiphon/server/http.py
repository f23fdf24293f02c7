"""Plain HTTP: models, health, readiness, metrics."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from antiphon.core.errors import Overloaded
from antiphon.server.admission import check_key, check_model, check_origin, http_error
from antiphon.server.openapi import Model, Models, Status, answers
from antiphon.server.serving import Serving

router = APIRouter()


def serving_of(request: Request) -> Serving:
    return request.app.state.serving


def keyed_serving(request: Request) -> Serving:
    """The server's state, for routes that need a key where keys are set."""
    serving = serving_of(request)
    check_key(request, serving.settings.api_keys)
    return serving


def admitted_serving(request: Request) -> Serving:
    """The server's state, for routes that make the model work. Raises if the key is wrong, the page foreign
    or the model not there."""
    serving = keyed_serving(request)
    check_origin(request, serving.settings.origins)
    serving.check_ready()
    return serving


def json_answer(value: Any, status: int = 200) -> Response:
    """A typed answer as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


Served = Annotated[Serving, Depends(serving_of)]
KeyedServed = Annotated[Serving, Depends(keyed_serving)]
Admitted = Annotated[Serving, Depends(admitted_serving)]


@router.get("/v1/models", responses=answers(Models, errors=(401,)))
async def models(serving: KeyedServed) -> JSONResponse:
    """The one model, as soon as it is loaded."""
    return JSONResponse({"object": "list", "data": [_model(serving)] if serving.engine else []})


@router.get("/v1/models/{name:path}", responses=answers(Model, errors=(401, 404)))
async def model(name: str, serving: KeyedServed) -> JSONResponse:
    check_model(name, serving)
    return JSONResponse(_model(serving))


@router.get("/health", responses={**answers(Status), 503: answers(Status)[200]})
async def health(serving: Served) -> JSONResponse:
    """loading (what), alive, full (of what), strained (live listeners are about to run dry), draining or
    restarting; and which units are lost. With 503 and the reason: dead, or stuck in a decision that does not
    return; then the server has to be restarted."""
    detail = serving.detail()
    found = {"status": serving.condition()} | ({"reason": detail} if detail else {})
    return JSONResponse(found, 503 if serving.why_not_alive() else 200)


@router.get("/ready", responses=answers(Status, errors=(503,)))
async def ready(serving: Served) -> JSONResponse:
    """503 where newcomers should be sent elsewhere: a new session would be refused (loading, draining, dead,
    full, or live listeners are about to run dry), or a unit is lost, without which some replies fail."""
    try:
        serving.check_whole()
    except Overloaded as error:
        return http_error(error)
    return JSONResponse({"status": "ready"})


@router.get("/metrics", responses=answers(None, binary=["text/plain"], errors=(500,)))
async def metrics(serving: Served) -> Response:
    return Response(generate_latest(serving.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _model(serving: Serving) -> dict[str, object]:
    assert serving.engine is not None
    info = serving.engine.info
    return {
        "id": info.name,
        "root": info.name,  # vLLM's load generator reads it where it is told no model
        "object": "model",
        "created": 0,
        "owned_by": "antiphon",
        "voices": list(info.voices),
        "max_context_tokens": info.max_context_tokens,
        "languages": list(info.languages),
        "inputs": ["text", *info.inputs],
        "tools": info.takes_tools,
    }
