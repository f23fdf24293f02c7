"""What there is of a turn is encoded and prefilled before its reply is asked for: where a client advises so,
and in a pause that may be the turn's end.

It delays nobody: it begins only while no reply is being made, takes only blocks that hold nothing, and ends
when any reply is asked for. A step that is under way then is the most that anybody waits for. What reported
steps have read rests as the session's past, where the turn finds it as it finds that of a reply that was cut.
One runs at a time. Sessions that advise of their turns take turns: none keeps the others waiting for long.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from antiphon.core.conversation import Item
from antiphon.core.facts import ResponseRequested, TurnAdvised, TurnDropped, TurnForeseen
from antiphon.core.plans import TurnAnswer
from antiphon.flow.response import ResponseState
from antiphon.flow.sessions import Sessions
from antiphon.flow.stages import Stages
from antiphon.flow.transcripts import Transcripts

PART_S = 1.0
"""After which a preparation gives way to another session's advisory."""
PATIENCE_S = 10.0
"""How long a session that was turned away keeps its place among those that were."""


@dataclass(slots=True)
class PreparedTokens:
    """Tokens of prompts that a unit computed ahead: all; found by the turns; not found, or given up. Those of
    a turn that has not come yet are neither used nor wasted."""

    tokens: int = 0
    used: int = 0
    wasted: int = 0


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a reply would be asked for, and of what. Equal ones have equal prompts."""

    spec: ResponseRequested
    items: tuple[Item, ...]

    @property
    def is_preface(self) -> bool:
        """Nothing of it was said yet: its reply is further away than that of any other."""
        return bool(self.items) and not self.items[-1].id


@dataclass(slots=True)
class _Left:
    """Positions [start, end) of a session's prompt that a unit computed ahead and no turn has looked for.

    turn  what was read to its end; None if it was not
    """

    unit: str
    start: int
    end: int
    turn: _Turn | None


class Advance:
    """Owner of the one preparation that runs in the node, and of what earlier ones left."""

    def __init__(self, stages: Stages, sessions: Sessions, transcripts: Transcripts) -> None:
        self._stages = stages
        self._sessions = sessions
        self._transcripts = transcripts
        self._last: ResponseState | None = None
        """It runs while it has a request."""
        self._turn: _Turn | None = None
        """What it was begun with. It reads fewer items where the conversation has outgrown the context."""
        self._begun_at = self._came_at = 0.0
        """When it began, and when its session was turned away first, or else began."""
        self._turned_away: dict[str, float] = {}
        """Since when, by session: because another one's turn was being read."""
        self._left: dict[str, _Left] = {}
        """By session."""
        self._turns: list[ResponseState] = []
        """Replies that were asked for, and have not looked for it yet."""
        readers = [
            name for name in stages.ar if stages.is_entry(name) and stages.units[name].role != "decode"
        ]
        self.prepared = {name: PreparedTokens() for name in readers}
        """By the unit that reads prompts."""

    @property
    def request(self) -> int:
        """Of what runs now, or ran last; 0: nothing ever did."""
        return 0 if self._last is None else self._last.request

    @property
    def _running(self) -> ResponseState | None:
        return None if self._last is None else self._sessions.by_request.get(self._last.request)

    # -- a preparation -------------------------------------------------------------------------------

    def advise(self, fact: TurnAdvised, now: float) -> TurnAnswer:
        """Begin, if the turn is to be prepared and nobody is served."""
        if fact.prepare != "turn":
            return ""
        running = self._running
        if running is not None and running.session == fact.session:
            return "running"
        spec = _reading(fact.reply or ResponseRequested(fact.session, "", ""))
        turn, left = _Turn(spec, self._sessions.ahead(spec)), self._left.get(fact.session)
        if not turn.items:
            return "nothing"
        if left is not None and left.turn == turn:
            return "done"
        if self._sessions.responses:
            return "busy"
        if running is not None:
            if not self._gives_way(fact.session, now):
                return "busy"
            self.stop()
        self._begin(turn, now)
        return "begun"

    def _gives_way(self, session: str, now: float) -> bool:
        """Does what runs give way to this session? Once it had its part, or came later than this one. What
        it has read is kept."""
        came_at = self._turned_away.get(session, now)
        if now - came_at > PATIENCE_S:
            came_at = now
        self._turned_away[session] = came_at
        return now - self._begun_at >= PART_S or came_at < self._came_at

    def foresee(self, fact: TurnForeseen, now: float) -> None:
        """Begin with the turn as it is in this pause, if no reply is being made; what is read of an earlier
        pause ends, and so does a preface: the turn of a pause may be over in 300 ms. A turn that was read, or
        is being read, is not read again."""
        spec = _reading(fact.reply)
        turn = _Turn(spec, self._sessions.foreseen(spec, fact.item))
        left = self._left.get(fact.session)
        if (self._running is not None and self._turn == turn) or (left is not None and left.turn == turn):
            return
        self.stop_of(fact.session)
        if self._turn is not None and self._turn.is_preface and not turn.is_preface:
            self.stop()
        if turn.items and self._running is None and not self._sessions.responses:
            self._begin(turn, now)

    def _begin(self, turn: _Turn, now: float) -> None:
        self._last, self._turn = self._sessions.begin_ahead(turn.spec, turn.items), turn
        self._begun_at, self._came_at = now, self._turned_away.pop(turn.spec.session, now)
        self._transcripts.render(self._last, now)

    def finish(self) -> None:
        """Its prompt was read, and one token drawn, which counts for nothing."""
        response = self._running
        assert response is not None
        self._keep(response, len(response.writing.prompt.token_ids), 0, self._turn)
        self._sessions.end(response, "completed", "")

    def stop(self) -> None:
        """Somebody wants a reply: what runs ends. What it has read so far is kept."""
        response = self._running
        if response is None:
            return
        row = None if response.entry is None else response.entry.row
        if row is not None and response.path is not None:
            rows = self._stages.ar[response.path.entry].rows
            end = int(rows.confirmed[row])
            self._keep(response, end, int(rows.planned[row]) - end, None)
        self._sessions.end(response, "cancelled", "")

    def stop_of(self, session: str) -> None:
        """What is read of this session may not be what its turn says."""
        running = self._running
        if running is not None and running.session == session:
            self.stop()

    def drop(self, fact: TurnDropped) -> None:
        """What is read of it would be found by no turn."""
        if self._turn is not None and self._turn.items and self._turn.items[-1].id == fact.item_id:
            self.stop_of(fact.session)

    # -- what becomes of it --------------------------------------------------------------------------

    def begun(self, response: ResponseState) -> None:
        """A reply was asked for: if a turn of its session was prepared, it will look for that."""
        if response.session in self._left and response.spec.remember:
            self._turns.append(response)

    def settle(self) -> None:
        """Count what turns have found, once they have looked."""
        if not self._turns:
            return
        for turn in self._turns:
            entry, path = turn.entry, turn.path
            if entry is None or path is None or entry.cached is None:
                continue
            left = self._left.pop(turn.session, None)
            if left is not None:
                is_here = left.unit in (path.entry, path.reader)
                self._count(left, min(entry.cached, left.end) if is_here else left.start)
        self._turns = [
            turn
            for turn in self._turns
            if turn.session in self._left and turn.request in self._sessions.by_request
        ]

    def forget(self, session: str) -> None:
        """It is closed."""
        self.stop_of(session)
        self._turned_away.pop(session, None)
        left = self._left.pop(session, None)
        if left is not None:
            self._count(left, left.start)

    def _keep(self, response: ResponseState, end: int, num_lost: int, turn: _Turn | None) -> None:
        """It has read up to `end`, and beyond that what is lost. What an earlier one left before its start
        stays; what lies behind is read anew."""
        start, unit = response.writing.cached or 0, response.route.entry
        end = max(start, end)
        counts = self.prepared[unit]
        counts.tokens += end - start + num_lost
        counts.wasted += num_lost
        before = self._left.pop(response.session, None)
        if before is not None:
            stays = before.unit == unit and before.start <= start <= before.end
            kept = start if stays else before.start
            self.prepared[before.unit].wasted += before.end - kept
            start = before.start if stays else start
        self._left[response.session] = _Left(unit, start, end, turn)

    def _count(self, left: _Left, found: int) -> None:
        """The turn found its first `found` tokens."""
        used = max(found - left.start, 0)
        self.prepared[left.unit].used += used
        self.prepared[left.unit].wasted += left.end - left.start - used


def _reading(reply: ResponseRequested) -> ResponseRequested:
    """What reads the prompt of such a reply, and draws one token."""
    return msgspec.structs.replace(reply, speech=False, remember=True, items=None, max_tokens=1)
