"""A person who speaks to a session, and what the conversation shows of the replies."""

from __future__ import annotations

from typing import Any

from antiphon.core.facts import (
    ResponseRequested,
)
from wire.harness import Driver

VOICE, QUIET = 90, 5
TURN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
    "response.created",
]
CANCELLED = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


def replying(driver: Driver, text: str = "one two three four", audio_s: float = 4.0) -> str:
    """A spoken turn, and its reply under way; the response's id."""
    response = driver.hear((VOICE, 0.5), (QUIET, 0.6))[-1]["response"]["id"]
    driver.tokens(response, text + ".")
    driver.audio(response, audio_s)
    return response


def item_of(driver: Driver, response: str) -> dict[str, Any]:
    asked = [fact for fact in driver.facts if isinstance(fact, ResponseRequested)]
    item_id = next(fact.item_id for fact in asked if fact.response == response)
    return driver.send("conversation.item.retrieve", item_id=item_id)[0]["item"]


def shown(driver: Driver, response: str) -> str:
    return item_of(driver, response)["content"][0]["transcript"]
