"""What a session wants done: an event for the client, or a fact for the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from antiphon.core.facts import PersonFact

Payload = dict[str, Any]
"""A JSON object as it goes over the wire."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """Send this to the client, as one text frame."""

    payload: Payload


@dataclass(frozen=True, slots=True)
class ToEngine:
    """Send this fact to the engine."""

    fact: PersonFact


Effect = ServerEvent | ToEngine
Step = Payload | PersonFact
"""What the parts of a session say happened: an event without its id, or a fact."""
