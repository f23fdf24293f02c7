"""Why each request runs, is held or waits, and what became of each session's KV: gathered while people look.

Implements `node.Observer`. What the policies said is kept as they say it (`policy.base.Told`); what a unit
lacks is read as `antiphon explain` reads it (`waits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import msgspec

from antiphon.assembly.observed import Effects
from antiphon.assembly.preloads import WARM, Announced, tell
from antiphon.assembly.story import Cause
from antiphon.assembly.waits import Waits
from antiphon.assembly.watched import Watched
from antiphon.core.facts import CopyDone, CopyFailed, Fact, UnitLost
from antiphon.core.plans import Step
from antiphon.core.snapshot import KvShown
from antiphon.flow.response import ResponseState
from antiphon.flow.stages import Stages
from antiphon.policy.base import Told
from antiphon.stage.kv_asks import KvMove, KvMoved

TELL_EVERY_S = 0.1
"""A policy is asked again for words about the same request or owner this often at most."""
SILENT = Told("", "")


class Reasons:
    """Owner of what policies told, and of the last moves of each session's KV."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._waits = Waits()
        self._now = 0.0
        self._asked_at: dict[tuple[str, str], float] = {}
        self._told: dict[tuple[str, str], dict[int | str, Told]] = {}
        """By decision and unit, then by request, or by owner of KV."""
        self._moved: dict[tuple[str, str], KvShown] = {}
        """By unit and session, as is the next."""
        self._preloads: dict[tuple[str, str], KvShown] = {}
        self._coming: dict[int, KvMoved] = {}
        """Preloads whose copies are under way, by ticket."""
        self._announced = Announced()

    # -- what happens --------------------------------------------------------------------------------

    def observe(self, fact: Fact, now: float) -> None:
        """Before anything is decided about it."""
        self._now = now
        self._waits.observe(fact)
        self._announced.observe(fact)
        match fact:
            case CopyDone():
                self._coming.pop(fact.ticket, None)
            case CopyFailed():
                broken = self._coming.get(fact.ticket)
                if broken is not None:
                    self._coming = {at: one for at, one in self._coming.items() if one is not broken}
                    self._lost((broken.unit, broken.session), broken.num_blocks)
            case UnitLost():
                self._coming = {at: one for at, one in self._coming.items() if one.unit != fact.unit}
            case _:
                pass

    def said(self, asked: Watched, view: Any, answer: Any, now: float) -> None:
        """A policy has answered."""
        self._now = now
        self._waits.said(asked.decision, asked.unit, view, answer)
        match asked.decision:
            case "step":
                self._ask(asked, view, range(len(view.request)), view.request.tolist())
            case "pace":
                held: list[int] = [] if answer.held is None else answer.held.nonzero()[0].tolist()
                self._ask(asked, view, held, view.request[held].tolist())
            case "fetch":
                lacking = (owner for owner in view.expected() if view.num_away(owner))
                owners = [*dict.fromkeys((*lacking, *self._announced.of(view)))]
                self._ask(asked, view, owners, owners, tell)
            case _:
                pass

    def _ask(
        self,
        asked: Watched,
        view: Any,
        ones: Sequence[Any],
        names: Sequence[int | str],
        tell: Callable[[Watched, Any, Any, float], Told | None] = Watched.tell,
    ) -> None:
        key = asked.decision, asked.unit
        if not 0 < self._now - self._asked_at.get(key, -TELL_EVERY_S) < TELL_EVERY_S:
            self._asked_at[key], self._told[key] = self._now, {}
        told = self._told[key]
        for one, name in zip(ones, names, strict=True):
            if name not in told:
                told[name] = tell(asked, view, one, self._now) or SILENT

    def differed(self, unit: str, would: Effects, did: Effects, reason: str) -> None:
        """What is shown is what was done."""

    def moved(self, moved: KvMoved) -> None:
        """Blocks of a session's KV go somewhere. What rests under another name than the session's is not its
        past, and was not preloaded for its turn."""
        move, num_blocks = moved.move, moved.num_blocks
        key = moved.unit, moved.session
        why = moved.told.why if moved.told else self._waits.because(move, moved.unit)
        if move is KvMove.PRELOADED:
            preload = self._preloads.get(key)
            is_open = preload is not None and preload.what == move
            before = preload.blocks if preload is not None and is_open else 0
            self._preloads[key] = KvShown(move, before + num_blocks, why, self._now)
            self._coming.update(dict.fromkeys(moved.tickets, moved))
            return
        last = self._moved.get(key)
        if move is KvMove.COPIED and last is not None and last.at == self._now:
            why = last.why  # why it left the device
        self._moved[key] = KvShown(move, num_blocks, why, self._now)
        if moved.is_evicted and moved.is_past:
            self._lost(key, num_blocks)

    def joined(self, unit: str, session: str) -> None:
        """A request has a row that goes on from the session's KV, and reads what is there."""
        self._settle((unit, session), "used")

    def _lost(self, key: tuple[str, str], num_blocks: int) -> None:
        """So many of the session's last blocks are gone. If they were preloaded, they were not read."""
        preload = self._preloads.get(key)
        if preload is None or preload.what != KvMove.PRELOADED:
            return
        if num_blocks < preload.blocks:  # the last ones leave first, and they came last
            self._preloads[key] = msgspec.structs.replace(preload, blocks=preload.blocks - num_blocks)
        else:
            self._settle(key, "unused")

    def _settle(self, key: tuple[str, str], outcome: str) -> None:
        preload = self._preloads.get(key)
        if preload is not None and preload.what == KvMove.PRELOADED:
            self._preloads[key] = msgspec.structs.replace(preload, what=outcome, at=self._now)

    def planned(self, steps: Iterable[Step]) -> None:
        """The call is over."""
        self._waits.planned(steps, self._stages)

    def keep(self, sessions: Set[str]) -> None:
        """All others are closed."""
        self._moved = {key: one for key, one in self._moved.items() if key[1] in sessions}
        self._preloads = {key: one for key, one in self._preloads.items() if key[1] in sessions}

    # -- what is shown -------------------------------------------------------------------------------

    def of(self, unit: str, response: ResponseState) -> tuple[str, Told]:
        """What a unit does for an open response ("runs", "held", or what it waits for), and why."""
        cause, reason = self._waits.turn(self._stages.find(unit), response, self._stages.is_entry(unit))
        own, held = (
            self._told.get((decision, unit), {}).get(response.request, SILENT)
            for decision in ("step", "pace")
        )
        if cause is Cause.HELD:
            return "held", Told(own.label, held.why or reason, held.until)
        if cause is None:
            why = own.why or self._waits.reason(unit), self._waits.spared(unit, response.request)
            return "runs", Told(own.label, "; ".join(filter(None, why)))
        return cause.value, Told(own.label, own.why or reason)

    def move(self, unit: str, session: str) -> KvShown | None:
        return self._moved.get((unit, session))

    def preload(self, unit: str, session: str) -> KvShown | None:
        """The last one; or why of a turn that is coming nothing is ordered."""
        found, told = self._preloads.get((unit, session)), self._told.get(("fetch", unit), {}).get(session)
        is_over = told is WARM and session not in self._announced.sessions
        if told in (None, SILENT) or is_over or (found is not None and found.what == KvMove.PRELOADED):
            return found
        unit_of_kv = self._stages.ar.get(unit)
        unordered = {} if unit_of_kv is None else unit_of_kv.tiers.fetches.unordered
        return KvShown("", 0, unordered.get(session, told.why), self._now)
