"""When turns start and end, whatever the probabilities do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from antiphon.core.turns import (
    ReplyPaused,
    ReplyResumed,
    TurnContinued,
    TurnEvent,
    TurnPaused,
    TurnStarted,
    TurnStopped,
)
from antiphon.interaction.pauses import Semantic, Silence
from antiphon.interaction.turns import CONTINUED_MS, FRAME_MS, PAUSE_MS, TurnSettings, TurnTaker

PROBABILITIES = st.lists(st.sampled_from([0.0, 0.1, 0.34, 0.36, 0.45, 0.5, 0.7, 1.0]), max_size=120)


def heard(taker: TurnTaker, frames: str, reply: str = "") -> list[TurnEvent]:
    """`#` is voice, `-` between, `.` silence; a `r` in `reply` at the same place: a reply is heard."""
    probability = {"#": 0.9, "-": 0.4, ".": 0.1}
    found = [taker.observe(probability[frame], reply[at : at + 1] == "r") for at, frame in enumerate(frames)]
    return [event for event in found if event is not None]


def silero(probabilities: list[float], threshold: float, silence_ms: int) -> list[tuple[str, int]]:
    """Starts and ends as silero_vad.VADIterator finds them, without padding. Its silence counts from the end
    of the first silent frame, ours from its start."""
    triggered, temp_end, now, found = False, 0, 0, []
    for probability in probabilities:
        now += FRAME_MS
        if probability >= threshold and temp_end:
            temp_end = 0
        if probability >= threshold and not triggered:
            triggered = True
            found.append(("start", now - FRAME_MS))
        elif probability < threshold - 0.15 and triggered:
            temp_end = temp_end or now
            if now - temp_end >= silence_ms - FRAME_MS:
                found.append(("end", now))
                temp_end, triggered = 0, False
    return found


def test_a_turn_with_its_padding_and_its_silence() -> None:
    taker = TurnTaker(TurnSettings(prefix_padding_ms=300), Silence(500))
    events = heard(taker, "." * 20 + "#" * 10 + "." * 20)
    assert events == [TurnStarted(20 * 32 - 300), TurnPaused(36 * 32), TurnStopped(46 * 32, 36 * 32)]
    assert heard(taker, "#") == [TurnStarted(50 * 32 - 4 * 32)]  # no audio belongs to two turns


def test_hysteresis_and_short_gaps_do_not_end_a_turn() -> None:
    taker = TurnTaker(end_of_turn=Silence(200))
    assert len(heard(taker, "##" + "-" * 50 + "....##..-..#")) == 1
    now = len("##....##..-..#" + "." * 6) * 32 + 50 * 32
    assert heard(taker, "." * 6) == [TurnPaused(now)]
    assert heard(taker, ".") == [TurnStopped(now + 32, now)]


def test_a_turn_that_goes_on_without_a_pause_is_told_of_by_its_voice() -> None:
    """Neither silence nor what lies between counts, and a pause that is told begins the count anew."""
    taker = TurnTaker(TurnSettings(prefix_padding_ms=0), Silence(500))
    num = CONTINUED_MS // FRAME_MS
    assert heard(taker, "#" * num) == [TurnStarted(0)]
    assert heard(taker, "...---#") == [TurnContinued((num + 7) * FRAME_MS)]
    assert heard(taker, "#" * (num - 1) + "." * 6) == [TurnPaused((2 * num + 12) * FRAME_MS)]
    assert heard(taker, "#" * (num - 1)) == []
    assert heard(taker, "#") == [TurnContinued((3 * num + 12) * FRAME_MS)]


def test_a_soft_voice_behind_a_pause_belongs_to_the_turn() -> None:
    taker = TurnTaker(TurnSettings(prefix_padding_ms=0), Silence(500))
    assert heard(taker, "##" + "." * 6 + "-" * 4) == [TurnStarted(0), TurnPaused(8 * 32)]
    assert heard(taker, "." * 6) == [TurnPaused(13 * 32), TurnStopped(18 * 32, 13 * 32)]


def test_every_pause_is_told_once_and_ends_when_the_voice_is_back() -> None:
    taker = TurnTaker(TurnSettings(prefix_padding_ms=0), Silence(500))
    assert heard(taker, "##" + "." * 5 + "##") == [TurnStarted(0)]
    assert heard(taker, "." * 10 + "##" + "." * 6) == [TurnPaused(15 * 32), TurnPaused(27 * 32)]
    assert heard(taker, "#") == []
    assert taker.end() == TurnStopped(28 * 32)
    assert heard(taker, "##" + "." * 7) == [TurnStarted(28 * 32), TurnPaused(36 * 32)]
    assert taker.end() == TurnStopped(37 * 32, 36 * 32)


def test_a_backchannel_pauses_the_reply_and_is_forgotten() -> None:
    taker = TurnTaker(TurnSettings(min_speech_ms=400))
    events = heard(taker, "..####" + "." * 7, "r" * 13)
    assert events == [ReplyPaused(), ReplyResumed()]
    assert heard(taker, "#") == [TurnStarted(13 * 32 - 300)]  # no reply is heard: at once


def test_a_voice_that_lasts_takes_the_turn_from_its_very_start() -> None:
    taker = TurnTaker(TurnSettings(min_speech_ms=400, prefix_padding_ms=32))
    events = heard(taker, ".." + "#" * 6 + "..." + "#" * 6, "r" * 40)
    assert events == [ReplyPaused(), TurnStarted(32)]


def test_a_doubt_ends_with_the_reply() -> None:
    taker = TurnTaker(TurnSettings(min_speech_ms=400, prefix_padding_ms=0))
    assert heard(taker, ".####", "rrrr") == [ReplyPaused(), TurnStarted(32)]


def test_somebody_else_ends_a_turn() -> None:
    taker = TurnTaker(TurnSettings(min_speech_ms=400))
    assert taker.end() is None
    heard(taker, "##")
    assert taker.end() == TurnStopped(64)
    assert heard(taker, "##") == [TurnStarted(64)]
    heard(taker, "." * 30)
    heard(taker, "#", "r")
    assert taker.end() == ReplyResumed()


def test_new_settings_meet_a_turn_in_progress() -> None:
    taker = TurnTaker(end_of_turn=Silence(500))
    heard(taker, "####..")
    taker.configure(TurnSettings(), Silence(100))
    assert heard(taker, "..") == [TurnStopped(8 * 32)]


def test_any_threshold_knows_silence() -> None:
    taker = TurnTaker(TurnSettings(threshold=0.05), Silence(64))
    found = [taker.observe(p) for p in (0.06, 0.02, 0.0, 0.0)]
    assert [type(event) for event in found if event] == [TurnStarted, TurnStopped]


@given(PROBABILITIES, st.sampled_from([0.3, 0.5, 0.8]), st.integers(2, 12))
def test_without_a_minimum_turns_are_silero_s(probabilities: list[float], threshold: float, n: int) -> None:
    taker = TurnTaker(TurnSettings(threshold, prefix_padding_ms=0), Silence(n * FRAME_MS))
    events = [taker.observe(p, reply_is_heard=True) for p in probabilities]
    ours = [
        ("start", event.audio_start_ms) if isinstance(event, TurnStarted) else ("end", event.audio_end_ms)
        for event in events
        if isinstance(event, TurnStarted | TurnStopped)
    ]
    assert ours == silero(probabilities, threshold, n * FRAME_MS)


class Turns(RuleBasedStateMachine):
    """Any voice over any reply, under any settings: turns alternate, never overlap, and lose no voice."""

    @initialize(
        padding=st.sampled_from([0, 32, 300]),
        minimum=st.sampled_from([0, 100, 400]),
        semantic=st.booleans(),
    )
    def begin(self, padding: int, minimum: int, semantic: bool) -> None:
        self.minimum = minimum
        rule = Semantic("high") if semantic else Silence(200)
        self.taker = TurnTaker(TurnSettings(0.5, padding, minimum), rule)
        self.now = self.last_end = 0
        self.start: int | None = None
        self.said_end: int | None = None
        self.is_paused = False

    @rule(
        probability=st.sampled_from([0.0, 0.4, 0.9]),
        reply=st.booleans(),
        count=st.integers(1, 30),
    )
    def frames(self, probability: float, reply: bool, count: int) -> None:
        for _ in range(count):
            event = self.taker.observe(probability, reply)
            self.now += FRAME_MS
            self.check(event)
            if probability == 0.9:
                assert self.start is not None or self.is_paused, "a voice is in a turn, or in doubt"
            if not reply:
                assert not self.is_paused or self.taker.phase.value == "doubtful"

    @rule()
    def ends(self) -> None:
        self.check(self.taker.end())
        assert self.start is None
        assert not self.is_paused

    def check(self, event: TurnEvent | None) -> None:
        match event:
            case TurnStarted():
                assert self.start is None
                assert self.last_end <= event.audio_start_ms < self.now
                self.start, self.is_paused = event.audio_start_ms, False
            case TurnStopped():
                assert self.start is not None
                assert self.start < event.audio_end_ms == self.now
                if event.said_end_ms is not None:
                    assert event.said_end_ms == self.said_end
                self.last_end, self.start, self.said_end = event.audio_end_ms, None, None
            case TurnPaused():
                assert self.start is not None
                assert self.said_end != event.said_end_ms == self.now
                assert event.said_end_ms - PAUSE_MS > self.start
                self.said_end = event.said_end_ms
            case TurnContinued():
                assert self.start is not None
                assert self.start + CONTINUED_MS <= event.so_far_ms == self.now
            case ReplyPaused():
                assert self.start is None
                assert not self.is_paused
                assert self.minimum
                self.is_paused = True
            case ReplyResumed():
                assert self.is_paused
                self.is_paused = False
            case None:
                pass


TestTurns = Turns.TestCase
