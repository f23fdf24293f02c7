"""`turn_detection`, read and echoed."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.core.errors import ProtocolError
from antiphon.wire.turn_detection import TurnDetection, read_turn_detection

AT = "session.audio.input.turn_detection"


def read(value: Any) -> TurnDetection | None:
    return read_turn_detection(value, AT)


def test_defaults_are_those_of_the_protocol() -> None:
    detection = read({"type": "server_vad"})
    assert detection == TurnDetection()
    assert detection.payload() == {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "idle_timeout_ms": None,
        "create_response": True,
        "interrupt_response": True,
    }
    assert read({}) == detection
    assert read(None) is None


def test_semantic_vad_has_eagerness() -> None:
    detection = read({"type": "semantic_vad", "eagerness": "low", "interrupt_response": False})
    assert detection is not None
    assert detection.payload() == {
        "type": "semantic_vad",
        "eagerness": "low",
        "create_response": True,
        "interrupt_response": False,
    }


@pytest.mark.parametrize(
    "value",
    [
        {"type": "server_vad", "threshold": 1, "silence_duration_ms": 200, "idle_timeout_ms": 6000},
        {"type": "semantic_vad", "create_response": False, "min_speech_ms": 120},
    ],
)
def test_what_is_echoed_may_be_sent_back(value: dict) -> None:
    detection = read(value)
    assert detection is not None
    assert {**detection.payload(), **value} == detection.payload()
    assert read(detection.payload()) == detection


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [
        ("server_vad", "invalid_value", AT),
        ({"type": "none"}, "invalid_value", f"{AT}.type"),
        ({"type": "server_vad", "eagerness": "low"}, "unknown_parameter", f"{AT}.eagerness"),
        ({"type": "semantic_vad", "threshold": 0.5}, "unknown_parameter", f"{AT}.threshold"),
        ({"type": "semantic_vad", "eagerness": "eager"}, "invalid_value", f"{AT}.eagerness"),
        ({"type": "server_vad", "threshold": 1.5}, "invalid_value", f"{AT}.threshold"),
        ({"type": "server_vad", "threshold": "high"}, "invalid_type", f"{AT}.threshold"),
        ({"type": "server_vad", "idle_timeout_ms": 100}, "invalid_value", f"{AT}.idle_timeout_ms"),
        ({"type": "server_vad", "silence_duration_ms": -1}, "invalid_value", f"{AT}.silence_duration_ms"),
    ],
)
def test_refusals_name_the_field(value: Any, code: str, param: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        read(value)
    assert (refused.value.code, refused.value.param) == (code, param)
