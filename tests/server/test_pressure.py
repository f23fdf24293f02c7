"""How much audio listeners have left: an engine too slow for its load is told before anybody hears a gap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.playback import Playback
from antiphon.server.pressure import BUCKET_S, HOLD_S, Pressure, _Leads
from antiphon.server.settings import ServerSettings

BOUND_S = ServerSettings().min_lead_s


def test_audio_that_ran_out_is_a_gap_when_more_comes() -> None:
    pressure, gaps = Pressure(), list[str]()
    pressure.on_gap = lambda: gaps.append("gap")
    pressure.asked("r", 0.0)
    for now in (1.0, 1.2, 1.45):  # 0.2 s each: 0.05 s late is not heard
        pressure.heard("r", 0.2, now)
    assert not gaps
    pressure.heard("r", 0.2, 1.9)
    assert len(gaps) == 1


def fed(pressure: Pressure, rate: float, until_s: float, chunk_s: float = 0.32, name: str = "r") -> None:
    """A reply whose audio is made at `rate` seconds of audio a second, after a first chunk of 0.14 s."""
    pressure.asked(name, 0.0)
    pressure.heard(name, 0.14, 0.0)
    now = chunk_s / rate
    while now <= until_s:
        pressure.heard(name, chunk_s, now)
        now += chunk_s / rate


def test_who_is_idle_takes_everybody() -> None:
    assert Pressure().least_lead_s(0.0) == inf


@given(low_s=st.floats(0.7, 2.0), chunk_s=st.floats(0.08, 0.4))
def test_speech_that_is_paced_is_not_slow(low_s: float, chunk_s: float) -> None:
    """Made fast up to a lead, and from there on as it is heard: at a rate of 1, for as long as it lasts."""
    pressure, playback, now = Pressure(), Playback(), 0.0
    pressure.asked("r", now)
    while now < 60.0:
        if playback.lead_s(now) < low_s + chunk_s:
            pressure.heard("r", chunk_s, now)
            playback.add(chunk_s, now)
        now += 0.02
        assert pressure.least_lead_s(now) >= BOUND_S


def test_speech_that_is_made_as_fast_as_possible_is_told_by_its_first_second() -> None:
    for rate, is_slow in ((10.0, False), (3.0, False), (1.5, True), (1.0, True), (0.8, True)):
        pressure = Pressure()
        fed(pressure, rate, 3.0)
        assert (pressure.least_lead_s(3.0) < BOUND_S) == is_slow, rate


def test_an_engine_that_slows_down_is_told_before_the_gap() -> None:
    pressure = Pressure()
    fed(pressure, 3.0, 4.0)
    assert pressure.least_lead_s(4.0) >= BOUND_S
    playback = pressure._replies["r"].playback
    while pressure.least_lead_s(now := playback.dry_at - BOUND_S) >= BOUND_S:
        pressure.heard("r", 0.1, now)
    assert playback.lead_s(now) > 0.5, "nothing was silent yet"


def test_a_beginning_tells_nothing_and_silence_tells_all() -> None:
    pressure = Pressure()
    pressure.asked("r", 0.0)
    pressure.heard("r", 0.14, 1.0)
    assert pressure.least_lead_s(1.2) == pytest.approx(4.0), "of 5 s in which something has to come"
    assert pressure.least_lead_s(1.3) == 0.0, "a gap, however new the reply is"
    pressure.heard("r", 0.9, 1.3)
    pressure.heard("r", 0.9, 1.4)
    assert pressure.least_lead_s(20.0) == 0.0


def test_who_waits_for_a_first_sign_hears_silence_too() -> None:
    pressure = Pressure()
    pressure.asked("r", 0.0)
    pressure.asked("other", 0.0)
    assert pressure.least_lead_s(4.0) == pytest.approx(1.0)
    pressure.wrote("r", 4.5)
    pressure.ended("other", 6.0)
    assert pressure.least_lead_s(7.0) == pytest.approx(-1.0)
    pressure.wrote("r", 7.0)
    assert pressure.least_lead_s(22.0) == inf, "the text is coming"


def test_text_after_the_audio_is_not_spoken() -> None:
    """Words, and then a tool call that takes its time."""
    pressure = Pressure()
    fed(pressure, 10.0, 1.0)
    pressure.wrote("r", 1.0)
    assert pressure.least_lead_s(60.0) == inf
    pressure.ended("r", 61.0)
    assert pressure.least_lead_s(61.0) == inf


def test_what_nobody_waits_for_is_passed_over() -> None:
    pressure = Pressure()
    pressure.wrote("flex", 1.0)
    pressure.heard("flex", 0.1, 2.0)
    pressure.ended("flex", 3.0)
    assert pressure.least_lead_s(9.0) == inf


def test_a_listener_who_pauses_is_not_running_dry() -> None:
    """The engine makes no more of a reply that its client has paused: no lead is lost by that."""
    pressure, gaps = Pressure(), list[str]()
    pressure.on_gap = lambda: gaps.append("gap")
    pressure.asked("r", 0.0)
    pressure.heard("r", 4.0, 0.0)
    for now in np.arange(0.25, 30.0, 0.25).tolist():
        pressure.reported("r", min(now, 1.0), now)
        assert pressure.least_lead_s(now + 0.2) >= min(3.0, 4.0 - now) - 0.2 - 1e-9
    assert pressure.least_lead_s(30.0) > 2.5
    pressure.heard("r", 1.0, 32.0)
    assert not gaps
    assert pressure.least_lead_s(36.0) == 0.0, "it plays on"


def test_a_report_shortens_no_lead() -> None:
    pressure = Pressure()
    pressure.reported("unknown", 1.0, 0.0)
    pressure.asked("r", 0.0)
    pressure.reported("r", 0.0, 0.5)
    pressure.heard("r", 4.0, 1.0)
    pressure.reported("r", 4.0, 2.0)
    assert pressure.least_lead_s(2.0) == pytest.approx(3.0)


def test_a_reply_that_its_client_plays_no_more_has_no_listener() -> None:
    pressure = Pressure()
    for name, audio_s in (("a", 2.0), ("b", 10.0)):
        pressure.asked(name, 0.0, name, f"item-{name}")
        pressure.heard(name, audio_s, 0.0)
    assert pressure.least_lead_s(5.0) == 0.0
    pressure.cut("item-a")
    assert pressure.least_lead_s(5.0) == pytest.approx(5.0)
    pressure.heard("a", 1.0, 5.0)
    pressure.ended("a", 5.0)


def test_the_worst_is_remembered_for_a_while() -> None:
    pressure = Pressure()
    fed(pressure, 1.0, 10)
    pressure.ended("r", 10.0)
    assert pressure.least_lead_s(24.0) < BOUND_S, "who listens now will speak again"
    assert pressure.least_lead_s(26.0) == inf


def test_who_has_gone_is_forgotten() -> None:
    pressure = Pressure()
    for session, lead_s in (("gone", 0.1), ("there", 0.4)):
        pressure.asked(session, 0.0, session)
        pressure.heard(session, 0.5, 0.0)
        pressure.heard(session, 1.0, 0.5 + 0.5 - lead_s)
        pressure.ended(session, 1.0)
    pressure.asked("late", 1.0, "gone")
    assert pressure.least_lead_s(5.0) < BOUND_S
    pressure.left("gone")
    assert not pressure._replies
    left_s = pressure.least_lead_s(7.0)
    pressure.left("there")
    assert left_s < BOUND_S, "of who is still there"
    assert pressure.least_lead_s(7.0) == inf


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(-3.0, 3.0)), min_size=1, max_size=60))
def test_the_least_lead_is_kept(told: list[tuple[float, float]]) -> None:
    """To a quarter of a second, as if all of them were kept."""
    leads, all_told, now = _Leads(), list[tuple[float, float]](), 0.0
    for after_s, lead_s in told:
        now += after_s
        leads.note(lead_s, now)
        all_told.append((now, lead_s))
        kept = [[one for at, one in all_told if at > now - hold_s] for hold_s in (HOLD_S - BUCKET_S, HOLD_S)]
        assert min(kept[0]) >= leads.least_s(now) >= min(kept[1])


def test_what_nobody_asks_for_is_forgotten_all_the_same() -> None:
    pressure = Pressure()
    fed(pressure, 1.0, 600)
    leads = _Leads()
    for step in range(10_000):
        leads.note(step / 1e4, step / 100)
    assert len(leads._rising) <= HOLD_S / BUCKET_S + 1
    assert pressure.least_lead_s(600) < BOUND_S


class Engine:
    """Makes audio of all open replies a frame at a time: the more there are, the longer a step takes. People
    come, speak for 3 s, listen to 5 s, and again; each is let in or not as `welcome` says."""

    def __init__(self, welcome: Callable[[Pressure, float], bool]) -> None:
        self.welcome, self.pressure, self.now = welcome, Pressure(), 0.0
        self.asks: list[tuple[float, int]] = []
        self.frames: dict[str, int] = {}
        self.playbacks: dict[str, Playback] = {}
        self.gaps_at: list[float] = []
        self.refused_at: list[float] = []
        self.num_replies = 0

    def run(self, until_s: float, arrivals_per_s: float) -> None:
        arrivals = deque(np.arange(0.0, until_s, 1 / arrivals_per_s).tolist())
        while self.now < until_s:
            while arrivals and arrivals[0] <= self.now:
                self._arrives(arrivals.popleft())
            for due in [ask for ask in self.asks if ask[0] <= self.now]:
                self.asks.remove(due)
                self._begins(f"{due[1]}-{self.num_replies}")
            self.now += 0.01 + 0.004 * len(self.frames)
            for name in list(self.frames):
                self._makes(name)

    def _arrives(self, at: float) -> None:
        if self.welcome(self.pressure, self.now):
            self.asks.append((at + 3.0, len(self.refused_at)))
        else:
            self.refused_at.append(at)

    def _begins(self, name: str) -> None:
        self.num_replies += 1
        self.now += 0.05
        self.frames[name], self.playbacks[name] = 0, Playback()
        self.pressure.asked(name, self.now)

    def _makes(self, name: str) -> None:
        self.frames[name] += 1
        if self.frames[name] % 4 == 2:
            length_s = 0.16 if self.frames[name] == 2 else 0.32
            self.pressure.heard(name, length_s, self.now)
            if self.playbacks[name].add(length_s, self.now) >= 0.1:
                self.gaps_at.append(self.now)
        if self.frames[name] == 62:
            del self.frames[name]
            self.pressure.ended(name, self.now)
            self.asks.append((self.playbacks[name].dry_at + 3.0, self.num_replies))


def guarded(pressure: Pressure, now: float) -> bool:
    return pressure.least_lead_s(now) >= BOUND_S


@pytest.mark.parametrize("arrivals_per_s", [1.0, 2.0])
def test_an_engine_too_slow_for_its_load_refuses_before_anybody_hears_a_gap(arrivals_per_s: float) -> None:
    """More and more people come, and stay. Of those let in who had not spoken yet some are too many."""
    open_door, engine = Engine(lambda pressure, now: True), Engine(guarded)
    for one in (open_door, engine):
        one.run(60.0, arrivals_per_s)
    assert engine.refused_at[0] < open_door.gaps_at[0]
    assert len(engine.gaps_at) < 0.03 * len(open_door.gaps_at)
    assert engine.num_replies > 0.7 * open_door.num_replies, "it serves whom it can"


def test_an_engine_that_keeps_up_refuses_nobody() -> None:
    engine = Engine(guarded)
    engine.run(60.0, 0.1)
    assert engine.refused_at == engine.gaps_at == []
