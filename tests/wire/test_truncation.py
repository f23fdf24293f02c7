"""`session.truncation`: what is asked for reaches the engine as a share of the context."""

from __future__ import annotations

from typing import Any

import pytest

from wire.harness import Driver, kinds


@pytest.mark.parametrize(
    ("asked", "retention"),
    [
        ("auto", 0.8),
        (None, 0.8),
        ("disabled", None),
        ({"type": "retention_ratio", "retention_ratio": 0.5}, 0.5),
        ({"type": "retention_ratio", "retention_ratio": 1.0}, 1.0),
    ],
)
def test_what_is_asked_for_reaches_the_engine(asked: Any, retention: float | None) -> None:
    driver = Driver()
    (event,) = driver.send("session.update", session={"type": "realtime", "truncation": asked})
    assert event["session"]["truncation"] == (asked or "auto")
    assert kinds(driver.send("session.update", session={"type": "realtime"})) == ["session.updated"]
    driver.ask()
    assert driver.request.retention == retention


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ("sometimes", "session.truncation"),
        ({"type": "ratio", "retention_ratio": 0.5}, "session.truncation"),
        ({"type": "retention_ratio"}, "session.truncation.retention_ratio"),
        ({"type": "retention_ratio", "retention_ratio": 0}, "session.truncation.retention_ratio"),
        ({"type": "retention_ratio", "retention_ratio": 1.5}, "session.truncation.retention_ratio"),
        (
            {"type": "retention_ratio", "retention_ratio": 0.5, "token_limits": {"post_instructions": 9}},
            "session.truncation.token_limits",
        ),
    ],
)
def test_what_is_refused(asked: Any, param: str) -> None:
    refused = Driver().error("session.update", session={"type": "realtime", "truncation": asked})
    assert refused["param"] == param
