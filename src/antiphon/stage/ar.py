"""The step scheduler of an autoregressive stage: who waits, who runs next, what a step brought."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from operator import attrgetter

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.errors import LimitExceeded
from antiphon.core.facts import CopyFact, Ints, StageFact, StagePrompt, StepDone, StepFailed
from antiphon.core.graph import Stage
from antiphon.core.plans import ArStep, Join, ints
from antiphon.kv.leases import KvLease
from antiphon.kv.transfers import CopyOrder, Transfer
from antiphon.policy.base import Budget, StepChoice, StepPolicy
from antiphon.policy.memory import KvPolicies
from antiphon.stage.requests import ArRequest, Flight, Progress
from antiphon.stage.seats import Seats

BEST_EFFORT_ORDER = 1 << 40
"""Added to a best-effort request's place in the order of arrival."""
MOST_RETRIES = 3
"""How often a request may begin anew after a step that failed while it waited for copies."""
_age = attrgetter("order")


class ArScheduler:
    """Owner of one AR stage's queue and steps in flight; turns a policy's choice into a step's delta.

    Rows and KV are the seats'; `rows`, `kv` and `tiers` are there to be read.
    """

    def __init__(
        self,
        stage: Stage,
        config: ArConfig,
        policy: StepPolicy,
        kv_policies: KvPolicies,
        name: str = "",
        tickets: Iterator[int] | None = None,
    ) -> None:
        """name: the unit's, where the stage has several; tickets: ascending, where several share them."""
        self.name = name or stage.name
        self.stage = stage.name
        self.survives = stage.survives
        self.config = config
        self._seats = Seats(stage, config, kv_policies, self.name, tickets or count())
        self.rows, self.kv, self.tiers = self._seats.rows, self._seats.kv, self._seats.tiers
        self.num_surplus_tokens = 0
        self.num_preemptions = 0
        self._policy = policy
        self._requests: dict[int, ArRequest] = {}
        self._waiting: list[ArRequest] = []
        """By age: who was preempted stands before all who came later, best effort behind all else."""
        self._flights: OrderedDict[int, Flight] = OrderedDict()
        self._lacking: dict[int, frozenset[int]] = {}
        """Media that waiting requests turned out to lack, since they were asked for."""
        self._conditioned = stage.conditioned
        self._num_submitted = 0

    # -- requests ------------------------------------------------------------------------------------

    def check(self, prompt: StagePrompt, share: float = 1.0) -> None:
        """Raises LimitExceeded if the prompt and one token of reply do not fit into this share of what could
        ever be held."""
        reach, room = len(prompt.token_ids) + 1, int(share * self._seats.sizes.capacity)
        if reach > room:
            raise LimitExceeded(f"{self.stage} context tokens", room, reach, "Shorten the input")

    def submit(self, request: ArRequest) -> None:
        """Queue a request whose prompt passed `check`."""
        request.order = self._num_submitted + BEST_EFFORT_ORDER * request.is_best_effort
        self._num_submitted += 1
        self._requests[request.request] = request
        insort(self._waiting, request, key=_age)
        self.rows.num_waiting = len(self._waiting)

    def push(self, request: int, token: int) -> None:
        """One more upstream token for a conditioned stage."""
        active = self._requests.get(request)
        if active is None:
            return
        active.inputs.append(token)
        if active.row is not None:
            self._seats.push(active.row, token)

    def grant(self, request: int, tokens: int) -> None:
        """Its consumer has come so far that it may draw so many tokens in all."""
        active = self._requests.get(request)
        if active is None:
            return
        active.granted = tokens
        if active.row is not None:
            self.rows.granted[active.row] = tokens
            self.rows.changed()

    def close(self, request: int) -> None:
        """No more upstream tokens will come."""
        active = self._requests.get(request)
        if active is None:
            return
        active.closed = True
        if active.row is not None:
            self.rows.closed[active.row] = 1
            self.rows.changed()

    def arrived(self, request: int) -> None:
        """What was handed over for it is there."""
        if request in self._requests:
            self._requests[request].waits_for_payload = False

    def waits_for_payload(self, request: int) -> bool:
        return request in self._requests and self._requests[request].waits_for_payload

    def abort(self, request: int) -> ArRequest | None:
        """Take the request out at once; what steps in flight bring for it is dropped. None if unknown."""
        active = self._requests.pop(request, None)
        if active is None:
            return None
        if active.row is None:
            self._waiting.remove(active)
            self.tiers.give_back(active)
        else:
            self._seats.leave(active, self._busy_until)
        self.rows.num_waiting = len(self._waiting)
        return active

    def hand_on(self, request: int, target: str) -> ArRequest:
        """Take out a running request that goes on at the unit `target`, which may copy its KV."""
        active = self._requests.pop(request)
        active.lease = self._seats.lend(active, target)
        self._seats.leave(active, self._busy_until)
        active.row = active.sequence = active.prefix = None
        return active

    @property
    def leases(self) -> tuple[KvLease, ...]:
        """What others may copy from here."""
        return tuple(self._seats.leases)

    def take_back(self, lease: KvLease) -> None:
        """It is over."""
        self._seats.take_back(lease)

    def forget(self, session: str) -> None:
        """Drop the session's idle KV."""
        self._seats.forget(session, self._busy_until)

    @property
    def next_waiting(self) -> ArRequest | None:
        """Who gets the next row."""
        return self._waiting[0] if self._waiting else None

    def lacks(self, request: ArRequest) -> frozenset[int]:
        """Media that a request would have to compute if it joined now, and that are not at hand."""
        if request.media is None or not request.prompt.spans:
            return frozenset()
        cached = self._seats.cached(request)
        spans = request.prompt.spans
        return frozenset(span.key for span in spans if span.start + span.length > cached) - request.media

    @property
    def is_lacking(self) -> bool:
        """Would `lacking` return anything?"""
        return bool(self._lacking)

    def lacking(self) -> dict[int, frozenset[int]]:
        """Waiting requests that could not join for want of media, and which, since the last call."""
        found = {request: keys for request, keys in self._lacking.items() if request in self._requests}
        self._lacking = {}
        return found

    @property
    def held(self) -> dict[str, tuple[int, int]]:
        """KV of each session, as (tokens, blocks): its running request's, or what it left behind."""
        held = self.kv.idle
        for active in self._requests.values():
            if active.row is not None and active.sequence is not None:
                held[active.session] = int(self.rows.confirmed[active.row]), active.sequence.num_blocks
        return held

    @property
    def requests(self) -> frozenset[int]:
        """Waiting and running."""
        return frozenset(self._requests)

    @property
    def num_running(self) -> int:
        return len(self._requests) - len(self._waiting)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting) or self.rows.has_work

    # -- planning ------------------------------------------------------------------------------------

    def drain(self) -> tuple[CopyOrder, ...]:
        """Copies ordered since the last call: they go before the step that was planned with them."""
        return self.tiers.drain()

    def tend(self, now: float) -> None:
        """At every decision, whether a step is planned or not: the policies move KV that nobody waits for."""
        self.tiers.tend("" if self.next_waiting is None else self.next_waiting.owner, now)

    def plan(self, step: int, now: float) -> ArStep | None:
        """The next step, or None if nothing can run."""
        budget = Budget(self.config.step_tokens, self.config.max_rows)
        while True:
            self.tiers.begin_plan()
            self.rows.num_spare = self.kv.num_spare
            self.rows.crowded = self._is_crowded()
            choice = self._policy.decide(self.rows, budget, now)
            self._preempt(choice.preempt)
            order = self._carry_out(step, choice, budget)
            if order is not None or not len(choice.preempt):
                return order

    def _is_crowded(self) -> bool:
        """Could who is next join if best-effort work gave up its rows? What is in limbo comes by itself."""
        head = self.next_waiting
        if head is None or head.is_best_effort or self._seats.num_pending_free:
            return False
        if not self.rows.best_effort[self.rows.running].any():
            return False
        joins = self._seats.num_free > 0 and self._seats.fits(head, self.rows.num_needy)
        return not joins and self._is_ready(head)

    def _carry_out(self, step: int, choice: StepChoice, budget: Budget) -> ArStep | None:
        joins = self._admit(0 if len(choice.preempt) else choice.admit)
        rows, counts = self._take(self._order(choice, joins), budget)
        if not len(rows) and not joins:
            return None
        starts = self.rows.planned[rows]
        emits = (starts + counts >= self.rows.prompt[rows]).astype(np.int64)
        self.rows.plan(rows, counts, emits)
        requests = self.rows.request[rows]
        newcomers = tuple(join.request for join in joins)
        waits = self._waits(requests)
        self._flights[step] = Flight(rows, requests, starts + counts, newcomers, waits)
        return self._step(step, joins, (rows, starts, counts, emits), choice.reason)

    def _order(self, choice: StepChoice, joins: list[Join]) -> Ints:
        """Rows as chosen, without those given up, with those that join."""
        if len(choice.preempt):
            return choice.rows[~np.isin(choice.rows, choice.preempt)]
        if not joins:
            return choice.rows
        at, joined = choice.admit_at, ints([join.row for join in joins])
        late = self.rows.best_effort[joined] == 1
        return np.concatenate([choice.rows[:at], joined[~late], choice.rows[at:], joined[late]])

    def _waits(self, requests: Ints) -> tuple[Transfer, ...]:
        """What has still to come back from the host before these can be computed."""
        if not self.tiers.num_in_flight:
            return ()
        sequences = (self._requests[request].sequence for request in requests.tolist())
        return self.tiers.bringing(sequence for sequence in sequences if sequence is not None)

    def _step(
        self, step: int, joins: list[Join], columns: tuple[Ints, Ints, Ints, Ints], reason: str
    ) -> ArStep:
        waits = self._flights[step].waits
        changes = self._seats.drain()
        return ArStep(
            stage=self.name,
            step=step,
            joins=tuple(joins),
            leaves=changes.leaves,
            blocks=changes.blocks,
            inputs_rows=changes.inputs_rows,
            inputs_tokens=changes.inputs_tokens,
            rows=columns[0],
            starts=columns[1],
            counts=columns[2],
            emits=columns[3],
            reason=reason,
            waits=tuple(sorted(ticket for transfer in waits for ticket in transfer.tickets)),
        )

    def _preempt(self, rows: Ints) -> None:
        for row in rows.tolist():
            active = self._requests[int(self.rows.request[row])]
            self._seats.leave(active, self._busy_until)
            active.row = active.sequence = active.prefix = None
            insort(self._waiting, active, key=_age)
            self.num_preemptions += 1
        self.rows.num_waiting = len(self._waiting)

    def _admit(self, most: int) -> list[Join]:
        """First come first served, until rows or blocks run out. Requests that are not ready are passed over,
        and hold up nobody."""
        if not most or not self._waiting or not self._seats.num_free:
            return []
        joins: list[Join] = []
        joined: set[int] = set()
        needed = self.rows.num_needy
        for request in self._waiting:
            if len(joins) == most or not self._seats.num_free:
                break
            if not self._is_ready(request):
                continue
            if not self._has_room(request, needed):
                break
            joins.append(self._seats.join(request, self._busy_until))
            joined.add(request.request)
        if joins:
            self._waiting = [one for one in self._waiting if one.request not in joined]
        self.rows.num_waiting = len(self._waiting)
        return joins

    def _has_room(self, request: ArRequest, needed: int) -> bool:
        """Are there blocks for it beside `needed` ones, for what comes back from the host too? To make room
        for that may cost KV that it would have begun with, and then it is ready no more."""
        has_room = self._seats.fits(request, needed) and self._seats.has_way_back(request)
        return has_room and self._is_ready(request)

    def _is_ready(self, request: ArRequest) -> bool:
        """Is all there that it computes at once: its payload, upstream text, and media? Media that it lacks
        are noted."""
        if request.waits_for_payload:
            return False
        if self._conditioned and len(request.inputs) < len(request.tokens) and not request.closed:
            return False
        lacking = self.lacks(request)
        if not lacking <= request.sought:
            self._lacking[request.request] = lacking
            request.sought |= lacking
        return not lacking

    def _take(self, order: Ints, budget: Budget) -> tuple[Ints, Ints]:
        """Rows take tokens from the budget in order; a row that gets none, or no block, sits out."""
        order = order[: budget.rows]
        counts = self.rows.wanted(order)
        through = counts.cumsum()
        if len(order) and through[-1] > budget.tokens:
            counts = np.maximum(np.minimum(counts, budget.tokens - through + counts), 0)
            order, counts = order[counts > 0], counts[counts > 0]
        ends = self.rows.planned[order] + counts
        short = (ends > self.rows.blocks[order] * self.config.block_size).nonzero()[0]
        if not len(short):
            return order, counts
        growing, runs = order[short], np.ones(len(order), np.bool_)
        runs[short] = self._seats.grow(self._of(growing), growing, ends[short])
        return order[runs], counts[runs]

    def _of(self, rows: Ints) -> list[ArRequest]:
        """Who has these rows."""
        return [self._requests[number] for number in self.rows.request[rows].tolist()]

    # -- accounting ----------------------------------------------------------------------------------

    def is_flying(self, step: int) -> bool:
        """Is its report still to come?"""
        return step in self._flights

    def named_by(self, step: int) -> tuple[int, ...]:
        """Requests that ran or joined in a step in flight, whatever its executor will say of them."""
        flight = self._flights[step]
        return tuple(flight.requests.tolist()) + flight.joined

    def copied(self, fact: CopyFact, now: float) -> None:
        """A copy was answered. Who counted on one that failed begins anew, without it."""
        broken = set(self.tiers.copied(fact, now))
        if not broken:
            return
        sequences = ((row, self._requests[int(self.rows.request[row])].sequence) for row in self.rows.running)
        self._preempt(ints([row for row, one in sequences if one and not broken.isdisjoint(one.blocks)]))

    def retry(self, fact: StepFailed) -> frozenset[int]:
        """Before a failed step is observed: if it waited for a copy that may have failed, all that it named
        begin anew, as often as they may. Returns them, and those that had begun anew already."""
        flight = self._flights[fact.step]
        doubtful = [transfer for transfer in flight.waits if transfer.is_doubtful]
        if not doubtful:
            return frozenset()
        self.tiers.distrust(doubtful)
        seats = dict(zip(flight.requests.tolist(), flight.rows.tolist(), strict=True))
        named = dict.fromkeys(self.named_by(fact.step))
        alive = [self._requests[one] for one in named if one in self._requests]
        seated = [one for one in alive if one.row is not None and one.row == seats.get(one.request, one.row)]
        spent = {one.request for one in seated if one.num_retries == MOST_RETRIES}
        again = [one for one in seated if one.request not in spent]
        for one in again:
            one.num_retries += 1
        self._preempt(ints([one.row for one in again if one.row is not None]))
        return frozenset(one.request for one in alive) - spent

    def observe(self, fact: StageFact) -> list[Progress]:
        """Fold a reported step in. A failed step brings no progress: its requests are to be aborted."""
        flight = self._flights.pop(fact.step)
        progress: list[Progress] = []
        if isinstance(fact, StepDone):
            self._confirm(flight)
            progress = self._emitted(flight, fact)
        self._seats.settle(fact.step)
        return progress

    def _confirm(self, flight: Flight) -> None:
        """The rows still theirs have come this far; the blocks that they filled may be shared."""
        current = self.rows.request[flight.rows] == flight.requests
        rows, reach = flight.rows[current], flight.reach[current]
        size = self.config.block_size
        filled = reach // size > self.rows.confirmed[rows] // size
        self.rows.confirmed[rows] = reach
        for request in self._of(rows[filled]):
            self._seats.fill(request)

    def _emitted(self, flight: Flight, fact: StepDone) -> list[Progress]:
        """A token each. That of who has left the row since, preempted or for good, is surplus."""
        progress: list[Progress] = []
        seats = dict(zip(flight.requests.tolist(), flight.rows.tolist(), strict=True))
        firsts: list[int] = fact.tokens[:, 0].tolist()
        requests, stops = self._requests, self.config.stop_ids
        for request, first, tokens in zip(fact.requests.tolist(), firsts, fact.tokens, strict=True):
            active = requests.get(request)
            if active is None or active.row is None or active.row != seats.get(request):
                self.num_surplus_tokens += 1
                continue
            if first in stops:
                progress.append(Progress(request, None, first, "stop"))
                self._finish(active)
                continue
            active.tokens.append(tokens)
            active.fresh.append(first)
            is_over = len(active.tokens) >= active.limit
            progress.append(Progress(request, tokens, first, "length" if is_over else None))
            if is_over:
                self._finish(active)
        return progress

    def _finish(self, active: ArRequest) -> None:
        del self._requests[active.request]
        self._seats.leave(active, self._busy_until)

    @property
    def _busy_until(self) -> int | None:
        return next(reversed(self._flights)) if self._flights else None

    def check_integrity(self) -> None:
        """Rows, blocks and queues agree; raises AssertionError otherwise."""
        self._seats.check_integrity(self._requests.values())
        if not self._flights and not self.tiers.num_in_flight and not self._seats.leases:
            assert not self._seats.num_pending_free, "limbo outlives the steps in flight"
