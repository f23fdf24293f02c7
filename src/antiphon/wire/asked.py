"""`response.create`, read: what the client asks for over the session's settings."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core.errors import ProtocolError
from antiphon.wire.client_events import ResponseParams
from antiphon.wire.config import Scope, SessionConfig, overridden, with_output
from antiphon.wire.content import ItemReader, NewItem
from antiphon.wire.errors import shown
from antiphon.wire.limits import check

MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512


@dataclass(frozen=True, slots=True)
class Asked:
    """One response as asked for. `items` replaces the conversation as input."""

    config: SessionConfig
    remember: bool
    items: tuple[NewItem, ...] | None
    metadata: dict[str, str] | None


def read_response(params: ResponseParams, session: SessionConfig, scope: Scope, reader: ItemReader) -> Asked:
    """Check everything and decode inline input; raises before anything changes."""
    if params.conversation not in (None, "auto", "none"):
        raise ProtocolError(
            f"conversation is 'auto' or 'none'; got {shown(params.conversation)}.",
            param="response.conversation",
        )
    config = overridden(session, params, scope, session, "response")
    output = params.audio.output if params.audio else None
    config = with_output(config, output, session, "response")
    _check_metadata(params.metadata)
    items = None if params.input is None else _read_input(params.input, scope, reader)
    return Asked(config, params.conversation != "none", items, params.metadata)


def _read_input(raw: list[dict[str, object]], scope: Scope, reader: ItemReader) -> tuple[NewItem, ...]:
    check("max_parts", scope.limits.max_parts, len(raw), "response.input has too many items")
    places = [f"response.input[{index}]" for index in range(len(raw))]
    messages = [reader.message(item, at) for item, at in zip(raw, places, strict=True)]
    return tuple(reader.item(message, at) for message, at in zip(messages, places, strict=True))


def _check_metadata(metadata: dict[str, str] | None) -> None:
    pairs = metadata or {}
    check("max_metadata_pairs", MAX_METADATA_PAIRS, len(pairs))
    check("max_metadata_key_chars", MAX_METADATA_KEY_CHARS, max(map(len, pairs.keys()), default=0))
    check("max_metadata_value_chars", MAX_METADATA_VALUE_CHARS, max(map(len, pairs.values()), default=0))
