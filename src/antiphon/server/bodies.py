"""Request bodies: read under a bound, and typed. Every way to be wrong is an error with code and param."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from fastapi import Request
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from antiphon.core.errors import ProtocolError
from antiphon.server.settings import ServerSettings
from antiphon.wire.limits import MIB, check
from antiphon.wire.parsing import converted, decode_json

T = TypeVar("T")

MAX_FIELDS = 32
MAX_TEXT_BODY_BYTES = 16 * MIB
"""Of JSON that carries no media."""
MAX_NOTE_BYTES = 4096
"""Of a few words about what is open already."""
LONG_BODY_BYTES = 32 << 10
"""A body that is longer is parsed beside the event loop."""


class ClientGone(ProtocolError):
    """Nobody waits for the answer any more."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="client_gone")


async def read_body(request: Request, settings: ServerSettings, most_bytes: int | None = None) -> bytes:
    """The whole body. Raises LimitExceeded as soon as it is too long, by its header or in fact; `most_bytes`
    is a bound below that of all requests. Raises ClientGone where the client leaves before its end, and
    ProtocolError where it sends nothing for `stall_s`."""
    bound = settings.limits.max_body_bytes
    bound = bound if most_bytes is None else min(most_bytes, bound)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal():
        check("max_body_bytes", bound, int(announced))
    pieces, num_bytes = [], 0
    try:
        async for piece in _pieces(request, settings.stall_s):
            num_bytes += len(piece)
            check("max_body_bytes", bound, num_bytes)
            pieces.append(piece)
    except ClientDisconnect:
        raise ClientGone("The client left before its request was here.") from None
    return b"".join(pieces)


async def _pieces(request: Request, stall_s: float) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(stall_s):
                piece = await anext(stream, None)
        except TimeoutError:
            raise ProtocolError(
                f"Nothing of the request's body came for {stall_s:g} s; send it without such a pause.",
                code="request_timeout",
            ) from None
        if piece is None:
            return
        yield piece


async def typed(body: bytes, target: type[T]) -> T:
    """A JSON body as a type."""
    if len(body) > LONG_BODY_BYTES:
        return await asyncio.to_thread(_typed, body, target)
    return _typed(body, target)


def _typed(body: bytes, target: type[T]) -> T:
    return converted(decode_json(body, "body"), target)


async def read_form(request: Request, body: bytes) -> FormData:
    """A multipart body with at most one file."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ProtocolError("The body has to be multipart/form-data.", code="invalid_content_type")

    async def stream() -> AsyncIterator[bytes]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=MAX_FIELDS)  # pyright: ignore
    try:
        return await parser.parse()
    except (MultiPartException, KeyError, UnicodeError, ValueError) as error:
        text = getattr(error, "message", str(error))
        raise ProtocolError(f"The multipart body is broken: {text}", code="invalid_form") from None


def fields_of(form: FormData, repeated: tuple[str, ...] = ()) -> dict[str, Any]:
    """The form's text fields. Those named in `repeated` are lists, written `name` or `name[]`."""
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        plain = name.removesuffix("[]")
        if not isinstance(value, str):
            continue
        if plain in repeated:
            fields.setdefault(plain, []).append(value)
        else:
            fields[name] = value
    return fields
