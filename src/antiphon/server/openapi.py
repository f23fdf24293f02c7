"""What /openapi.json says of bodies and answers: the very types that requests are read with."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

REF = "#/components/schemas/{name}"
ERROR = {"$ref": REF.format(name="Error")}
DONE = {"const": "[DONE]"}
STATUSES = {
    400: "The request is wrong, or passes a limit; param names the field, or the limit.",
    401: "The API key is missing or wrong.",
    403: "A page from a foreign origin.",
    404: "The model, or the session, does not exist.",
    408: "The body stopped coming.",
    413: "The body is too large.",
    429: "Asked too often: come back after Retry-After seconds.",
    500: "A stage failed, or the server made a mistake.",
    503: "No room now: come back after Retry-After seconds.",
}

USUAL = (400, 401, 403, 404, 408, 413, 500, 503)
"""What a route that makes the model work may fail with."""

_types: list[Any] = []


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong; clients match on `code`."""

    type: str
    code: str
    message: str
    param: str | None


class Error(msgspec.Struct, frozen=True):
    """Every answer that is no success."""

    error: ErrorBody


class Model(msgspec.Struct, frozen=True):
    """The model that is served; `root` is its id. `languages`: those that its transcriber hears, if any.
    `inputs`: what its prompts may show ("text", "audio", "image"). `tools`: whether they show tools."""

    id: str
    root: str
    object: str
    created: int
    owned_by: str
    voices: list[str]
    max_context_tokens: int
    languages: list[str]
    inputs: list[str]
    tools: bool


class Models(msgspec.Struct, frozen=True):
    """One model, or none while it loads."""

    object: str
    data: list[Model]


class Status(msgspec.Struct, frozen=True):
    """In a word; why, where something is wrong or full; what, while it loads."""

    status: str
    reason: str = ""


def json_body(kind: Any) -> dict[str, Any]:
    """A required JSON body of this type."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema(kind)}}}}


def form_body(kind: type[msgspec.Struct], file: str) -> dict[str, Any]:
    """A multipart body: the type's fields, and one file."""
    (_,), components = msgspec.json.schema_components([kind], ref_template=REF)
    described = components[kind.__name__]
    upload = {"type": "string", "format": "binary"}
    whole = {**described, "properties": {file: upload, **described["properties"]}, "required": [file]}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": whole}}}}


def answers(
    kind: Any,
    *,
    stream: tuple[Any, ...] = (),
    binary: list[str] | tuple[str, ...] = (),
    errors: tuple[int, ...] = USUAL,
    status: int = 200,
) -> dict[int | str, dict[str, Any]]:
    """What a route answers: a JSON type, events of a stream, or bytes; and its errors."""
    content: dict[str, Any] = {name: {"schema": {"type": "string"}} for name in binary}
    if kind is not None:
        content["application/json"] = {"schema": schema(kind)}
    if stream:
        content["text/event-stream"] = {"itemSchema": event((*stream, Error))}
    known: dict[int | str, dict[str, Any]] = {status: {"description": "As asked.", "content": content}}
    for failed in errors:
        known[failed] = {
            "description": STATUSES[failed],
            "content": {"application/json": {"schema": ERROR}},
        }
    for busy in known.keys() & {429, 503}:
        known[busy]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return known


def event(kinds: tuple[Any, ...]) -> dict[str, Any]:
    """One of a stream's events: its data are JSON of one of these types, or the chat's last word."""
    data = {"anyOf": [schema(kind) for kind in kinds]}
    described = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {"type": "object", "required": ["data"], "properties": {"data": {"anyOf": [described, DONE]}}}


def schema(kind: Any) -> dict[str, Any]:
    """A reference to the type, which is put among the components."""
    _types.append(kind)
    (found,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return found


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole document."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, components = msgspec.json.schema_components([*_types, Error], ref_template=REF)
        document.setdefault("components", {}).setdefault("schemas", {}).update(components)
        app.openapi_schema = document
    return app.openapi_schema
