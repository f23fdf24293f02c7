"""The waiting queue of a decoder stage: requests without a row, in order, and what they lack."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from operator import attrgetter

from antiphon.policy.base import Tier
from antiphon.stage.requests import ArRequest

_age = attrgetter("order")


class WaitingQueue:
    """Owner of the order of requests without a row: by age, so that a preempted one stands before all that
    came later."""

    def __init__(self, conditioned: bool) -> None:
        self._conditioned = conditioned
        self._requests: list[ArRequest] = []
        self._lacking: dict[int, frozenset[int]] = {}
        """Media that requests turned out to lack, since they were asked for."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ArRequest]:
        return iter(self._requests)

    def first(self, tier: Tier = Tier.LATENCY) -> ArRequest | None:
        """The oldest of a tier."""
        return next((request for request in self._requests if request.tier is tier), None)

    @property
    def in_turn(self) -> list[ArRequest]:
        """By tier, and then by age."""
        return sorted(self._requests, key=attrgetter("tier"))

    def add(self, request: ArRequest) -> None:
        """At its place."""
        insort(self._requests, request, key=_age)

    def remove(self, request: ArRequest) -> None:
        """It has got a row, or is over."""
        self._requests.remove(request)
        self._lacking.pop(request.request, None)

    def has_inputs(self, request: ArRequest) -> bool:
        """Are its payload and its upstream text there?"""
        if request.waits_for_payload:
            return False
        return not self._conditioned or request.closed or len(request.inputs) >= len(request.tokens)

    def note_lacking(self, request: ArRequest, keys: frozenset[int]) -> None:
        """It cannot join for want of these media. They are told of once."""
        if not keys <= request.sought:
            self._lacking[request.request] = keys
            request.sought |= keys

    @property
    def is_lacking(self) -> bool:
        """Would `lacking` return anything?"""
        return bool(self._lacking)

    def lacking(self) -> dict[int, frozenset[int]]:
        """Requests that could not join for want of media, and which, since the last call."""
        found, self._lacking = self._lacking, {}
        return found
