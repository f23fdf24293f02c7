"""Nearly valid events by the hundred thousand, with an engine, voices and clocks between them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from antiphon.wire.client_events import EVENTS
from antiphon.wire.session import SessionPhase
from wire.near_valid import WHOLE, near_valid
from wire.test_session_properties import Session

SILENT = {"input_audio_buffer.append", "playback.ack", "antiphon.advise"}
"""What is not answered where it is right."""


class Vandal(Session):
    """All that a session meets in `test_session_properties`, and bursts of what clients get nearly right."""

    num_frames = 0

    @rule(data=st.data(), num=st.sampled_from([4, 16, 32]))
    def vandalise(self, data: st.DataObject, num: int) -> None:
        for _ in range(num):
            self.burst(data.draw(near_valid([*self.items(), *self.responses()])))

    def burst(self, frame: str) -> None:
        """One frame; where it is refused, the refusal is its only answer and names the client's own id."""
        Vandal.num_frames += 1
        facts = len(self.driver.facts)
        answers = self.driver.frame(frame)
        asked = json.loads(frame)
        refusals = [answer for answer in answers if answer["type"] == "error"]
        mine = [one for one in refusals if one["error"]["event_id"] is not None]
        if mine:
            assert answers == mine
            assert mine[0]["error"]["event_id"] == asked["event_id"]
            assert len(self.driver.facts) == facts, "a refused event changes nothing"
        elif not answers:
            assert asked["type"] in SILENT or asked.get("event_id") != "mine" or _is_unanswered(asked)
        assert self.driver.session.phase is SessionPhase.OPEN


def _is_unanswered(asked: dict[str, Any]) -> bool:
    """A cancel is answered by the response's end; whatever else is right has an answer at once."""
    return asked["type"] == "response.cancel"


def fuzz(max_examples: int, num_steps: int) -> int:
    """Run it; how many frames were nearly right."""
    Vandal.num_frames = 0
    checks = list(HealthCheck)
    asked = settings(
        max_examples=max_examples,
        stateful_step_count=num_steps,
        deadline=None,
        suppress_health_check=checks,
        print_blob=True,
    )
    run_state_machine_as_test(Vandal, settings=asked)
    return Vandal.num_frames


def test_every_event_has_an_example() -> None:
    assert {event["type"] for event in WHOLE} == set(EVENTS)


def test_nearly_valid_events_harm_nothing() -> None:
    assert fuzz(40, 25) > 0


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_hundred_thousand_nearly_valid_events_harm_nothing() -> None:
    num_frames = 0
    while num_frames < 100_000:
        num_frames += fuzz(1000, 60)
