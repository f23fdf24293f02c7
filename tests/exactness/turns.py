"""Conversations of several turns, checked against the reference reply by reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from antiphon.core.conversation import Item
from exactness.conftest import World, user
from exactness.talk import Talk
from exactness.test_reference import check


class Turns:
    """Everybody's turns; each reply is checked against the reference on the whole conversation.

    turns  of each person: numbers of contents with media, or words
    """

    turns: ClassVar[Sequence[Sequence[int | str]]]

    def __init__(self, world: World, talk: Talk) -> None:
        self.world, self.talk = world, talk
        self.items: list[list[Item]] = [[] for _ in self.turns]
        self._people = [str(person) for person in range(len(self.turns))]
        for person in self._people:
            talk.open(person)

    def ask(self, person: int, turn: int) -> None:
        asked = self.turns[person][turn]
        content = self.world.contents[asked] if isinstance(asked, int) else asked
        self.items[person].append(user(content, f"user-{turn}"))
        self.talk.add(str(person), self.items[person][-1])
        self.talk.ask(str(person), f"{person}-{turn}")

    def check(self, person: int, turn: int) -> None:
        said = self.talk.said[f"{person}-{turn}"]
        check(said, self.world.expect(tuple(self.items[person])), self.world.eos)
        sessions = self.talk.driver.node._orchestrator._sessions
        self.items[person].append(sessions.record(str(person)).items[-1])

    def finish(self) -> None:
        self.talk.close(*self._people)
        self.talk.run()
