"""In which order sessions need their KV again: by example, and against a plain scan of everybody."""

from __future__ import annotations

from math import isnan, nan

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from antiphon.core.facts import (
    ItemCut,
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    ResponseCancelled,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
    TurnAdvised,
)
from interaction.people import People


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


def test_who_looks_changes_nothing() -> None:
    """Of two that were expected and are not any more, the one that is expected again first comes first."""
    orders = []
    for looks in (False, True):
        people = People("s", "t")
        for session in ("s", "t"):
            people.tell(TurnAdvised(session, "history", 1.0), 0.0)
        if looks:
            assert people.next_use.due_s("s", 5.0) == 9.0, "overdue for 4 s"
            assert not people.next_use.is_expected("s", 5.0)
        for session in ("t", "s"):
            people.tell(TurnAdvised(session, "history", 1.0), 6.0)
        orders.append([*people.next_use.expected(6.5)])
    assert orders == [["t", "s"]] * 2


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
