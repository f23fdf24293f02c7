"""The driver's clock: it asks the node again when the node said so, or when something happens."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from antiphon import Omni
from antiphon.runtime.driver import Driver


def test_waits_as_long_as_the_node_says(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    driver = Driver(Omni(tiny_checkpoint, device="cpu").engine, lambda output: None, clock=lambda: now)
    assert not driver.advance([])
    assert driver.idle_s(0.5) == 0.5
    decide = driver.node.decide
    wake_ats = iter([100.2, 107.0, 99.0, None])

    def waits(facts: object, at: float) -> object:
        return msgspec.structs.replace(decide(facts, at), wake_at=next(wake_ats))

    monkeypatch.setattr(driver.node, "decide", waits)
    for expected in (pytest.approx(0.2), 0.5, 0.0, 0.5):
        assert not driver.advance([])
        assert driver.idle_s(0.5) == expected
