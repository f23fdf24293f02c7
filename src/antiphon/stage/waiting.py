"""The waiting queue of a decoder stage: requests without a row, in order, what they would find, and what they
lack."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter

import numpy as np

from antiphon.core.facts import Ints, Mask
from antiphon.core.plans import ints
from antiphon.policy.base import Tier
from antiphon.stage.kv_ledger import KvLedger
from antiphon.stage.requests import ArRequest

_age = attrgetter("order")


class WaitingColumns:
    """What policies see of the waiting requests, each an int64 [n]: kept up as they come, change and go, so
    that a view costs no call per request."""

    __slots__ = ("could_run", "found", "needs", "request", "slot", "tier", "tokens")

    def __init__(self, table: Ints) -> None:
        """table: [fields, n]."""
        self.request, self.tier, self.slot, self.found, self.tokens, self.needs, self.could_run = table


class WaitingQueue:
    """Owner of the order of requests without a row: by age, so that a preempted one stands before all that
    came later."""

    def __init__(self, conditioned: bool, held: KvLedger) -> None:
        self._conditioned = conditioned
        self._held = held
        self._requests: list[ArRequest] = []
        self._have(np.zeros((len(WaitingColumns.__slots__), 0), np.int64))
        self._lacking: dict[int, frozenset[int]] = {}
        """Media that requests turned out to lack, since they were asked for."""
        self._head: ArRequest | None = None
        """The first that a person waits for, as of the last view."""
        self._lacked: frozenset[int] = frozenset()
        """Media that it turned out to lack when a policy looked; noted by the next plan."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ArRequest]:
        return iter(self._requests)

    def first(self, tier: Tier = Tier.LATENCY) -> ArRequest | None:
        """The oldest of a tier."""
        if not self._requests:
            return None
        found = (self.columns.tier == int(tier)).nonzero()[0]
        return self._requests[int(found[0])] if len(found) else None

    def _have(self, table: Ints) -> None:
        self._table, self.columns = table, WaitingColumns(table)

    @property
    def in_turn(self) -> list[ArRequest]:
        """Those that could run, by tier, and then by age."""
        ready = self.columns.could_run.nonzero()[0]
        order = ready[self.columns.tier[ready].argsort(kind="stable")]
        return [self._requests[at] for at in order.tolist()]

    def add(self, request: ArRequest) -> None:
        """At its place."""
        at = self._place(request)
        self._requests.insert(at, request)
        self._have(np.insert(self._table, at, self._column(request), axis=1))

    def changed(self, request: ArRequest) -> None:
        """It has other inputs or credit, or would find something else in the cache."""
        self._table[:, self._place(request)] = self._column(request)

    def remove(self, request: ArRequest) -> None:
        """It has got a row, or is over."""
        at = self._place(request)
        del self._requests[at]
        if request is self._head:
            self._head = None
        self._have(np.delete(self._table, at, axis=1))
        self._lacking.pop(request.request, None)

    def _place(self, request: ArRequest) -> int:
        return bisect_left(self._requests, request.order, key=_age)

    def _column(self, request: ArRequest) -> Ints:
        """As `WaitingColumns` has it."""
        return ints(
            [
                request.request,
                request.tier,
                request.slot,
                request.found,
                len(request.prompt.token_ids) + len(request.tokens) - request.found,
                self._held.sizes.promise(request) - request.found_used,
                self.could_run(request),
            ]
        )

    def could_run(self, request: ArRequest) -> bool:
        """Are its payload and its upstream text there, and may it draw another token?"""
        if request.waits_for_payload or not request.has_credit:
            return False
        return not self._conditioned or request.closed or len(request.inputs) >= len(request.tokens)

    # -- what they would find ------------------------------------------------------------------------

    def look(self, request: ArRequest) -> None:
        """Note what it would find on the device now."""
        self._held.look(request)
        self.changed(request)

    def look_at_heads(self) -> None:
        """Before a view: at the first of each tier that is served."""
        self._head, self._lacked = self.first(), frozenset()
        for head in (self._head, self.first(Tier.BEST_EFFORT)):
            if head is not None:
                self.look(head)

    def could_join(self, waiting: Sequence[ArRequest], could_run: Mask) -> Mask:
        """By what is cheap to know; of the first request, also its media."""
        could_join = could_run.copy()
        if coming := self._held.tiers.fetches.coming:
            could_join &= [request.owner not in coming for request in waiting]
        at = next((at for at, request in enumerate(waiting) if request is self._head), None)
        if at is not None and could_join[at]:
            self._lacked = self._held.lacks(waiting[at], with_host=True)
            could_join[at] = not self._lacked
        return could_join

    def note_lacked(self) -> None:
        """What the first request lacks is asked for once the stage has its turn, not when a policy looks."""
        if self._lacked and self._head is not None:
            self.note_lacking(self._head, self._lacked)
        self._lacked = frozenset()

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

    def check_integrity(self) -> None:
        """Raises AssertionError unless the columns say what the requests do."""
        columns = [self._column(request) for request in self._requests]
        assert self._table.T.tolist() == [one.tolist() for one in columns], "a waiting request has changed"
