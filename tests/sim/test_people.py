"""What people do when a server does not do what they expect."""

from __future__ import annotations

from itertools import pairwise

import pytest

from antiphon.core.errors import ConfigError
from antiphon.metrics.log import ErrorSeen, SessionEnded, SpeechNoticed
from antiphon.sim import run as room
from antiphon.sim.run import simulate
from antiphon.workload.script import JobCall, JobScript
from sim.runs import outcome, setup, started

VAD = {"turn_detection": "server_vad"}


def test_who_is_not_heard_to_end_gives_up() -> None:
    """Half a second of silence has to pass before the server takes a turn as over."""
    events = outcome("voice-chat", settings=VAD, patience_s=0.1).events
    gone = [event for event in events if isinstance(event, SessionEnded) and event.reason == "failed"]
    assert gone
    assert "noticed no end of speech within 0.1 s" in gone[0].message
    assert any(isinstance(event, ErrorSeen) and event.code == "gave_up" for event in events)


def test_starts_and_stops_of_speech_alternate() -> None:
    noticed: dict[str, list[str]] = {}
    for event in outcome(settings=VAD, seed=2).events:
        if isinstance(event, SpeechNoticed):
            noticed.setdefault(event.session, []).append(event.what)
    assert noticed
    assert all(what[0] == "started" for what in noticed.values())
    assert all(a != b for what in noticed.values() for a, b in pairwise(what))


def test_a_job_cannot_wait_for_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    circle = JobScript("circle", 0.0, (JobCall("a", 4, after=(1,)), JobCall("b", 4)))
    monkeypatch.setattr(room, "draw", lambda workload, seed: iter([circle]))
    with pytest.raises(ConfigError, match="call 0 may only wait for calls before it"):
        simulate(setup("agents"), started())


def test_calls_that_are_ready_together_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = (JobCall("a", 4), JobCall("b", 4), JobCall("c", 4, after=(0, 1), wait_s=2.0))
    monkeypatch.setattr(room, "draw", lambda workload, seed: iter([JobScript("job", 0.0, calls)]))
    events = simulate(setup("agents"), started()).events
    assert not [event for event in events if isinstance(event, ErrorSeen)]
    (end,) = [event for event in events if isinstance(event, SessionEnded)]
    assert end.reason == "done"
    assert end.t_s > 2.0
