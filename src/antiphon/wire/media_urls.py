"""Media by URL: what is inline, what has to be fetched, and what is never touched."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from urllib.parse import unquote_to_bytes

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.wire.chat import (
    AudioUrlPartIn,
    ChatRequest,
    ImagePartIn,
    TextPartIn,
    UserMessage,
    UserPart,
    VideoPartIn,
    VideoUrlPartIn,
)
from antiphon.wire.errors import shown

REMOTE = ("http://", "https://")


def media_of(request: ChatRequest) -> Iterator[tuple[UserPart, str]]:
    """Parts that are no text, and where each is."""
    for at, message in enumerate(request.messages):
        if isinstance(message, UserMessage) and not isinstance(message.content, str):
            for index, part in enumerate(message.content):
                if not isinstance(part, TextPartIn):
                    yield part, f"messages[{at}].content[{index}]"


def remote_urls(request: ChatRequest) -> dict[str, str]:
    """Every http(s) URL that a request names, and where it does so first."""
    places: dict[str, str] = {}
    for part, at in media_of(request):
        for url in filter(is_remote, urls_of(part)):
            places.setdefault(url, at)
    return places


def has_media(request: ChatRequest) -> bool:
    """Is there anything but text to be decoded?"""
    return next(media_of(request), None) is not None


def urls_of(part: UserPart) -> list[str]:
    """The URLs of one part."""
    match part:
        case ImagePartIn():
            return [part.image_url.url]
        case AudioUrlPartIn():
            return [part.audio_url.url]
        case VideoUrlPartIn():
            return [part.video_url.url]
        case VideoPartIn():
            return part.video
        case _:
            return []


def is_remote(url: str) -> bool:
    return url.lower().startswith(REMOTE)


def bytes_of(url: str, fetched: Mapping[str, bytes], max_bytes: int, at: str) -> bytes:
    """What a URL holds: of a data: URL itself, of a remote one what was fetched for it."""
    if url in fetched:
        return fetched[url]
    if not url.lower().startswith("data:"):
        raise ProtocolError(
            f"A media URL is a data: URL, or http(s) to a host that the operator allows; got {shown(url)}.",
            param=at,
        )
    head, comma, body = url.partition(",")
    if not comma:
        raise ProtocolError("The data: URL has no comma and so no data.", param=at)
    if not head.lower().endswith(";base64"):
        return _bounded(unquote_to_bytes(body), max_bytes)
    if len(body) * 3 // 4 > max_bytes + 2:
        raise LimitExceeded("max_file_bytes", max_bytes, len(body) * 3 // 4)
    try:
        return _bounded(base64.b64decode(body, validate=True), max_bytes)
    except (binascii.Error, ValueError):
        raise ProtocolError("The data: URL does not hold valid base64.", param=at) from None


def _bounded(data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise LimitExceeded("max_file_bytes", max_bytes, len(data))
    return data
