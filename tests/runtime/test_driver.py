"""The driver's clock: it asks the node again when the node said so, or when something happens."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from antiphon import Omni
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened
from antiphon.metrics.names import Metric
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


def test_again_at_once_after_orders_and_at_a_steps_end_after_that(tiny_checkpoint: Path) -> None:
    omni = Omni(tiny_checkpoint, device="cpu", depth=1)
    driver = omni.driver
    spec = ResponseRequested("s", "s", "reply", speech=False)
    text = Item("q", "user", (TextPart("hello"),))
    assert driver.advance([SessionOpened("s"), ItemAdded("s", text), spec])
    assert driver.idle_s(9.0) == 0.0, "a prompt was ordered, and what it brings is here"
    waits = 0
    while driver.advance([]):
        if driver.idle_s(9.0):
            waits += 1
            assert driver.node.num_in_flight
            driver.wait(9.0)
    assert waits
    stats = driver.stats()
    assert stats[Metric.STEPS.of("thinker")] >= stats[Metric.EMITTED.of("thinker")] > 0
    assert stats[Metric.STEP_SECONDS.of("thinker")] > 0


@pytest.mark.parametrize("depth", [0, 1])
def test_wait_ends_at_the_nodes_time(tiny_checkpoint: Path, depth: int) -> None:
    """Long before the most it may wait."""
    driver = Omni(tiny_checkpoint, device="cpu", depth=depth).driver
    assert not driver.advance([])
    driver.wake_at = time.monotonic() + 0.02
    began = time.monotonic()
    driver.wait(60.0)
    assert 0.01 < time.monotonic() - began < 30.0
