"""Slots of responses: a column that reads as the playbacks in it, and whose slots come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.facts import (
    CopyDone,
    ItemCut,
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
)
from antiphon.core.plans import AudioOut, ResponseEnded, Usage
from antiphon.core.playback import Playback
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor, PersonPhase
from fakes.readings import heard_of, num_taken


def audio(response: str, seconds: float) -> AudioOut:
    return AudioOut("s", response, bytes(4 * round(24_000 * seconds)))


def ended(response: str, status: str = "completed") -> ResponseEnded:
    return ResponseEnded("s", response, status, "", "", Usage())


def talking(*responses: str) -> Monitor:
    monitor = Monitor(Frontier(3, 0.08))
    monitor.observe(SessionOpened("s"), 0.0)
    for response in responses:
        monitor.observe(ResponseRequested("s", response, f"item-{response}", remember=False), 0.0)
    return monitor


def pass_time(monitor: Monitor, now: float) -> None:
    """Anything that happens anywhere."""
    monitor.observe(CopyDone("thinker", 1), now)


def lead_s(monitor: Monitor, session: str, response: str, now: float) -> float | None:
    """Seconds until the listener of a response runs dry; None while nothing of it has been sent."""
    known = monitor._sessions.get(session)
    reply = None if known is None else known.find(response)
    return None if reply is None or reply.first_at is None else reply.lead_s(now)


def test_each_response_has_its_own() -> None:
    monitor = talking("a", "b")
    monitor.hear([audio("a", 2.0)], 1.0)
    assert (lead_s(monitor, "s", "a", 1.5), lead_s(monitor, "s", "b", 1.5)) == (1.5, None)
    monitor.hear([audio("b", 5.0)], 2.0)
    first, second = monitor.slot("s", "a"), monitor.slot("s", "b")
    assert first is not None
    assert second is not None
    assert monitor._frontier.heard_leads_s(np.array([first, second, first]), 2.5).tolist() == [0.5, 4.5, 0.5]
    assert monitor.heard("s") == "a", "the other is beside it"
    assert lead_s(monitor, "s", "c", 2.5) is monitor.slot("s", "c") is None
    assert lead_s(monitor, "t", "a", 2.5) is monitor.slot("t", "a") is None


def test_the_next_is_asked_while_the_last_is_played() -> None:
    monitor = talking()
    for response, now in (("a", 0.0), ("b", 2.0)):
        monitor.observe(ResponseRequested("s", response, "i"), now)
        monitor.hear([audio(response, 4.0)], now + 0.5)
        monitor.hear([ended(response)], now + 0.5)
    assert (lead_s(monitor, "s", "a", 3.0), lead_s(monitor, "s", "b", 3.0)) == (1.5, 3.5)
    assert (monitor.heard("s"), monitor.buffer_s("s", 3.0)) == ("b", 3.5)
    pass_time(monitor, 5.0)
    assert monitor.slot("s", "a") is None
    assert monitor.slot("s", "b") is not None


def test_a_slot_is_free_once_its_response_is_over_and_played() -> None:
    monitor = talking("a")
    monitor.hear([audio("a", 1.0)], 0.0)
    pass_time(monitor, 9.0)
    assert monitor.slot("s", "a") is not None, "dry, but more may come"
    monitor.hear([audio("a", 1.0)], 9.0)
    monitor.hear([ended("a")], 9.0)
    pass_time(monitor, 9.875)
    assert monitor.slot("s", "a") is not None
    pass_time(monitor, 10.0)
    assert monitor.slot("s", "a") is None
    assert (monitor.buffer_s("s", 10.0), heard_of(monitor).played_s(10.0)) == (0.0, 2.0)
    assert lead_s(monitor, "s", "a", 10.0) == 0.0, "the reply heard last can still be asked for"


def test_what_never_sounds_is_free_at_its_end() -> None:
    monitor = talking("a")
    monitor.hear([ended("a", "failed")], 1.0)
    assert monitor.slot("s", "a") is None


def test_a_slot_is_free_at_once_where_playback_stops() -> None:
    monitor = talking("a", "b", "c")
    for response in "abc":
        monitor.hear([audio(response, 9.0)], 0.0)
    monitor.hear([ended("a", "cancelled")], 1.0)
    monitor.hear([ended("b")], 1.0)
    assert [monitor.slot("s", response) is None for response in "abc"] == [True, False, False]
    monitor.observe(ItemCut("s", "item-b", 3), 2.0)
    monitor.observe(ItemCut("s", "item-none", 3), 2.0)
    assert [monitor.slot("s", response) is None for response in "abc"] == [True, True, False]
    monitor.observe(SessionClosed("s"), 3.0)
    pass_time(monitor, 99.0)
    assert num_taken(monitor._frontier) == 0


def test_what_is_still_made_of_a_reply_that_was_cut_has_no_listener() -> None:
    """The client has stopped playing it and has not cancelled it: it must not look as if it ran dry."""
    monitor = talking("a", "b")
    slots = np.array([monitor.slot("s", response) for response in "ab"], np.intp)
    for response in "ab":
        monitor.hear([audio(response, 2.0)], 0.0)
    monitor.observe(ItemCut("s", "item-a", 1), 1.0)
    monitor.hear([audio("a", 2.0)], 1.5)
    assert monitor._frontier.leads_s(0, slots, 3.0).tolist() == [inf, 0.0]


def test_by_the_client_s_word_it_plays_on() -> None:
    """Estimated to be over, it is where its client says; it has a slot again until then."""
    monitor = talking("a")
    monitor.hear([audio("a", 4.0)], 0.0)
    monitor.hear([ended("a")], 0.0)
    monitor.observe(PlaybackReported("s", "a", 1.0), 3.0)
    pass_time(monitor, 4.0)
    assert lead_s(monitor, "s", "a", 4.0) == 2.0
    pass_time(monitor, 6.0)
    assert monitor.slot("s", "a") is None
    monitor.observe(PlaybackReported("s", "a", 3.0), 7.0)
    assert monitor.buffer_s("s", 7.5) == 0.5
    pass_time(monitor, 8.0)
    assert monitor.slot("s", "a") is None
    monitor.observe(PlaybackReported("s", "a", 4.0), 9.0)
    assert monitor.slot("s", "a") is None


def test_what_is_held_is_not_with_the_client() -> None:
    monitor = talking("a")
    monitor.hear([audio("a", 1.0)], 0.0)
    monitor.observe(OutputHeld("s", "a"), 0.5)
    monitor.observe(OutputHeld("s", "a"), 0.5)
    monitor.hear([audio("a", 2.0)], 0.5)
    monitor.hear([ended("a")], 0.5)
    assert (lead_s(monitor, "s", "a", 0.75), heard_of(monitor).audio_s) == (0.25, 1.0)
    pass_time(monitor, 2.0)
    assert monitor.phase("s", 2.0) is PersonPhase.REPLYING, "its end is held as well"
    monitor.observe(OutputReleased("s", "a"), 2.0)
    assert (lead_s(monitor, "s", "a", 2.0), heard_of(monitor).audio_s) == (2.0, 3.0)
    pass_time(monitor, 4.0)
    assert monitor.slot("s", "a") is None
    assert heard_of(monitor).played_s(4.0) == 3.0


def test_a_first_audio_that_is_held_comes_when_it_is_released() -> None:
    monitor = talking("a")
    monitor.observe(OutputHeld("s", "a"), 0.5)
    monitor.hear([audio("a", 2.0)], 1.0)
    assert (monitor.phase("s", 1.0), monitor.heard_reply("s")) == (PersonPhase.WAITING, None)
    monitor.observe(OutputReleased("s", "a"), 1.5)
    assert (monitor.phase("s", 1.5), heard_of(monitor).ttfp_s) == (PersonPhase.REPLYING, 1.5)


def test_a_true_interruption_drops_what_was_held() -> None:
    """Its end as well: the engine was done, and says no more of it."""
    monitor = talking("a", "b")
    for response in "ab":
        monitor.hear([audio(response, 4.0)], 0.0)
        monitor.observe(OutputHeld("s", response), 0.5)
        monitor.hear([audio(response, 4.0)], 0.5)
    monitor.hear([ended("a")], 0.5)
    for response in "ab":
        monitor.observe(ResponseCancelled("s", response), 1.0)
    assert monitor.slot("s", "a") is None
    assert (monitor.phase("s", 1.0), heard_of(monitor).played_s(9.0)) == (PersonPhase.LISTENING, 1.0)
    assert (monitor.slot("s", "b") is not None, lead_s(monitor, "s", "b", 1.0)) == (True, 0.0)
    monitor.hear([ended("b", "cancelled")], 1.0)
    assert monitor.slot("s", "b") is None


def test_doubts_over_what_is_not_there_are_passed_over() -> None:
    monitor = talking("a")
    for fact in (OutputHeld("s", "x"), OutputReleased("s", "x"), ResponseCancelled("s", "x")):
        monitor.observe(fact, 0.0)
    monitor.observe(OutputReleased("s", "a"), 0.0)
    monitor.hear([audio("a", 1.0)], 0.0)
    assert lead_s(monitor, "s", "a", 0.0) == 1.0


@dataclass
class Told:
    """A response as the model keeps it."""

    playback: Playback = field(default_factory=Playback)
    is_open: bool = True
    held_s: list[float] | None = None
    """Seconds of audio that wait; what is over by then ends when they are let go."""
    is_end_held: bool = False


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["ask", "add", "add", "ack", "wait", "wait", "cut", "end", "cancel", "hold", "release"]
        ),
        st.sampled_from("abc"),
        st.integers(1, 16),
    ),
    max_size=40,
)


@given(STEPS)
def test_both_forms_read_alike(steps: list[tuple[str, str, int]]) -> None:
    """Whatever happens to several responses: the column is their playbacks, and no slot is lost."""
    monitor, told, now = talking(), dict[str, Told](), 0.0
    for kind, name, eighths in steps:
        now += eighths / 8 if kind == "wait" else 0.0
        pass_time(monitor, now)
        if kind == "ask" and name not in told:
            told[name] = Told()
            monitor.observe(ResponseRequested("s", name, f"item-{name}", remember=name == "a"), now)
        elif name in told:
            _happen(monitor, told[name], kind, name, eighths / 8, now)
        _check(monitor, told, now)
    monitor.observe(SessionClosed("s"), now)
    assert num_taken(monitor._frontier) == 0


def _happen(monitor: Monitor, one: Told, kind: str, name: str, seconds: float, now: float) -> None:
    is_made = one.is_open and not one.is_end_held
    match kind:
        case "add" if is_made:
            if one.held_s is None:
                one.playback.add(seconds, now)
            else:
                one.held_s.append(seconds)
            monitor.hear([audio(name, seconds)], now)
        case "ack" if monitor.slot("s", name) is not None:
            one.playback.acked(seconds, now)
            monitor.observe(PlaybackReported("s", name, seconds), now)
        case "cut":
            one.playback.stop(now)
            monitor.observe(ItemCut("s", f"item-{name}", 1), now)
        case "end" if is_made:
            one.is_open, one.is_end_held = one.held_s is not None, one.held_s is not None
            monitor.hear([ended(name)], now)
        case "cancel" if one.is_open:
            one.playback.stop(now)
            one.is_open = one.is_end_held = False
            monitor.observe(ResponseCancelled("s", name), now)
            if is_made:
                monitor.hear([ended(name, "cancelled")], now)
        case "hold" if one.is_open and one.held_s is None:
            one.held_s = []
            monitor.observe(OutputHeld("s", name), now)
        case "release" if one.is_open and one.held_s is not None:
            for held_s in one.held_s:
                one.playback.add(held_s, now)
            one.held_s, one.is_open, one.is_end_held = None, not one.is_end_held, False
            monitor.observe(OutputReleased("s", name), now)
        case _:
            pass


def _check(monitor: Monitor, told: dict[str, Told], now: float) -> None:
    slots = {name: slot for name in told if (slot := monitor.slot("s", name)) is not None}
    assert num_taken(monitor._frontier) == len(slots)
    assert set(slots) == {name for name, one in told.items() if one.is_open or one.playback.is_audible(now)}
    for later_s in (0.0, 0.5, 50.0):
        leads_s = monitor._frontier.heard_leads_s(np.array(list(slots.values()), np.intp), now + later_s)
        for name, left_s in zip(slots, leads_s.tolist(), strict=True):
            playback = told[name].playback
            if playback.first_at is None:
                assert lead_s(monitor, "s", name, now + later_s) is None
                assert np.isnan(left_s) or left_s == 0.0
            else:
                assert left_s == playback.lead_s(now + later_s) == lead_s(monitor, "s", name, now + later_s)


def test_who_plays_faster_than_was_thought_is_done_sooner() -> None:
    monitor = talking("a")
    monitor.hear([audio("a", 4.0)], 0.0)
    monitor.hear([ended("a")], 0.0)
    monitor.observe(PlaybackReported("s", "a", 3.0), 1.0)
    pass_time(monitor, 2.0)
    assert monitor.slot("s", "a") is None
