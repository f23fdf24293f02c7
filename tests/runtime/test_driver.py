"""The driver's clock: it asks the node again when the node said so, or when something happens."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from antiphon import Omni
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import CopyDone, CopyFailed, Fact, ItemAdded, ResponseRequested, SessionOpened
from antiphon.core.plans import CopyBlocks, Decision, Order, ints
from antiphon.metrics.names import Metric
from antiphon.runtime.driver import Driver
from antiphon.runtime.omni import parts_of
from antiphon.runtime.record import RecordWriter, read_record, replay
from exactness.rig import regrouped
from exactness.talk import Talk


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


def test_copies_are_carried_out_reported_and_recorded(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node itself orders none yet: here it is made to, in its third decision."""
    engine = regrouped(Omni(tiny_checkpoint, device="cpu").engine, 2, host_blocks=4)
    group = engine.node.ar["thinker"].layer_groups[1][0]
    writer = RecordWriter(tmp_path / "a.record", engine.node, engine.depth)
    talk = Talk(engine, recorder=writer)
    decide = talk.driver.node.decide
    told: list[Fact] = []
    orders: list[Order] = [
        CopyBlocks("thinker", group, "host", ints([0, 1]), ints([3, 2]), 0),
        CopyBlocks("thinker", group, "host", ints([0]), ints([4]), 1),
    ]
    count = 0

    def copies(facts: list[Fact], now: float) -> Decision:
        nonlocal count
        count += 1
        told.extend(facts)
        decision = decide(facts, now)
        if count != 3:
            return decision
        return msgspec.structs.replace(decision, orders=(*decision.orders, *orders))

    monkeypatch.setattr(talk.driver.node, "decide", copies)
    talk.open("s", Item("q", "user", parts_of("hello world " * 30)))
    talk.ask("s")
    talk.run()
    writer.close()
    done, failed = (fact for fact in told if isinstance(fact, CopyDone | CopyFailed))
    assert done == CopyDone("thinker", 0)
    assert isinstance(failed, CopyFailed)
    pool = engine.executors["thinker"].runner.pool
    device, host = pool.device[group][0][0], pool.host[group][0][0]
    assert host[3].any()
    assert device[:2].flip(0).equal(host[2:])
    entries = list(read_record(tmp_path / "a.record")[1])
    assert [type(order) for order in entries[2].decision.orders[-2:]] == [CopyBlocks, CopyBlocks]
    assert sum(fact == done for entry in entries for fact in entry.facts) == 1
    assert [difference.index for difference in replay(tmp_path / "a.record")[1]] == [2]
