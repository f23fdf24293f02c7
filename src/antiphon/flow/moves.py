"""Requests that go on elsewhere: from the unit that read their prompt to one that writes their reply.

The tokens are drawn there as they would have been here, and the KV is leased to be copied. A request that
loses it on the way computes it again.
"""

from __future__ import annotations

from antiphon.flow.response import ResponseState
from antiphon.flow.stages import Stages
from antiphon.stage.requests import UNBOUNDED

FIRST_TOKEN = 1
"""A prefill unit draws so many tokens of a reply."""


class Moves:
    """From prefill units to decode units. Owns nothing: leases belong to the units that gave them."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def limit(self, response: ResponseState) -> None:
        """How far its request may get where it begins."""
        if self._stages.hands_on(response.route.entry):
            response.writing.granted = FIRST_TOKEN

    def hand_on(self, response: ResponseState, now: float) -> None:
        """It has drawn a token and will draw more: with the first one, elsewhere; where it is if no decode
        unit is there."""
        path, request = response.route, response.writing
        if not self._stages.hands_on(path.entry) or len(request.tokens) > FIRST_TOKEN:
            return
        here = self._stages.ar[path.entry]
        target = self._stages.write(response.session, now, response.spec.remember)
        if target is None:
            here.grant(response.request, UNBOUNDED)
            return
        here.hand_on(response.request, target)
        # its media were read; should it have to read them again, then by an encoder near to where it is
        self._stages.encoders[path.encode].unpin(response.pinned, response.request)
        response.pinned, request.media, request.sought = (), frozenset(), frozenset()
        path.encode = self._stages.encoder_of(target) or path.encode
        path.reader, path.entry = path.entry, target
        response.open_units.remove(path.reader)
        response.open_units.add(target)
        request.granted = UNBOUNDED
        self._stages.ar[target].submit(request)

    def settle(self) -> None:
        """What was lent and has been copied, or is wanted no more, goes back."""
        for scheduler in self._stages.ar.values():
            for lease in scheduler.tiers.leases.returned():
                self._stages.ar[lease.source].take_back(lease)

    def lose(self, unit: str) -> None:
        """The unit is gone: what it lent, and what was lent to it."""
        for lease in self._stages.ar[unit].leases if unit in self._stages.ar else ():
            lease.is_void = True
        for scheduler in self._stages.ar.values():
            for lease in scheduler.leases:
                if lease.target == unit:
                    scheduler.take_back(lease)
