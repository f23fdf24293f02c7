"""The driver's clock: it asks the node again when the node said so, or when something happens."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from antiphon import Omni
from antiphon.core.conversation import Item
from antiphon.core.facts import CopyDone, CopyFailed, Fact
from antiphon.core.plans import CopyBlocks, Decision, Order, ints
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
