"""Broken policies on an engine: every reply is whole, and the operator hears of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from antiphon import Omni, Request
from antiphon.assembly.node import Node
from antiphon.core.errors import ConfigError
from antiphon.core.facts import Fact, PolicySuspended, SpeechStarted
from antiphon.core.plans import Decision
from antiphon.metrics.names import Metric
from antiphon.runtime import driver as driving
from antiphon.runtime.omni import Reply
from antiphon.runtime.record import RecordWriter, read_record, replay
from antiphon.runtime.stuck import StuckWatch
from assembly.test_guard import preset_with

REQUESTS = [Request("hello world, how are you?", max_tokens=12), Request("one", max_tokens=8)]
FIVE = ("Raising", "NotANumber", "Twice", "NeverWaking", "Slow")


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: Path) -> list[Reply]:
    return Omni(tiny_checkpoint, device="cpu").generate(REQUESTS)


@pytest.mark.parametrize("policy", FIVE)
def test_a_broken_policy_costs_nobody_a_reply(
    policy: str,
    tiny_checkpoint: Path,
    expected: list[Reply],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    preset = preset_with(tmp_path, policy)
    omni = Omni(tiny_checkpoint, preset=preset, device="cpu")
    writer = omni.driver.recorder = RecordWriter(tmp_path / "rec", omni.engine.node, omni.engine.depth)
    with caplog.at_level(logging.WARNING):
        said = omni.generate(REQUESTS)
    writer.close()
    for mine, right in zip(said, expected, strict=True):
        assert mine.text == right.text
        assert mine.status == right.status
        assert np.array_equal(mine.audio, right.audio)
    counted = {key: count for key, count in omni.driver.stats().items() if key.startswith(Metric.POLICY)}
    event = "slow" if policy == "Slow" else "nonsense" if policy != "Raising" else "raised"
    assert any(f'policy="{policy}",event="{event}"' in key for key in counted)
    assert f"policy {policy} (" in caplog.text
    assert replay(tmp_path / "rec", preset)[1] == []
    suspended = [
        fact
        for entry in read_record(tmp_path / "rec")[1]
        for fact in entry.facts
        if isinstance(fact, PolicySuspended)
    ]
    assert bool(suspended) == (policy == "Slow"), "a suspension is a fact, so that it replays"


def test_a_preset_is_checked_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no preset 'basline'; did you mean baseline\?"):
        Omni(tmp_path / "no model at all", preset="basline")


def test_a_decision_that_does_not_return_is_told(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "STUCK_S", 0.05)
    monkeypatch.setattr("antiphon.runtime.stuck.LOOK_EVERY_S", 0.01)
    driver = Omni(tiny_checkpoint, device="cpu").driver
    decide, goes_on, said = Node.decide, threading.Event(), []

    def hangs(self: Node, facts: Iterable[Fact], now: float) -> Decision:
        self.guard.asking = self.guard._watched[0]
        assert goes_on.wait(20)
        self.guard.asking = None
        return decide(self, facts, now)

    monkeypatch.setattr(Node, "decide", hangs)
    assert driver.why_stuck() == ""
    with StuckWatch(driver.why_stuck, said.append):
        thread = threading.Thread(target=driver.advance, args=([SpeechStarted("nobody")],))
        thread.start()
        until = time.monotonic() + 10
        while not any(said) and time.monotonic() < until:
            time.sleep(0.01)
        goes_on.set()
        thread.join()
        while said[-1] and time.monotonic() < until:
            time.sleep(0.01)
    first = next(filter(None, said))
    assert first.startswith("The engine has been deciding for 0 s: the policy ")
    assert first.endswith("does not answer.")
    assert said[-1] == ""
