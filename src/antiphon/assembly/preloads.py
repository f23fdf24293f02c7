"""Why a session's KV is preloaded for its next turn, or is not, and what became of what was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from antiphon.assembly.story import Story, What
from antiphon.assembly.watched import Watched
from antiphon.core.facts import (
    Fact,
    ResponseRequested,
    SessionClosed,
    SpeechStarted,
    TurnAdvised,
    TurnDropped,
)
from antiphon.flow.stages import Stages
from antiphon.policy.base import Told
from antiphon.policy.memory import KvState
from antiphon.stage.kv_asks import KvMove, KvMoved

WARM = Told("warm", "nothing is to be brought: all of it is on the device")
UNANNOUNCED = "its turn was not announced, and its request waits for it"
BRINGS = "brought", "coming"
"""Classes of KV that is preloaded whole, as `next-use` names them."""
PART, WAITS = "part", "waits"
"""Of KV that is preloaded in part, and of KV that a request waits for."""
ONLY_FIRST = "warm", WAITS, "unknown"
"""Told of a turn only where nothing else was: they follow from what was."""


class Announced:
    """Owner of whose next turn was announced, by voice or by an advisory, and not asked for yet."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()

    def observe(self, fact: Fact) -> None:
        match fact:
            case SpeechStarted():
                self.sessions.add(fact.session)
            case TurnAdvised() if fact.is_likely:
                self.sessions.add(fact.session)
            case ResponseRequested() if fact.remember:
                self.sessions.discard(fact.session)
            case TurnDropped() | SessionClosed():
                self.sessions.discard(fact.session)
            case _:
                pass

    def of(self, view: Any) -> Iterator[str]:
        """Of a unit: those whose next turn is expected and whose past no request reads."""
        expected = (owner for owner in view.expected() if owner in self.sessions)
        yield from (owner for owner in expected if view.state(owner) is not KvState.RUNNING)


def tell(asked: Watched, view: Any, owner: str, now: float) -> Told | None:
    """What the policy that has just decided what is fetched says of an owner's KV."""
    is_lacking = view.num_away(owner) or owner in view.waiting()
    return asked.tell(view, owner, now) if is_lacking else WARM


class PreloadStories:
    """Owner of blocks that were preloaded and that no request has read yet, and of what was told of each turn
    that is coming."""

    def __init__(self, stories: Mapping[str, Story], stages: Stages) -> None:
        self._stories, self._stages = stories, stages
        self._announced = Announced()
        self._unread: dict[tuple[str, str], tuple[int, float]] = {}
        """How many and since when, by unit and session."""
        self._told: dict[tuple[str, str], set[str]] = {}
        """Classes that were told of the turn that is coming, or was asked for last."""
        self._sudden: set[str] = set()
        """Sessions whose last reply was asked for unannounced."""

    # -- what happens --------------------------------------------------------------------------------

    def observe(self, fact: Fact, now: float) -> None:
        """Before the node hears of it."""
        session = getattr(fact, "session", "")
        was_announced = session in self._announced.sessions
        self._announced.observe(fact)
        is_announced = session in self._announced.sessions
        is_sudden = isinstance(fact, ResponseRequested) and fact.remember and not was_announced
        if is_sudden or (is_announced and not was_announced):
            (self._sudden.add if is_sudden else self._sudden.discard)(session)
            for unit in self._stages.ar:
                self._told.pop((unit, session), None)
        if isinstance(fact, SessionClosed):
            for unit in self._stages.ar:
                self._spoil((unit, session), "the session ended before its turn came", now)
                self._told.pop((unit, session), None)
            self._sudden.discard(session)

    def said(self, asked: Watched, view: Any, now: float) -> None:
        """The fetch policy of a unit has answered."""
        waiting = (owner for owner in view.waiting() if not self._told.get((asked.unit, owner)))
        for owner in dict.fromkeys((*self._announced.of(view), *waiting)):
            if owner in self._stories and (told := tell(asked, view, owner, now)) is not None:
                self._tell((asked.unit, owner), told, now)

    def planned(self, now: float) -> None:
        """The call is over: of what was to be brought, nothing may have been ordered."""
        for unit, ar in self._stages.ar.items():
            for owner, why in ar.tiers.fetches.unordered.items():
                if owner in self._announced.sessions and owner in self._stories:
                    self._tell((unit, owner), Told(why, why), now)

    def moved(self, moved: KvMoved, now: float) -> None:
        key = moved.unit, moved.session
        if moved.move is KvMove.PRELOADED:
            before, since = self._unread.get(key, (0, now))
            self._unread[key] = before + moved.num_blocks, since
            self._told.setdefault(key, set()).add(BRINGS[0])
        elif moved.is_evicted and moved.is_past:
            self._spoil(key, "it was evicted before its turn came", now, moved.num_blocks)

    def broke(self, unit: str, session: str, num_blocks: int, now: float) -> None:
        """The copy of blocks that were preloaded failed."""
        self._spoil((unit, session), "its copy failed", now, num_blocks)

    def read(self, unit: str, session: str) -> tuple[int, float] | None:
        """A request goes on from the session's KV: how many blocks of it were preloaded, and since when."""
        return self._unread.pop((unit, session), None)

    # -- what is told --------------------------------------------------------------------------------

    def _tell(self, key: tuple[str, str], told: Told, now: float) -> None:
        """Once a turn, of each class of reasons."""
        kind, before = told.label or told.why, self._told.setdefault(key, set())
        if kind in before or (before and kind in ONLY_FIRST):
            return
        before.add(kind)
        unit, session = key
        why = UNANNOUNCED if kind == WAITS and session in self._sudden else told.why
        if kind not in BRINGS:
            what = What.PART_PRELOADED if kind == PART else What.NOT_PRELOADED
            self._stories[session].add(now, what, unit, reason=why)

    def _spoil(self, key: tuple[str, str], reason: str, now: float, most: int | None = None) -> None:
        """What was preloaded was not read, or so many blocks of it at most."""
        preloaded, since = self._unread.pop(key, (0, 0.0))
        num_blocks = preloaded if most is None else min(preloaded, most)
        if num_blocks < preloaded:
            self._unread[key] = preloaded - num_blocks, since
        if num_blocks:
            (unit, session), after_s = key, now - since
            self._stories[session].add(
                now, What.PRELOAD_UNUSED, unit, reason=reason, blocks=num_blocks, after_s=after_s
            )
