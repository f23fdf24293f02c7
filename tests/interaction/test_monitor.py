"""Phases and cursors: by example, and against a slow model that keeps every event of a session."""

from __future__ import annotations

import math
import timeit
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from antiphon.core.facts import (
    CopyDone,
    ItemCut,
    PlaybackReported,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
)
from antiphon.core.plans import AudioOut, ResponseEnded, TokensOut, Usage, ints
from antiphon.core.playback import Playback, Source
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor, PersonPhase
from fakes.readings import heard_of


def audio(response: str, seconds: float, session: str = "s") -> AudioOut:
    return AudioOut(session, response, bytes(4 * round(24_000 * seconds)))


def text(response: str) -> TokensOut:
    return TokensOut("s", response, "thinker", ints([1]).reshape(-1, 1))


def ended(response: str, status: str = "completed", session: str = "s") -> ResponseEnded:
    return ResponseEnded(session, response, status, "", "", Usage())


def opened() -> Monitor:
    monitor = Monitor(Frontier(3, 0.08))
    monitor.observe(SessionOpened("s"), 0.0)
    return monitor


def asked(monitor: Monitor, response: str, now: float, **fields: bool) -> None:
    monitor.observe(ResponseRequested("s", response, f"item-{response}", **fields), now)


def test_a_turn() -> None:
    monitor = opened()
    assert monitor.phase("s", 0.0) is PersonPhase.LISTENING
    assert monitor.buffer_s("s", 0.0) is None
    monitor.observe(SpeechStarted("s"), 1.0)
    assert monitor.phase("s", 1.0) is PersonPhase.SPEAKING
    monitor.observe(SpeechEnded("s"), 2.0)
    asked(monitor, "r", 2.0)
    assert (monitor.phase("s", 2.5), monitor.waited_s("s", 2.5)) == (PersonPhase.WAITING, 0.5)
    monitor.hear([text("r")], 2.6)
    assert monitor.phase("s", 2.6) is PersonPhase.WAITING
    monitor.hear([audio("r", 1.0)], 3.0)
    assert (monitor.phase("s", 3.0), heard_of(monitor).ttfp_s, monitor.waited_s("s", 3.0)) == (
        PersonPhase.REPLYING,
        1.0,
        None,
    )
    assert (monitor.buffer_s("s", 3.25), heard_of(monitor).played_s(3.25)) == (0.75, 0.25)
    monitor.hear([ended("r")], 3.3)
    assert (monitor.phase("s", 3.9), monitor.phase("s", 4.0)) == (PersonPhase.REPLYING, PersonPhase.LISTENING)
    assert (monitor.heard("s"), heard_of(monitor).audio_s, heard_of(monitor).played_s(9.0)) == ("r", 1.0, 1.0)


def test_a_written_reply_begins_with_its_text() -> None:
    for monitor, speech in ((opened(), False), (Monitor(Frontier(3, 0.08), speaks=False), True)):
        monitor.observe(SessionOpened("s"), 0.0)
        asked(monitor, "r", 1.0, speech=speech)
        monitor.hear([text("r")], 2.0)
        assert (monitor.phase("s", 2.0), heard_of(monitor).ttfp_s) == (PersonPhase.REPLYING, None)
        monitor.hear([text("r")], 2.5)
        monitor.hear([ended("r")], 3.0)
        assert monitor.phase("s", 3.0) is PersonPhase.LISTENING
        assert heard_of(monitor).source is Source.UNKNOWN


def test_a_reply_that_ends_before_it_is_heard() -> None:
    monitor = opened()
    asked(monitor, "r", 1.0)
    monitor.hear([ended("r", "failed")], 2.0)
    assert monitor.phase("s", 2.0) is PersonPhase.LISTENING


def test_a_barge_in_silences_the_reply() -> None:
    monitor = opened()
    asked(monitor, "r", 0.0)
    monitor.hear([audio("r", 5.0)], 1.0)
    monitor.observe(SpeechStarted("s"), 2.0)
    assert monitor.phase("s", 2.0) is PersonPhase.INTERRUPTING
    monitor.hear([ended("r", "cancelled")], 2.5)
    assert (monitor.phase("s", 2.5), monitor.buffer_s("s", 9.0)) == (PersonPhase.SPEAKING, 0.0)
    assert heard_of(monitor).played_s(9.0) == 1.5
    monitor.observe(PlaybackReported("s", "r", 1.4), 2.6)
    assert heard_of(monitor).played_s(9.0) == 1.4, "the last word is the client's"
    monitor.observe(PlaybackReported("s", "r", 1.3), 2.7)
    assert heard_of(monitor).played_s(9.0) == 1.4, "one that was overtaken"


def test_what_a_reader_reports_is_theirs_to_say() -> None:
    """Of a reply in writing that is read at a known rate."""
    frontier = Frontier(1, 0.0)
    monitor = Monitor(frontier)
    monitor.observe(SessionOpened("s"), 0.0)
    monitor.observe(ResponseRequested("s", "r", "i", speech=False, rate=2.0), 0.0)
    slot = monitor.slot("s", "r")
    assert slot is not None
    frontier.make(0, slot, 8, now=1.0)
    monitor.observe(PlaybackReported("s", "r", 0.5), 2.0)
    assert frontier.leads_s(0, np.array([slot]), 2.0).tolist() == [3.5]
    monitor.observe(PlaybackReported("s", "another", 1.0), 2.0)
    assert frontier.leads_s(0, np.array([slot]), 2.0).tolist() == [3.5]


def test_a_cut_after_the_end_silences_the_reply() -> None:
    monitor = opened()
    asked(monitor, "r", 0.0)
    monitor.hear([audio("r", 5.0)], 1.0)
    monitor.hear([ended("r")], 1.0)
    monitor.observe(ItemCut("s", "another", 3), 2.0)
    assert monitor.phase("s", 2.0) is PersonPhase.REPLYING
    monitor.observe(ItemCut("s", "item-r", 3), 2.0)
    assert (monitor.phase("s", 2.0), heard_of(monitor).played_s(9.0)) == (PersonPhase.LISTENING, 1.0)


def test_the_conversations_own_reply_is_followed() -> None:
    monitor = opened()
    asked(monitor, "own", 0.0)
    asked(monitor, "beside", 0.5, remember=False)
    monitor.hear([audio("beside", 1.0)], 1.0)
    assert monitor.phase("s", 1.0) is PersonPhase.WAITING
    monitor.hear([audio("own", 1.0)], 1.5)
    asked(monitor, "beside2", 1.6, remember=False)
    assert (monitor.heard("s"), monitor.waited_s("s", 2.0)) == ("own", None)
    monitor.hear([ended("beside")], 1.7)
    monitor.hear([ended("own")], 1.8)
    asked(monitor, "alone", 5.0, remember=False)
    assert monitor.phase("s", 5.0) is PersonPhase.WAITING


def test_who_is_not_there_is_passed_over() -> None:
    monitor = opened()
    monitor.observe(SpeechStarted("nobody"), 1.0)
    monitor.observe(SessionClosed("nobody"), 1.0)
    monitor.observe(CopyDone("thinker", 1), 1.0)
    monitor.hear([audio("r", 1.0, "nobody")], 1.0)
    assert monitor.phase("nobody", 1.0) is PersonPhase.LISTENING
    assert monitor.heard_reply("nobody") is monitor.heard("nobody") is monitor.waited_s("nobody", 1.0) is None
    assert list(monitor.sessions) == ["s"]


def test_a_read_is_quick_among_ten_thousand() -> None:
    """Issue 05 asks for under 2 us; ten times that, so that a busy machine does not fail it."""
    monitor = Monitor(Frontier(3, 0.08))
    names = [f"s{n}" for n in range(10_000)]
    for name in names:
        monitor.observe(SessionOpened(name), 0.0)
        monitor.observe(ResponseRequested(name, "r", "i"), 0.0)
        monitor.hear([audio("r", 0.5, name)], 1.0)
    one_s = min(timeit.repeat(lambda: monitor.buffer_s("s5000", 1.2), number=1000, repeat=5)) / 1000
    assert one_s < 20e-6
    assert all(monitor.buffer_s(name, 1.25) == 0.25 for name in names)


@dataclass
class Reply:
    """A reply as the model keeps it."""

    name: str
    asked_at: float
    loudspeaker: Playback = field(default_factory=Playback)
    is_open: bool = True
    acks: list[tuple[float, float]] = field(default_factory=list)
    acked_s: float = 0.0


class Listener(RuleBasedStateMachine):
    """Without acks the cursor is `core.playback` alone; with acks it stays between what was reported and what
    was sent. Times are dyadic, so that sums are exact."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.monitor = opened()
        self.count = 0
        self.reply: Reply | None = None
        self.is_speaking = False

    @rule(eighths=st.integers(0, 16))
    def wait(self, eighths: int) -> None:
        self.now += eighths / 8

    @precondition(lambda self: self.reply is None or not self.reply.is_open)
    @rule()
    def ask(self) -> None:
        self.count += 1
        self.reply = Reply(f"r{self.count}", self.now)
        asked(self.monitor, self.reply.name, self.now)

    @precondition(lambda self: self.reply is not None and self.reply.is_open)
    @rule(eighths=st.integers(1, 16))
    def send(self, eighths: int) -> None:
        assert self.reply is not None
        self.reply.loudspeaker.add(eighths / 8, self.now)
        self.monitor.hear([audio(self.reply.name, eighths / 8)], self.now)

    @precondition(lambda self: self.reply is not None and self.reply.is_open)
    @rule(status=st.sampled_from(["completed", "failed", "incomplete", "cancelled"]))
    def end(self, status: str) -> None:
        assert self.reply is not None
        self.reply.is_open = False
        if status == "cancelled":
            self.reply.loudspeaker.stop(self.now)
        self.monitor.hear([ended(self.reply.name, status)], self.now)

    @precondition(lambda self: self.reply is not None)
    @rule(eighths=st.integers(0, 40), name=st.sampled_from(["r1", "r2", "last"]))
    def ack(self, eighths: int, name: str) -> None:
        assert self.reply is not None
        name = self.reply.name if name == "last" else name
        if name == self.reply.name and self.reply.loudspeaker.first_at is not None:
            self.reply.acks.append((eighths / 8, self.now))
            sent_s = self.reply.loudspeaker.audio_s
            self.reply.acked_s = max(self.reply.acked_s, min(eighths / 8, sent_s))
        elif name == self.reply.name or self.reply.loudspeaker.first_at is None:
            return  # a reply before the last may still be the one that is heard
        self.monitor.observe(PlaybackReported("s", name, eighths / 8), self.now)

    @rule(is_start=st.booleans())
    def speak(self, is_start: bool) -> None:
        self.is_speaking = is_start
        self.monitor.observe(SpeechStarted("s") if is_start else SpeechEnded("s"), self.now)

    @rule()
    def come_again(self) -> None:
        self.monitor.observe(SessionOpened("s"), self.now)

    @rule(count=st.integers(1, 40))
    def crowd(self, count: int) -> None:
        """Others come and go: slots move into larger columns and are used again."""
        names = [f"other{n}" for n in range(count)]
        for name in names:
            self.monitor.observe(SessionOpened(name), self.now)
            self.monitor.observe(SpeechStarted(name), self.now)
            self.monitor.observe(ResponseRequested(name, "r", "i"), self.now)
            self.monitor.hear([audio("r", 3.0, name)], self.now)
        for name in names:
            self.monitor.observe(SessionClosed(name), self.now)
        self.monitor.observe(SessionOpened("fresh"), self.now)
        assert self.monitor.phase("fresh", self.now) is PersonPhase.LISTENING
        assert self.monitor.buffer_s("fresh", self.now) is None
        self.monitor.observe(SessionClosed("fresh"), self.now)

    def teardown(self) -> None:
        if not hasattr(self, "monitor"):
            return
        for later_s in (0.0, 0.125, 1.0, 50.0):
            self._check(self.now + later_s)

    def _check(self, now: float) -> None:
        monitor, reply = self.monitor, self.reply
        phase = monitor.phase("s", now)
        assert (phase in (PersonPhase.SPEAKING, PersonPhase.INTERRUPTING)) == self.is_speaking
        heard, buffer_s = monitor.heard_reply("s") or Playback(), monitor.buffer_s("s", now)
        played_s, generated_s = heard.played_s(now), heard.audio_s
        assert 0.0 <= played_s <= generated_s
        if reply is None or reply.loudspeaker.first_at is None:
            return
        assert generated_s == reply.loudspeaker.audio_s
        assert heard_of(monitor).ttfp_s == reply.loudspeaker.first_at - reply.asked_at
        if not reply.acks:
            assert heard.source is Source.ESTIMATED
            assert played_s == reply.loudspeaker.played_s(now)
        else:
            assert heard.source is Source.ACKED
            assert played_s >= reply.acked_s
            assert played_s <= max(a + now - at for a, at in reply.acks) + 1e-9 or math.isclose(
                played_s, generated_s
            )
        audible = bool(buffer_s) or reply.is_open
        if not self.is_speaking:
            assert (phase is PersonPhase.REPLYING) == audible


def test_cursors_follow_the_listener() -> None:
    run_state_machine_as_test(
        Listener, settings=settings(max_examples=150, stateful_step_count=30, deadline=None)
    )
