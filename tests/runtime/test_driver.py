"""The driver's clock: it asks the node again when the node said so, or when something happens."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from antiphon import Omni
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import (
    CopyDone,
    ItemAdded,
    PromptFailed,
    PromptReady,
    ResponseRequested,
    SessionOpened,
    SpeechStarted,
)
from antiphon.core.plans import ArStep, CopyBlocks, RenderPrompt
from antiphon.metrics.names import Metric
from antiphon.runtime.driver import Driver
from antiphon.runtime.omni import parts_of
from antiphon.runtime.record import RecordWriter, read_record, replay
from exactness.rig import regrouped
from exactness.talk import Talk


def test_waits_as_long_as_the_node_says(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    driver = Driver(Omni(tiny_checkpoint, device="cpu").engine, lambda outputs: None, clock=lambda: now)
    assert not driver.advance([])
    assert driver.idle_s(0.5) == 0.5
    decide = driver.node.decide
    wake_ats = iter([100.2, 107.0, 99.0, None])

    def waits(facts: object, at: float) -> object:
        return msgspec.structs.replace(decide(facts, at), wake_at=next(wake_ats))

    monkeypatch.setattr(driver.node, "decide", waits)
    for expected in (pytest.approx(0.2), 0.5, 0.0, 0.5):
        assert not driver.advance([SpeechStarted("nobody")])
        assert driver.idle_s(0.5) == expected


def test_the_node_is_asked_and_recorded_when_there_are_facts_and_when_it_wished_to_be(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked_at = [100.0], []
    engine = Omni(tiny_checkpoint, device="cpu").engine
    writer = RecordWriter(tmp_path / "record", engine.node, engine.depth)
    driver = Driver(engine, lambda outputs: None, clock=lambda: clock[0], recorder=writer)
    decide = driver.node.decide

    def wishes(facts: object, at: float) -> object:
        asked_at.append(at)
        return msgspec.structs.replace(decide(facts, at), wake_at=103.0 if at < 103.0 else None)

    monkeypatch.setattr(driver.node, "decide", wishes)
    spoke = SpeechStarted("nobody")
    for clock[0], facts in ((100.0, []), (101.0, [spoke]), (102.0, []), (103.0, []), (104.0, [])):
        driver.advance(facts)
    assert asked_at == [101.0, 103.0]
    writer.close()
    assert [(entry.now, len(entry.facts)) for entry in read_record(tmp_path / "record")[1]] == [
        (101.0, 1),
        (103.0, 0),
    ]


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


def test_a_prompter_that_breaks_ends_one_request(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk(Omni(tiny_checkpoint, device="cpu").engine)
    render, prompter = talk.engine.prompter.render, talk.engine.prompter

    def breaks(order: RenderPrompt) -> PromptReady | PromptFailed:
        if order.items[0].id == "bad":
            raise RecursionError("too deep")
        return render(order)

    monkeypatch.setattr(prompter, "render", breaks)
    for name in ("bad", "good"):
        talk.open(name)
        talk.add(name, Item(name, "user", (TextPart("hello"),)))
        talk.ask(name, name, max_tokens=4, speech=False)
    talk.run()
    broken = talk.said["bad"].end
    assert broken is not None
    assert (broken.status, broken.reason) == ("failed", "internal_error")
    assert broken.message.endswith("RecursionError.")
    assert "could not be made" in caplog.text
    assert len(talk.said["good"].text) == 4


@pytest.mark.parametrize("depth", [0, 1])
def test_wait_ends_at_the_nodes_time(tiny_checkpoint: Path, depth: int) -> None:
    """Long before the most it may wait."""
    driver = Omni(tiny_checkpoint, device="cpu", depth=depth).driver
    assert not driver.advance([])
    driver.wake_at = time.monotonic() + 0.02
    began = time.monotonic()
    driver.wait(60.0)
    assert 0.01 < time.monotonic() - began < 30.0


def test_copies_are_carried_out_reported_and_recorded(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Three people who do not fit on the device together, and the first comes back."""
    engine = regrouped(Omni(tiny_checkpoint, device="cpu").engine, 2, host_blocks=40)
    ar = {name: msgspec.structs.replace(config, num_blocks=9) for name, config in engine.node.ar.items()}
    engine = replace(engine, node=msgspec.structs.replace(engine.node, ar=ar))
    writer = RecordWriter(tmp_path / "a.record", engine.node, engine.depth)
    talk = Talk(engine, recorder=writer)
    for session in ("a", "b", "c", "a"):
        name = f"{session}{len(talk.said)}"
        question = Item(name, "user", parts_of(f"{session} says hello world " * 7))
        talk.open(session)
        talk.add(session, question)
        talk.ask(session, name, max_tokens=4, speech=False)
        talk.run()
        assert talk.said[name].end.status == "incomplete"
    writer.close()
    entries = list(read_record(tmp_path / "a.record")[1])
    orders = [order for entry in entries for order in entry.decision.orders if isinstance(order, CopyBlocks)]
    facts = [fact for entry in entries for fact in entry.facts if isinstance(fact, CopyDone)]
    assert [fact.ticket for fact in facts] == [order.ticket for order in orders]
    assert {order.to for order in orders} == {"host", "device"}
    assert {order.group for order in orders} == set(engine.executors["thinker"].runner.pool.groups)
    steps = [order for entry in entries for order in entry.decision.orders if isinstance(order, ArStep)]
    waited = {ticket for step in steps for ticket in step.tickets}
    assert waited <= {order.ticket for order in orders if order.to == "device"}
    count, differences = replay(tmp_path / "a.record")
    assert count == len(entries)
    assert not differences
