"""When a session's KV will be needed again: by example, and against a plain scan of everybody."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from antiphon.core.facts import (
    Fact,
    ItemCut,
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
    TurnAdvised,
)
from antiphon.core.plans import AudioOut, Output, ResponseEnded, Usage
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor
from antiphon.interaction.next_use import (
    LEAST_S,
    LONGEST_S,
    MOST_STALE_S,
    NEAR_S,
    REPLY_S,
    SPEECH_S,
    STALE_S,
    TOKEN_S,
    WARM_S,
    NextUse,
)


class People:
    """What a node does with facts and outputs."""

    def __init__(self, *sessions: str) -> None:
        self.frontier = Frontier(3, 0.08)
        self.monitor = Monitor(self.frontier)
        self.next_use = NextUse(self.monitor, self.frontier)
        self.order = self.next_use.order()
        for session in sessions:
            self.tell(SessionOpened(session), 0.0)

    def tell(self, fact: Fact, now: float) -> None:
        self.monitor.observe(fact, now)
        self.next_use.observe(fact, now)
        self.next_use.check_integrity()

    def hear(self, output: Output, now: float) -> None:
        self.monitor.hear([output], now)
        self.next_use.hear([output], now)
        self.next_use.check_integrity()

    def ask(self, now: float, session: str = "s", response: str = "r", remember: bool = True) -> None:
        self.tell(ResponseRequested(session, response, f"item-{response}", remember=remember), now)

    def write(self, tokens: int, session: str = "s", response: str = "r") -> None:
        slot = self.monitor.slot(session, response)
        assert slot is not None
        self.frontier.make(0, slot, tokens)

    def sound(self, seconds: float, now: float, session: str = "s", response: str = "r") -> None:
        self.hear(AudioOut(session, response, bytes(4 * round(24_000 * seconds))), now)

    def end(self, now: float, session: str = "s", response: str = "r", status: str = "completed") -> None:
        self.hear(ResponseEnded(session, response, status, "", "", Usage()), now)

    def farthest(self, now: float, *here: str) -> list[str]:
        """Of those `here`, or of all."""
        here = here or tuple(self.monitor.sessions)
        return [*self.next_use.farthest(self.order, here, now)]

    def due_s(self, now: float, session: str = "s") -> float:
        return self.next_use.due_s(session, now)

    def reply(self, now: float, seconds: float, session: str = "s", response: str = "r") -> None:
        """Asked for, and whole at once."""
        self.ask(now, session, response)
        self.sound(seconds, now, session, response)
        self.end(now, session, response)


def test_due_once_the_reply_is_played_and_answered() -> None:
    people = People("s")
    assert isnan(people.due_s(0.0))
    people.ask(1.0)
    assert people.due_s(1.5) == pytest.approx(1.5 + LEAST_S), "it is needed now"
    assert [*people.next_use.expected(1.5)] == ["s"]
    people.sound(2.0, 2.0)
    people.end(2.0)
    assert people.due_s(2.0) == pytest.approx(2.0 + 2.0 + REPLY_S)
    assert people.due_s(4.0) == pytest.approx(8.0)


@pytest.mark.parametrize("for_s", [0.0, 5.0, 20.0])
def test_reports_go_on_after_the_reply_is_played_and_say_no_more_of_it(for_s: float) -> None:
    """A client may report by a timer, and not only while it plays."""
    people = People("s")
    people.reply(0.0, 5.0)
    at = 0.5
    while at <= for_s:
        people.tell(PlaybackReported("s", "r", min(at, 5.0)), at)
        at += 0.5
    assert people.due_s(20.0) == pytest.approx(20.0 + abs(5.0 + REPLY_S - 20.0), abs=STALE_S)
    people.tell(SpeechStarted("s"), 18.0)
    people.ask(25.0, response="next")
    people.reply(100.0, 5.0, response="last")
    assert people.due_s(100.0) > 105.0 + REPLY_S + 1.0, "20 s went by since the first was heard"


def test_length_is_what_was_written_and_not_what_was_sent() -> None:
    """Under pacing little is sent ahead; 40 tokens are ten seconds all the same."""
    people = People("s")
    people.ask(0.0)
    people.write(40)
    people.sound(1.0, 1.0)
    expected = 1.0 + 40 * TOKEN_S + REPLY_S
    assert people.due_s(1.0) == pytest.approx(expected)
    people.sound(1.0, 1.9)
    assert people.due_s(1.9) == pytest.approx(expected)
    for second in range(1, 9):
        people.sound(1.0, 1.9 + second)
    people.end(10.0)
    assert people.due_s(10.0) == pytest.approx(expected, abs=STALE_S)


def test_the_pace_at_which_words_are_spoken_is_learnt() -> None:
    people = People("s")
    for number in range(200):
        name = f"r{number}"
        people.ask(10.0 * number, response=name)
        people.write(10, response=name)
        people.sound(4.0, 10.0 * number, response=name)
        people.end(10.0 * number, response=name)
    people.ask(3000.0)
    people.write(30)
    people.sound(1.0, 3000.0)
    played_s = people.due_s(3000.0) - people.next_use._sessions["s"].reply.value - 3000.0
    assert played_s == pytest.approx(12.0, abs=0.1)


def test_each_person_has_a_pace_of_their_own_and_newcomers_everybodys() -> None:
    people = People("quick", "slow", "new")
    for number in range(30):
        now = 100.0 * number
        people.reply(now, 1.0, "quick", f"q{number}")
        people.reply(now, 1.0, "slow", f"s{number}")
        for session, at in (("quick", now + 3.0), ("slow", now + 31.0)):
            people.tell(SpeechStarted(session), at - 1.0)
            people.tell(SpeechEnded(session), at)
        people.ask(now + 3.0, "quick", f"qq{number}")
        people.end(now + 3.0, "quick", f"qq{number}")
        people.ask(now + 31.0, "slow", f"ss{number}")
        people.end(now + 31.0, "slow", f"ss{number}")
    for session in ("quick", "slow", "new"):
        people.reply(5000.0, 1.0, session, "last")
    quick, slow, new = (people.due_s(5000.0, session) - 5001.0 for session in ("quick", "slow", "new"))
    assert quick < new < slow


def test_who_breaks_in_tells_nothing_of_how_long_people_take() -> None:
    people = People("s")
    people.ask(0.0)
    people.sound(20.0, 1.0)
    people.tell(SpeechStarted("s"), 5.0)
    people.tell(ResponseCancelled("s", "r"), 5.1)
    people.end(5.1, status="cancelled")
    people.tell(ItemCut("s", "item-r", 3), 5.1)
    people.tell(SpeechEnded("s"), 6.0)
    people.ask(6.0, response="again")
    people.end(6.0, response="again", status="failed")
    assert people.due_s(6.0) == pytest.approx(6.0 + REPLY_S), "and one that failed is due all the same"


def test_who_takes_longer_than_usual_will_take_longer_still() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    due = 1.0 + REPLY_S
    assert people.due_s(due + 7.0) == pytest.approx(due + 14.0)


def test_a_report_of_playback_moves_it() -> None:
    people = People("s")
    people.reply(0.0, 10.0)
    people.tell(PlaybackReported("s", "r", 1.0), 6.0)
    assert people.due_s(6.0) == pytest.approx(6.0 + 9.0 + REPLY_S)
    people.tell(ItemCut("s", "item-r", 1), 7.0)
    assert people.due_s(7.0) == pytest.approx(7.0 + REPLY_S)


def test_whose_voice_is_heard_is_expected_until_the_turn_is_there_or_comes_to_nothing() -> None:
    people = People("s", "t")
    people.reply(0.0, 1.0)
    people.reply(0.0, 9.0, "t", "q")
    people.tell(SpeechStarted("s"), 4.0)
    people.tell(SpeechStarted("t"), 5.0)
    assert [*people.next_use.expected(5.0)] == ["s", "t"]
    assert people.farthest(5.0) == []
    assert people.due_s(4.0) == pytest.approx(4.0 + SPEECH_S)
    assert people.due_s(50.0) == pytest.approx(50.0 + LEAST_S), "at any moment"
    people.tell(SpeechEnded("s"), 50.0)
    assert [*people.next_use.expected(50.0 + WARM_S)] == ["s", "t"]
    assert [*people.next_use.expected(50.1 + WARM_S)] == ["t"]
    assert people.farthest(50.1 + WARM_S) == ["s"]
    people.ask(55.0, "t", "more")
    assert [*people.next_use.expected(55.0)] == ["t"], "until something of the reply is heard"
    people.sound(1.0, 56.0, "t", "more")
    assert [*people.next_use.expected(56.0)] == []


def test_a_voice_that_came_to_nothing_tells_nothing_of_the_next_turn() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(SpeechStarted("s"), 4.0)
    people.tell(SpeechEnded("s"), 4.2)
    people.ask(600.0, response="typed")
    people.sound(1.0, 601.0, response="typed")
    people.tell(SpeechStarted("s"), 610.0)
    assert people.due_s(610.0) == pytest.approx(610.0 + SPEECH_S)


@pytest.mark.parametrize("reports", [False, True], ids=["no-reports", "reports"])
def test_a_cough_during_a_reply_leaves_the_next_turn_due_after_it(reports: bool) -> None:
    people = People("s")
    people.reply(0.0, 40.0)
    due_s = people.due_s(1.0)
    people.tell(SpeechStarted("s"), 1.0)
    people.tell(SpeechEnded("s"), 1.4)
    if reports:
        people.tell(PlaybackReported("s", "r", 1.4), 1.4)
    for now in (1.4 + WARM_S + 0.1, 20.0):
        assert people.due_s(now) == pytest.approx(due_s, abs=MOST_STALE_S)


def test_another_reply_that_is_cancelled_changes_nothing() -> None:
    people = People("s")
    people.reply(0.0, 30.0)
    due_s = people.due_s(1.0)
    people.tell(ResponseCancelled("s", "beside"), 1.0)
    assert people.due_s(1.0) == due_s


def test_who_is_never_done_is_expected_for_a_while_only() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(SpeechStarted("s"), 4.0)
    assert [*people.next_use.expected(4.0 + LONGEST_S)] == ["s"]
    assert [*people.next_use.expected(4.1 + LONGEST_S)] == []


def test_who_spoke_for_longer_than_that_is_expected_again_once_they_are_done() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(SpeechStarted("s"), 4.0)
    before = people.next_use._sessions["s"].turn.value
    people.tell(SpeechEnded("s"), 204.0)
    assert [*people.next_use.expected(204.0 + WARM_S)] == ["s"]
    people.ask(204.5, response="next")
    assert before < people.next_use._sessions["s"].turn.value < LONGEST_S


def test_a_turn_may_be_announced_by_who_began_to_speak_and_was_never_done() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(SpeechStarted("s"), 4.0)
    people.tell(TurnAdvised("s", expected_s=1.0), 100.0)
    assert [*people.next_use.expected(100.0)] == ["s"]


def test_what_has_left_a_tier_is_forgotten_there_until_it_rests_there_again() -> None:
    people = People("a", "b", "c")
    for at, session in enumerate("abc"):
        people.reply(0.0, 1.0 + at, session, f"r-{session}")
    assert people.farthest(2.0, "a", "b") == ["b", "a"]
    assert people.farthest(2.0) == ["b", "a"], "the third is not looked for any more"
    people.next_use.rests("c", people.order)
    assert people.farthest(2.0) == ["c", "b", "a"]
    assert people.farthest(30.0) == ["a", "b", "c"], "overdue"
    people.next_use.rests("stranger", people.order)
    assert people.farthest(2.0) == ["c", "b", "a"]


def test_a_turn_may_be_announced() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(TurnAdvised("s", expected_s=3.0), 10.0)
    assert people.due_s(10.0) == pytest.approx(13.0)
    assert [*people.next_use.expected(13.0 + WARM_S)] == ["s"]
    assert [*people.next_use.expected(13.1 + WARM_S)] == []
    people.tell(TurnAdvised("s"), 20.0)
    assert people.due_s(20.0) == pytest.approx(20.0 + SPEECH_S)
    people.tell(SpeechStarted("s"), 21.0)
    people.tell(TurnAdvised("s", expected_s=900.0), 21.5)
    assert people.due_s(21.5) == pytest.approx(21.0 + SPEECH_S), "the voice itself says more"


def test_who_takes_longer_than_usual_is_overdue_until_the_next_turn_is_coming() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    due_s = people.due_s(2.0)
    late = people.next_use.overdue_s
    assert [late("s", due_s - 1.0), late("s", due_s + 4.0), late("stranger", 5.0)] == [0.0, 4.0, 0.0]
    people.tell(SpeechStarted("s"), due_s + 5.0)
    assert late("s", due_s + 5.0) == 0.0


def test_a_turn_that_is_likelier_not_to_come_is_not_expected() -> None:
    people = People("s", "t")
    people.reply(0.0, 1.0)
    due_s = people.due_s(10.0)
    people.tell(TurnAdvised("s", expected_s=3.0, confidence=0.49), 10.0)
    people.tell(TurnAdvised("t", expected_s=3.0, confidence=0.5), 10.0)
    assert [*people.next_use.expected(10.0)] == ["t"]
    assert people.due_s(10.0) == due_s


def test_who_renews_an_expectation_for_ever_keeps_no_place_before_others() -> None:
    people = People("a", "b", "c")
    people.tell(TurnAdvised("a", expected_s=1.0), 0.0)
    people.tell(SpeechStarted("b"), 0.0)
    for at in range(1, int(LONGEST_S) + 5):
        people.tell(TurnAdvised("a", expected_s=1.0), float(at))
        people.tell(SpeechEnded("b"), float(at))
        people.tell(SpeechStarted("b"), float(at))
        if at == 10:
            people.tell(SpeechStarted("c"), float(at))
    assert next(people.next_use.expected(LONGEST_S + 5.0)) == "c"


@pytest.mark.parametrize(("expected_s", "is_expected"), [(5.0, True), (90.0, False)])
def test_a_turn_announced_while_a_reply_is_sent_stays_announced(expected_s: float, is_expected: bool) -> None:
    people = People("s")
    people.ask(0.0)
    people.sound(1.0, 1.0)
    people.tell(TurnAdvised("s", expected_s=expected_s), 1.5)
    people.sound(1.0, 1.7)
    assert people.next_use.is_expected("s", 1.8) == is_expected
    assert people.due_s(1.8) == pytest.approx(1.5 + expected_s)


def test_a_turn_announced_long_before_is_expected_only_when_it_is_near() -> None:
    people = People("s", "t")
    people.reply(0.0, 1.0)
    people.reply(0.0, 1.0, "t", "q")
    people.tell(TurnAdvised("s", expected_s=3600.0), 10.0)
    due_at = 3610.0
    assert people.due_s(10.0) == pytest.approx(due_at), "it is kept by when it is due"
    assert people.farthest(10.0) == ["s", "t"]
    assert people.next_use.expects_at(10.0) == due_at - NEAR_S
    people.tell(TurnAdvised("t", expected_s=NEAR_S + 5), 11.0)
    assert people.next_use.expects_at(11.0) == pytest.approx(16.0)
    assert [*people.next_use.expected(15.9)] == []
    assert [*people.next_use.expected(16.1)] == ["t"]
    assert people.next_use.is_expected("t", 16.1)
    people.tell(TurnAdvised("t", expected_s=900.0), 17.0)
    assert people.due_s(17.0, "t") == pytest.approx(26.0), "what is near already stands"
    assert [*people.next_use.expected(26.1 + WARM_S)] == []
    assert [*people.next_use.expected(due_at)] == ["s"]
    assert people.next_use.expects_at(due_at) == inf


def test_an_announcement_that_is_not_near_may_be_put_off() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(TurnAdvised("s", expected_s=30.0), 10.0)
    people.tell(TurnAdvised("s", expected_s=90.0), 11.0)
    assert [*people.next_use.expected(40.0)] == []
    assert [*people.next_use.expected(101.0)] == ["s"]


def test_a_cut_or_report_of_what_is_not_being_played_changes_nothing() -> None:
    people = People("s")
    people.reply(0.0, 1.0, response="before")
    people.reply(5.0, 30.0)
    due_s = people.due_s(6.0)
    people.tell(ItemCut("s", "item-before", 1), 6.0)
    people.tell(PlaybackReported("s", "before", 0.5), 6.0)
    assert people.due_s(6.0) == due_s


def test_a_client_that_is_farther_than_was_thought_is_due_sooner() -> None:
    """What is still to be sent comes after its buffer all the same: 40 tokens are ten seconds."""
    people = People("s")
    people.ask(0.0)
    people.write(40)
    people.sound(4.0, 1.0)
    people.tell(PlaybackReported("s", "r", 3.0), 2.0)
    assert people.due_s(2.0) == pytest.approx(2.0 + 1.0 + (40 * TOKEN_S - 4.0) + REPLY_S)


def test_what_is_held_back_is_heard_once_it_is_released() -> None:
    people = People("s")
    people.ask(0.0)
    people.sound(1.0, 1.0)
    due_s = people.due_s(1.0)
    people.tell(OutputHeld("s", "r"), 1.5)
    people.sound(9.0, 1.6)
    people.end(1.6)
    assert people.due_s(1.6) == due_s, "nobody has it"
    people.tell(OutputReleased("s", "r"), 3.0)
    assert people.due_s(3.0) == pytest.approx(3.0 + 9.0 + REPLY_S)


def test_a_release_before_anything_was_heard_leaves_it_expected() -> None:
    people = People("s")
    people.ask(0.0)
    people.tell(OutputHeld("s", "r"), 0.5)
    people.tell(OutputReleased("s", "r"), 0.6)
    assert [*people.next_use.expected(0.6)] == ["s"]


def test_a_reply_that_is_cancelled_while_its_end_is_held_back_is_over() -> None:
    """No other end of it will come."""
    people = People("s")
    people.ask(0.0)
    people.tell(OutputHeld("s", "r"), 0.5)
    people.sound(9.0, 1.0)
    people.end(1.0)
    assert people.due_s(1.0) == pytest.approx(1.0 + LEAST_S), "its client has nothing of it yet"
    people.tell(ResponseCancelled("s", "r"), 2.0)
    assert people.due_s(2.0) == pytest.approx(2.0 + REPLY_S)
    assert [*people.next_use.expected(2.0)] == []


def test_what_runs_beside_the_conversation_and_strangers_change_nothing() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.ask(2.0, response="beside", remember=False)
    assert people.due_s(2.0) == pytest.approx(1.0 + REPLY_S)
    people.tell(SpeechStarted("stranger"), 2.0)
    assert [*people.next_use.expected(2.0)] == []
    assert isnan(people.due_s(2.0, "stranger"))


def test_what_runs_beside_a_turn_that_waits_for_its_reply_leaves_it_expected() -> None:
    """The transcription of what was said ends before the reply has begun."""
    people = People("s")
    people.reply(0.0, 1.0)
    people.ask(3.0, response="reply")
    people.ask(3.0, response="beside", remember=False)
    people.end(3.2, response="beside")
    assert [*people.next_use.expected(3.2)] == ["s"]
    people.sound(1.0, 3.4, response="reply")
    assert [*people.next_use.expected(3.4)] == []


class Everybody(RuleBasedStateMachine):
    """Any facts in any order: the order is that of a scan."""

    names = st.sampled_from("abcde")

    def __init__(self) -> None:
        super().__init__()
        self.people = People(*"abcde")
        self.now = 0.0
        self.count = 0
        self.last: dict[str, str] = {}

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(who=names, tokens=st.integers(0, 60), seconds=st.sampled_from([0.0, 0.5, 12.0]))
    def reply(self, who: str, tokens: int, seconds: float) -> None:
        self.count += 1
        name = self.last[who] = f"r{self.count}"
        self.people.ask(self.now, who, name)
        self.people.write(tokens, who, name)
        if seconds:
            self.people.sound(seconds, self.now, who, name)

    @rule(who=names, status=st.sampled_from(["completed", "cancelled", "failed"]))
    def end(self, who: str, status: str) -> None:
        if who in self.last:
            self.people.end(self.now, who, self.last[who], status)

    @rule(who=names, holds=st.booleans())
    def hold(self, who: str, holds: bool) -> None:
        fact = OutputHeld if holds else OutputReleased
        self.people.tell(fact(who, self.last.get(who, "")), self.now)

    @rule(who=names)
    def cancel(self, who: str) -> None:
        self.people.tell(ResponseCancelled(who, self.last.get(who, "")), self.now)

    @rule(who=names, starts=st.booleans())
    def speak(self, who: str, starts: bool) -> None:
        self.people.tell(SpeechStarted(who) if starts else SpeechEnded(who), self.now)

    @rule(who=names, played_s=st.floats(0, 12))
    def report(self, who: str, played_s: float) -> None:
        self.people.tell(PlaybackReported(who, self.last.get(who, ""), played_s), self.now)

    @rule(who=names)
    def cut(self, who: str) -> None:
        self.people.tell(ItemCut(who, f"item-{self.last.get(who)}", 1), self.now)

    @rule(who=names, expected_s=st.sampled_from([nan, 0.0, 5.0, 100.0]))
    def announce(self, who: str, expected_s: float) -> None:
        self.people.tell(TurnAdvised(who, expected_s=expected_s), self.now)

    @rule(who=names)
    def come_anew(self, who: str) -> None:
        self.people.tell(SessionClosed(who), self.now)
        self.people.tell(SessionOpened(who), self.now)
        self.last.pop(who, None)

    @invariant()
    def order_is_that_of_a_scan(self) -> None:
        next_use, now = self.people.next_use, self.now
        expected = [*next_use.expected(now)]
        due = {who: next_use.due_s(who, now) for who in "abcde"}
        listed = [who for who in due if who not in expected and not isnan(due[who])]
        farthest = self.people.farthest(now)
        assert sorted(farthest) == sorted(listed)
        assert [due[who] for who in farthest] == sorted((due[who] for who in listed), reverse=True)
        assert all(at >= now for at in due.values() if not isnan(at))


def test_the_order_is_that_of_a_scan() -> None:
    run_state_machine_as_test(Everybody, settings=settings(max_examples=60, deadline=None))


def test_who_looks_changes_nothing() -> None:
    """Of two that were expected and are not any more, the one that is expected again first comes first."""
    orders = []
    for looks in (False, True):
        people = People("s", "t")
        for session in ("s", "t"):
            people.tell(TurnAdvised(session, "history", 1.0), 0.0)
        if looks:
            assert isnan(people.next_use.due_s("s", 5.0))
            assert not people.next_use.is_expected("s", 5.0)
        for session in ("t", "s"):
            people.tell(TurnAdvised(session, "history", 1.0), 6.0)
        orders.append([*people.next_use.expected(6.5)])
    assert orders == [["t", "s"]] * 2
