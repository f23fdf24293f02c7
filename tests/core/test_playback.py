"""The rule of playback: by hand, and against a loudspeaker that is turned tick by tick."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.facts import ResponseRequested, SessionOpened
from antiphon.core.plans import AudioOut
from antiphon.core.playback import Playback, Source
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor, PersonPhase
from antiphon.metrics.log import Interrupted
from antiphon.metrics.timeline import timeline
from antiphon.server.pressure import Pressure
from antiphon.wire.spoken import Speeches, Spoken
from fakes.logs import reply, rows, session
from fakes.readings import heard_of

TICK_S = 1 / 8
"""Dyadic, so that sums are exact."""


def test_played_from_the_first_audio_on() -> None:
    playback = Playback()
    assert (playback.played_s(5.0), playback.lead_s(5.0), playback.is_audible(5.0)) == (0.0, 0.0, False)
    assert (playback.first_at, playback.dry_at, playback.source) == (None, -inf, Source.UNKNOWN)
    assert playback.add(1.0, 10.0) == 0.0
    assert playback.add(0.5, 10.25) == 0.0
    assert (playback.first_at, playback.dry_at, playback.audio_s) == (10.0, 11.5, 1.5)
    assert (playback.played_s(10.5), playback.lead_s(10.5)) == (0.5, 1.0)
    assert playback.source is Source.ESTIMATED
    assert playback.is_audible(11.25)
    assert not playback.is_audible(11.5)
    assert (playback.played_s(12.0), playback.lead_s(12.0)) == (1.5, 0.0)


def test_after_a_gap_it_goes_on_from_where_it_stopped() -> None:
    """Silence counts as nothing played: 1 s of audio at 0, and 1 s more two seconds after it ran dry."""
    playback = Playback()
    playback.add(1.0, 0.0)
    assert playback.add(1.0, 3.0) == 2.0
    assert (playback.played_s(3.5), playback.lead_s(3.5)) == (1.5, 0.5)
    assert playback.is_audible(3.5)
    assert playback.dry_at == 4.0


def test_the_client_s_reports_replace_the_estimate() -> None:
    playback = Playback()
    assert not playback.acked(0.5, 9.0), "nothing has come yet"
    playback.add(1.0, 10.0)
    assert playback.acked(0.25, 10.5)
    assert (playback.source, playback.acked_s) == (Source.ACKED, 0.25)
    assert (playback.played_s(10.75), playback.dry_at) == (0.5, 11.25)
    assert not playback.acked(0.125, 10.75), "it was overtaken by a later one"
    assert not playback.acked(nan, 10.75)
    assert playback.played_s(10.75) == 0.5
    assert playback.acked(5.0, 11.0), "more than there is counts as all there is"
    assert (playback.acked_s, playback.played_s(11.0), playback.lead_s(11.0)) == (1.0, 1.0, 0.0)


def test_a_stop_ends_it() -> None:
    playback = Playback()
    playback.add(2.0, 0.0)
    assert not playback.is_stopped
    playback.stop(0.75)
    playback.stop(1.5)
    assert playback.is_stopped
    assert playback.add(3.0, 1.75) == 0.0
    assert (playback.audio_s, playback.played_s(60.0), playback.lead_s(1.0)) == (5.0, 0.75, 0.0)
    assert (playback.dry_at, playback.is_audible(1.0)) == (0.75, False)
    assert playback.acked(0.5, 2.0), "the last word on what was played is the client's"
    assert (playback.played_s(60.0), playback.lead_s(2.0)) == (0.5, 0.0)


def test_what_was_stopped_before_its_first_audio_is_never_played() -> None:
    playback = Playback()
    playback.stop(1.0)
    playback.add(1.0, 2.0)
    assert (playback.played_s(9.0), playback.is_audible(2.5), playback.first_at) == (0.0, False, None)


def test_a_stop_after_the_end_leaves_the_end_where_it_was() -> None:
    playback = Playback()
    playback.add(1.0, 0.0)
    playback.stop(9.0)
    assert (playback.dry_at, playback.played_s(9.0)) == (1.0, 1.0)


def test_all_who_ask_are_told_the_same() -> None:
    """The wire, the monitor, the figures and the overload guard, of one gap: 1.5 s played and 0.5 s left."""
    spoken, speeches, pressure = Spoken("r", "i", True), Speeches(), Pressure()
    monitor = Monitor(Frontier(3, 0.08))
    speeches.add(spoken)
    monitor.observe(SessionOpened("s"), 0.0)
    monitor.observe(ResponseRequested("s", "r", "i"), 0.0)
    pressure.asked("r", 0.0)
    for now in (0.0, 3.0):
        spoken.playback.add(1.0, now)
        monitor.hear([AudioOut("s", "r", bytes(4 * 24_000))], now)
        pressure.heard("r", 1.0, now)
    barge = Interrupted(t_s=3.5, session="a", response="r", kind="barge_in", heard_s=9.0)
    (row,) = rows(session(end_s=3.5), reply(start_s=0.0, audio=[(0.0, 1.0), (3.0, 1.0)]), [barge])
    assert speeches.audible(3.5) == [spoken]
    assert (spoken.playback.played_s(3.5), spoken.playback.lead_s(3.5)) == (1.5, 0.5)
    assert (heard_of(monitor).played_s(3.5), monitor.buffer_s("s", 3.5)) == (1.5, 0.5)
    assert monitor.phase("s", 3.5) is PersonPhase.REPLYING
    assert pressure._replies["r"].lead_s(3.5) == 0.5
    assert (timeline(row).heard_s[-1], row.gaps) == (1.5, (2.0,))


@dataclass
class Loudspeaker:
    """The slow model: every tick either plays a tick of audio or is silent."""

    audio_s: float = 0.0
    played_s: float = 0.0
    silent_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    acked_s: float = 0.0
    is_begun: bool = False
    is_stopped: bool = False

    def wait(self, ticks: int) -> None:
        for _ in range(ticks):
            if self.is_stopped:
                continue
            if self.played_s < self.audio_s:
                self.played_s += TICK_S
            elif self.is_begun:
                self.silent_s += TICK_S

    def add(self, audio_s: float) -> None:
        if not self.is_stopped:
            self.is_begun = True
            self.gaps_s.append(self.silent_s)
            self.silent_s = 0.0
        self.audio_s += audio_s

    def ack(self, played_s: float) -> None:
        if self.is_begun and played_s >= self.acked_s:
            self.acked_s = self.played_s = min(played_s, self.audio_s)
            self.silent_s = 0.0

    @property
    def lead_s(self) -> float:
        return 0.0 if self.is_stopped else self.audio_s - self.played_s


HISTORIES = st.lists(
    st.tuples(st.sampled_from(["add", "ack", "wait", "wait", "stop"]), st.integers(0, 24)), max_size=30
)


@given(HISTORIES)
def test_it_is_a_loudspeaker(history: list[tuple[str, int]]) -> None:
    playback, loudspeaker, now = Playback(), Loudspeaker(), 0.0
    gaps_s: list[float] = []
    for kind, ticks in history:
        if kind == "wait":
            now += ticks * TICK_S
            loudspeaker.wait(ticks)
        elif kind == "add":
            was_stopped = loudspeaker.is_stopped
            gap_s = playback.add(ticks * TICK_S, now)
            gaps_s += [] if was_stopped else [gap_s]
            loudspeaker.add(ticks * TICK_S)
        elif kind == "ack":
            playback.acked(ticks * TICK_S, now)
            loudspeaker.ack(ticks * TICK_S)
        elif ticks > 20:  # seldom, or every history ends early
            playback.stop(now)
            loudspeaker.is_stopped = True
        assert playback.audio_s == loudspeaker.audio_s
        assert playback.played_s(now) == loudspeaker.played_s
        assert playback.lead_s(now) == loudspeaker.lead_s
        assert playback.is_audible(now) == (loudspeaker.lead_s > 0)
    assert gaps_s == loudspeaker.gaps_s


@given(HISTORIES, st.floats(1e3, 1e7))
def test_rounding_takes_nothing_below_zero_or_beyond_the_end(
    history: list[tuple[str, int]], now: float
) -> None:
    """On a clock that has run for long, with lengths that are no sums of powers of two."""
    playback = Playback()
    for kind, count in history:
        match kind:
            case "add":
                playback.add(count * 0.08, now)
            case "ack":
                playback.acked(count * 0.1, now)
            case "wait":
                now += count * 0.032
            case _:
                pass
        assert 0.0 <= playback.played_s(now) <= playback.audio_s
        assert playback.played_s(now) + playback.lead_s(now) == pytest.approx(playback.audio_s, abs=1e-6)
