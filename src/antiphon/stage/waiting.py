"""The waiting queue of a decoder stage: requests without a row, in order, and what they lack."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from operator import attrgetter

from antiphon.stage.requests import ArRequest

_age = attrgetter("order")


class WaitingQueue:
    """Owner of the order of requests without a row: by age, so that a preempted one stands before all that
    came later, and best effort behind all else."""

    def __init__(self, conditioned: bool, lacks: Callable[[ArRequest], frozenset[int]]) -> None:
        """lacks: media that a request would have to compute if it joined now, and that are not at hand."""
        self._conditioned = conditioned
        self._lacks = lacks
        self._requests: list[ArRequest] = []
        self._lacking: dict[int, frozenset[int]] = {}
        """Media that requests turned out to lack, since they were asked for."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ArRequest]:
        return iter(self._requests)

    @property
    def head(self) -> ArRequest | None:
        return self._requests[0] if self._requests else None

    def add(self, request: ArRequest) -> None:
        """At its place."""
        insort(self._requests, request, key=_age)

    def remove(self, request: ArRequest) -> None:
        """It has got a row, or is over."""
        self._requests.remove(request)
        self._lacking.pop(request.request, None)

    def is_ready(self, request: ArRequest) -> bool:
        """True if its payload, upstream text and media are there. Media that it lacks are noted."""
        if request.waits_for_payload:
            return False
        if self._conditioned and len(request.inputs) < len(request.tokens) and not request.closed:
            return False
        lacking = self._lacks(request)
        if not lacking <= request.sought:
            self._lacking[request.request] = lacking
            request.sought |= lacking
        return not lacking

    @property
    def is_lacking(self) -> bool:
        """Would `lacking` return anything?"""
        return bool(self._lacking)

    def lacking(self) -> dict[int, frozenset[int]]:
        """Requests that could not join for want of media, and which, since the last call."""
        found, self._lacking = self._lacking, {}
        return found
