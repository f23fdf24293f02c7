"""What an admission policy refuses ends at the door, and its client is told when to come back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import nan

import pytest

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened
from antiphon.policy.base import Candidate, Refuse, StepView, Tier
from fakes import toy
from fakes.world import Heard, World, toy_config


@dataclass
class Door:
    """Refuses as it is told, and keeps what it was asked."""

    name: str = "door"
    refuse: Refuse | None = None
    asked: list[Candidate] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    def decide(self, view: StepView, candidate: Candidate, now: float) -> Refuse | None:
        self.asked.append(candidate)
        self.waiting.append(len(view.row))
        return self.refuse


def ask(world: World, session: str, tier: str = "latency") -> Heard:
    said = (TextPart("hello there"), toy.tone(1))
    world.send(SessionOpened(session), ItemAdded(session, Item("u", "user", said)))
    world.send(ResponseRequested(session, session, "reply", codes=True, tier=tier))  # type: ignore[arg-type]
    return world.responses[session, session]


@pytest.mark.parametrize("wait_s", [4.25, nan])
def test_a_refused_response_fails_once_and_leaves_nothing(wait_s: float) -> None:
    world, door = World(toy_config()), Door(refuse=Refuse("the queue is long", wait_s, 7.0))
    world.entry._policies = replace(world.entry._policies, admission=door)
    heard = ask(world, "s")
    world.run()
    assert heard.end is not None
    assert (heard.end.status, heard.end.reason, heard.end.retry_s) == ("failed", "server_overloaded", 7.0)
    wait = " The reply would begin in 4.2 s." if wait_s == 4.25 else ""
    assert heard.end.message == f"No room now: the queue is long.{wait} Try again in 7 s."
    assert not heard.text
    assert len(door.asked) == 1
    door.refuse = None
    heard = ask(world, "again")
    world.run()
    world.check(heard)


def test_each_response_is_asked_for_once_with_what_it_needs() -> None:
    world, door = World(toy_config(rows=1)), Door()
    world.entry._policies = replace(world.entry._policies, admission=door)
    heard = [ask(world, "a"), ask(world, "b", "best_effort")]
    world.run()
    for each in heard:
        world.check(each)
    assert [one.tier for one in door.asked] == [Tier.LATENCY, Tier.BEST_EFFORT]
    assert [one.tokens for one in door.asked] == [len(each.prompts["thinker"].token_ids) for each in heard]
    assert all(0 <= one.cached < one.tokens for one in door.asked)
    assert door.waiting[0] == 0
