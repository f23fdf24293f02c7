"""How a session's turns begin and end: what clients ask for, checked, and the object echoed to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from antiphon.core.errors import ProtocolError
from antiphon.wire.client_events import Strict
from antiphon.wire.effects import Payload
from antiphon.wire.errors import shown
from antiphon.wire.parsing import converted

Kind = Literal["server_vad", "semantic_vad"]
Eagerness = Literal["low", "medium", "high", "auto"]

KINDS: tuple[Kind, ...] = ("server_vad", "semantic_vad")
MAX_MS = 60_000


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """One turn detector; a session without one (null) commits manually.

    threshold            speech probability, 0 to 1, from which it counts as speech
    prefix_padding_ms    audio before the detected start that belongs to the turn
    silence_duration_ms  silence that ends a turn
    idle_timeout_ms      silence after a reply was heard, after which the server asks again; None: never
    eagerness            of semantic_vad: how soon it takes a pause for the end
    create_response      a turn that ends asks for a reply
    interrupt_response   a turn that begins ends the reply that is being heard
    min_speech_ms        a shorter voice over a reply does not stop it: an extension, 0 in stock clients
    """

    kind: Kind = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    eagerness: Eagerness = "auto"
    create_response: bool = True
    interrupt_response: bool = True
    min_speech_ms: int = 0

    def payload(self) -> Payload:
        """As clients read it: each kind shows its own fields, and the extension only where it is used."""
        shown_always = {
            "create_response": self.create_response,
            "interrupt_response": self.interrupt_response,
        }
        extension = {"min_speech_ms": self.min_speech_ms} if self.min_speech_ms else {}
        if self.kind == "semantic_vad":
            return {"type": self.kind, "eagerness": self.eagerness, **shown_always, **extension}
        return {
            "type": self.kind,
            "threshold": self.threshold,
            "prefix_padding_ms": self.prefix_padding_ms,
            "silence_duration_ms": self.silence_duration_ms,
            "idle_timeout_ms": self.idle_timeout_ms,
            **shown_always,
            **extension,
        }


class _Common(Strict, frozen=True, kw_only=True):
    """What both kinds may say. Null means the default, as absent does."""

    create_response: bool | None = None
    interrupt_response: bool | None = None
    min_speech_ms: int | None = None


class ServerVadPatch(_Common, frozen=True, kw_only=True, tag="server_vad"):
    """`turn_detection` of type server_vad."""

    threshold: float | None = None
    prefix_padding_ms: int | None = None
    silence_duration_ms: int | None = None
    idle_timeout_ms: int | None = None


class SemanticVadPatch(_Common, frozen=True, kw_only=True, tag="semantic_vad"):
    """`turn_detection` of type semantic_vad."""

    eagerness: Eagerness | None = None


RANGES: dict[str, tuple[float, float]] = {
    "threshold": (0.0, 1.0),
    "prefix_padding_ms": (0, MAX_MS),
    "silence_duration_ms": (0, MAX_MS),
    "idle_timeout_ms": (5000, 30_000),
    "min_speech_ms": (0, MAX_MS),
}


def read_turn_detection(value: Any, at: str) -> TurnDetection | None:
    """The detector that a client's object asks for; None for null. An object replaces the one before it:
    fields left out are defaults. Raises ProtocolError naming the field under the path `at`."""
    if value is None:
        return None
    kind = _kind(value, at)
    patch = converted(value, SemanticVadPatch if kind == "semantic_vad" else ServerVadPatch, at)
    given = {name: asked for name, asked in msgspec.structs.asdict(patch).items() if asked is not None}
    for name, (least, most) in RANGES.items():
        if name in given and not least <= given[name] <= most:
            raise ProtocolError(
                f"{name} is {least:g} to {most:g}; got {shown(given[name])}.", param=f"{at}.{name}"
            )
    return TurnDetection(kind=kind, **given)


def _kind(value: Any, at: str) -> Kind:
    asked = (
        msgspec.convert(value, dict[str, Any]).get("type", "server_vad") if isinstance(value, dict) else None
    )
    for kind in KINDS:
        if kind == asked:
            return kind
    raise ProtocolError(
        f"turn_detection is null (manual) or has the type {' or '.join(KINDS)}; got {shown(asked)}.",
        param=at if asked is None else f"{at}.type",
    )
