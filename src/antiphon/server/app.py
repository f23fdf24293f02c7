"""The web application, put together."""

from __future__ import annotations

import logging
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from antiphon.core.errors import AntiphonError, ProtocolError
from antiphon.engine.heap import give_back
from antiphon.models.detokenise import detokenisers_of
from antiphon.runtime.engine_client import EngineClient
from antiphon.server import (
    advisories,
    chat,
    completions,
    console_feed,
    http,
    reading,
    realtime,
    speech,
    transcriptions,
)
from antiphon.server.admission import http_error
from antiphon.server.feed import Feed
from antiphon.server.openapi import describe
from antiphon.server.serving import Serving
from antiphon.server.settings import ServerSettings
from antiphon.wire.ports import DetokeniserFactory

ROUTERS = tuple(
    room.router
    for room in (
        *(http, chat, completions, speech, transcriptions),
        *(advisories, reading, realtime, console_feed),
    )
)
logger = logging.getLogger("antiphon.server")

CONSOLE = Path(__file__).parent / "console"
CONSOLE_METHODS = ("GET", "HEAD")
CONSOLE_POLICY = (
    "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:; frame-ancestors 'none'"
)


class Console(StaticFiles):
    """The console's pages: nothing foreign runs in them, and an upgrade is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, {**scope, "method": "GET"})  # 404 before 405
        if scope["method"] not in CONSOLE_METHODS:
            raise HTTPException(405, headers={"allow": ", ".join(CONSOLE_METHODS)})
        response.headers["Content-Security-Policy"] = CONSOLE_POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Cache-Control"] = "no-cache"
        return response


def create_app(
    engine: EngineClient | None = None,
    *,
    detokenisers: DetokeniserFactory | None = None,
    settings: ServerSettings | None = None,
) -> FastAPI:
    """The app over an engine. Without one it starts as "loading"; `attach_engine` makes it ready.

    `detokenisers` default to the checkpoint's own tokenizer. `app.state.drain()` ends service gently.
    """
    app = FastAPI(title="Antiphon", version=version("antiphon"), docs_url=None, redoc_url=None)
    app.openapi = lambda: describe(app)
    serving = app.state.serving = Serving(settings or ServerSettings())
    app.state.drain = serving.drain
    app.state.feed = Feed(lambda: serving.engine)
    if engine is not None:
        attach_engine(app, engine, detokenisers)
    for router in ROUTERS:
        app.include_router(router)
    if settings is not None and settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.mount("/", Console(directory=CONSOLE, html=True), name="console")
    app.add_exception_handler(AntiphonError, _antiphon_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(Exception, _mistake)
    return app


def attach_engine(app: FastAPI, engine: EngineClient, detokenisers: DetokeniserFactory | None = None) -> None:
    """The model is loaded: from here on sessions are welcome."""
    hears = engine.info.transcriber_path
    app.state.serving.attach_engine(
        engine,
        detokenisers or detokenisers_of(Path(engine.info.path)),
        detokenisers_of(Path(hears)) if hears else None,
    )
    give_back()  # what the tokenizers were read through


async def _antiphon_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AntiphonError)
    serving: Serving = request.app.state.serving
    serving.metrics.refuse(error)
    return http_error(error)


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    called, headers = f"{request.method} {request.url.path}", dict(error.headers or {})
    status, code, why = error.status_code, "http_error", error.detail
    if status == 404:
        code, why = "not_found", "there is no such route; /openapi.json lists those that there are"
    if status in (404, 405) and (methods := ", ".join(_methods(request)) or headers.get("allow", "")):
        status, code, why = 405, "method_not_allowed", f"this method is not allowed, {methods} is"
        headers["allow"] = methods
    answer = http_error(ProtocolError(f"{called}: {why}.", code=code), status)
    answer.headers.update(headers)
    return answer


def _methods(request: Request) -> list[str]:
    """Those of the path's route, where the request's own is none of them: the console, mounted at the root,
    takes every path that no route takes whole."""
    routes = (each for router in ROUTERS for each in router.routes if isinstance(each, APIRoute))
    found = (each.methods for each in routes if each.matches(request.scope)[0] is Match.PARTIAL)
    return sorted({method for methods in found for method in methods or ()})


async def _invalid_request(request: Request, error: Exception) -> Response:
    return http_error(ProtocolError(f"The request is not valid: {error}"), 422)


async def _mistake(request: Request, error: Exception) -> Response:
    logger.error("%s %s met a mistake of ours", request.method, request.url.path, exc_info=error)
    return http_error(AntiphonError("The server made a mistake."), 500)
