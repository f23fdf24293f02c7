"""People come back to a node that keeps most of them on the host, while copies lag and break off."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import (
    ItemAdded,
    ItemCut,
    PersonFact,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
    TurnAdvised,
)
from assembly.test_node_properties import live
from fakes import toy
from fakes.early import WriteEarly
from fakes.machine import Turning
from fakes.whims import whims_of
from fakes.world import HURRIED, READERS, World, toy_config

PEOPLE = tuple("abcdef")
people = st.sampled_from(PEOPLE)
SIGNALS = SpeechStarted, SpeechEnded, TurnAdvised
SAME = "all of us begin with these very words before we say what only one of us would say"


class Returning(Turning):
    """A few people, each with a conversation that goes on until it is full and then begins anew."""

    preset = "baseline"
    rate: float | None = None
    """Tokens a second that everybody reads of what is written."""

    @initialize(
        depth=st.integers(0, 1),
        lags=st.booleans(),
        rows=st.integers(1, 3),
        blocks=st.sampled_from([20, 26, 32]),
        host_blocks=st.sampled_from([4, 20, 200]),
        step_tokens=st.sampled_from([3, 8, 40]),
        copy_lag=st.integers(0, 4),
        layer_groups=st.sampled_from([(), (("low", 0, 1), ("high", 1, 2))]),
        is_early=st.booleans(),
    )
    def begin(self, depth: int, lags: bool, copy_lag: int, is_early: bool, **sizes: Any) -> None:
        self.world = World(toy_config(preset=self.preset, **sizes), depth, lags=lags, copy_lag=copy_lag)
        self.whims = [whims_of(scheduler) for scheduler in self.world.node.stages.ar.values()]
        if is_early:
            for scheduler in self.world.node.stages.ar.values():
                WriteEarly.take_over(scheduler)
        self.last: dict[str, str] = {}
        self.count = 0
        for person in PEOPLE:
            self.world.send(SessionOpened(person))

    @rule(person=people, same=st.booleans(), tone=st.integers(0, 2), speech=st.booleans())
    def say(self, person: str, same: bool, tone: int, speech: bool) -> None:
        """The next turn; the first one may begin as everybody's does."""
        self.count += 1
        name = f"{person}{self.count}"
        if same and person not in self.last:
            parts = (TextPart(SAME), toy.tone(0), TextPart(name))
        else:
            parts = (TextPart(f"{name} says so"), *((toy.tone(tone),) if tone else ()))
        self.world.send(ItemAdded(person, Item(name, "user", parts)))
        asked = ResponseRequested(person, name, f"reply-{name}", speech=speech, retention=0.8, rate=self.rate)
        self.world.send(asked)
        self.last[person] = name

    @rule(who=st.lists(people, min_size=2, max_size=8), failing=st.integers(0, 6), speech=st.booleans())
    def talk_in_turns(self, who: list[str], failing: int, speech: bool) -> None:
        """One after the other, so that most of them are evicted meanwhile."""
        for number, person in enumerate(who):
            self.say(person, same=number % 2 == 0, tone=number % 3, speech=speech)
            self.world.mover.num_failing = failing if number % 2 else 0
            self.world.run()
        self.world.mover.num_failing = 0

    @rule(person=people, keep=st.integers(0, 4), ends=st.booleans())
    def interrupt(self, person: str, keep: int, ends: bool) -> None:
        if person in self.last:
            name = self.last[person]
            if ends:
                self.world.send(ResponseCancelled(person, name, keep_tokens=keep))
            self.world.send(SpeechStarted(person), ItemCut(person, f"reply-{name}", keep))

    @rule(person=people, signals=st.lists(st.sampled_from(SIGNALS), min_size=1, max_size=3))
    def announce(self, person: str, signals: list[type[PersonFact]]) -> None:
        """The next turn may be coming."""
        self.world.send(*(signal(person) for signal in signals))

    @rule(person=people, keeps_kv=st.booleans())
    def begin_anew(self, person: str, keeps_kv: bool) -> None:
        self.last.pop(person, None)
        self.world.send(SessionClosed(person, keeps_kv))
        self.world.turn()
        self.world.send(SessionOpened(person))

    @rule(victims=st.lists(st.integers(0, 2), min_size=1, max_size=2), stage=st.integers(0, 1))
    def preempt(self, victims: list[int], stage: int) -> None:
        self.whims[stage].victims = victims
        self.world.node.stages.reopen()  # the policy has changed its mind
        self.world.turn()

    @property
    def open_sessions(self) -> list[str]:
        return [*PEOPLE]

    def check_rested(self) -> None:
        for heard in self.world.responses.values():
            assert heard.end.reason != "stage_failed", "a copy that breaks off is nobody's end"
        tiers = [ar.tiers for ar in self.world.node.stages.ar.values()]
        event(f"written {any(one.writes.num_written_blocks for one in tiers)}")
        event(f"reloaded {any(one.fetches.num_fetched_blocks for one in tiers)}")
        event(f"broken {self.world.mover.num_failed > 0}")


class Listened(Returning):
    """The same, by what people hear."""

    preset = HURRIED

    def check_rested(self) -> None:
        super().check_rested()
        for scheduler in self.world.node.stages.ar.values():
            for name, count in scheduler.tiers.asks.policies.fetch.policy.events.items():  # type: ignore[attr-defined]
                event(f"{name} {count > 0}")


class Read(Returning):
    """The same, by what people have left to read."""

    preset = READERS
    rate = 20.0

    def check_rested(self) -> None:
        super().check_rested()
        for scheduler in self.world.node.stages.ar.values():
            for name, count in scheduler.tiers.asks.policies.fetch.policy.events.items():  # type: ignore[attr-defined]
                event(f"{name} {count > 0}")
        overruled = [one for one in self.world.node.guard.overruled if one.policy == "token-buffer"]
        assert not overruled, "the policy says what cannot be done"


@pytest.mark.timeout(600)
def test_people_come_back_and_what_they_have_left_to_read_decides() -> None:
    run_state_machine_as_test(Read, settings=live(5, 40))


@pytest.mark.timeout(600)
def test_people_come_back_and_what_they_hear_decides() -> None:
    run_state_machine_as_test(Listened, settings=live(5, 40))


@pytest.mark.timeout(600)
def test_people_come_back() -> None:
    run_state_machine_as_test(Returning, settings=live(5, 40))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("people", "examples"), [(Returning, 600), (Listened, 100), (Read, 100)])
def test_people_come_back_for_long(people: type[Returning], examples: int) -> None:
    run_state_machine_as_test(people, settings=live(examples, 150))
