"""Requests that go on elsewhere: from the unit that read their prompt to one that writes their reply.

The tokens are drawn there as they would have been here, and what was computed is lent to be copied. Who loses
it on the way computes it again.
"""

from __future__ import annotations

from antiphon.flow.stages import Stages
from antiphon.flow.turn import Turn
from antiphon.stage.rows import UNBOUNDED

FIRST_TOKEN = 1
"""Who only reads prompts draws so many tokens of a reply."""


class Moves:
    """From prefill units to decode units. Owns nothing: loans are theirs who gave them."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def limit(self, turn: Turn) -> None:
        """How far its request may get where it begins."""
        assert turn.path is not None
        assert turn.entry is not None
        if self._stages.hands_on(turn.path.entry):
            turn.entry.granted = FIRST_TOKEN

    def hand_on(self, turn: Turn, now: float) -> None:
        """It has drawn a token and will draw more: with the first one, elsewhere; where it is if no decode
        unit is there."""
        path, request = turn.path, turn.entry
        assert path is not None
        assert request is not None
        if not self._stages.hands_on(path.entry) or len(request.tokens) > FIRST_TOKEN:
            return
        here = self._stages.ar[path.entry]
        target = self._stages.write(turn.session, now, turn.spec.remember)
        if target is None:
            here.grant(turn.request, UNBOUNDED)
            return
        here.hand_on(turn.request, target)
        # its media were read; should it have to read them again, then by an encoder near to where it is
        self._stages.encoders[path.encode].unpin(turn.pinned)
        turn.pinned, request.media, request.sought = (), frozenset(), frozenset()
        path.encode = self._stages.encoder_of(target) or path.encode
        path.reader, path.entry = path.entry, target
        turn.open_units.remove(path.reader)
        turn.open_units.add(target)
        request.granted = UNBOUNDED
        self._stages.ar[target].submit(request)

    def settle(self) -> None:
        """What was lent and has been copied, or is wanted no more, goes back."""
        for scheduler in self._stages.ar.values():
            for loan in scheduler.tiers.returned():
                self._stages.ar[loan.source].take_back(loan)

    def lose(self, unit: str) -> None:
        """The unit is gone: what it lent, and what was lent to it."""
        for loan in self._stages.ar[unit].loans if unit in self._stages.ar else ():
            loan.is_void = True
        for scheduler in self._stages.ar.values():
            for loan in scheduler.loans:
                if loan.target == unit:
                    scheduler.take_back(loan)
