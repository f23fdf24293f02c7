"""The web application, put together."""

from __future__ import annotations

import logging
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Scope

from antiphon.core.engine_client import EngineClient
from antiphon.core.errors import AntiphonError, ProtocolError
from antiphon.server import console_feed, http, realtime
from antiphon.server.admission import http_error
from antiphon.server.detokenise import detokenisers_of
from antiphon.server.feed import Feed
from antiphon.server.serving import Serving
from antiphon.server.settings import ServerSettings
from antiphon.wire.ports import DetokeniserFactory

logger = logging.getLogger("antiphon.server")

CONSOLE = Path(__file__).parent / "console"
CONSOLE_POLICY = (
    "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:; frame-ancestors 'none'"
)


class Console(StaticFiles):
    """The console's pages: nothing foreign runs in them, and an upgrade is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
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
    app = FastAPI(title="Antiphon", docs_url=None, redoc_url=None, openapi_url=None)
    serving = app.state.serving = Serving(settings or ServerSettings())
    app.state.drain = serving.drain
    app.state.feed = Feed(lambda: serving.engine)
    if engine is not None:
        attach_engine(app, engine, detokenisers)
    app.include_router(http.router)
    app.include_router(realtime.router)
    app.include_router(console_feed.router)
    app.mount("/", Console(directory=CONSOLE, html=True), name="console")
    app.add_exception_handler(AntiphonError, _antiphon_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(Exception, _mistake)
    return app


def attach_engine(app: FastAPI, engine: EngineClient, detokenisers: DetokeniserFactory | None = None) -> None:
    """The model is loaded: from here on sessions are welcome."""
    app.state.serving.attach_engine(engine, detokenisers or detokenisers_of(Path(engine.info.path)))


async def _antiphon_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AntiphonError)
    return http_error(error)


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "http_error"
    answer = http_error(
        ProtocolError(f"{request.method} {request.url.path}: {error.detail}.", code=code), error.status_code
    )
    answer.headers.update(error.headers or {})
    return answer


async def _invalid_request(request: Request, error: Exception) -> Response:
    return http_error(ProtocolError(f"The request is not valid: {error}"), 422)


async def _mistake(request: Request, error: Exception) -> Response:
    logger.error("%s %s met a mistake of ours", request.method, request.url.path, exc_info=error)
    return http_error(AntiphonError("The server made a mistake."), 500)
