"""The step scheduler of an autoregressive stage: who waits, who runs next, what a step brought."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from operator import attrgetter

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.errors import LimitExceeded
from antiphon.core.facts import Ints, StageFact, StagePrompt, StepDone
from antiphon.core.graph import Stage
from antiphon.core.plans import ArStep, Join, ints
from antiphon.policy.base import Budget, StepChoice, StepPolicy
from antiphon.stage.requests import ArRequest, Flight, Progress
from antiphon.stage.seats import Seats

BEST_EFFORT_ORDER = 1 << 40
"""Added to a best-effort request's place in the order of arrival."""
_age = attrgetter("order")


class ArScheduler:
    """Owner of one AR stage's queue and steps in flight; turns a policy's choice into a step's delta.

    Rows and KV are the seats'; `rows` and `kv` are there to be read.
    """

    def __init__(self, stage: Stage, config: ArConfig, policy: StepPolicy) -> None:
        self.name = stage.name
        self.survives = stage.survives
        self.config = config
        self._seats = Seats(stage, config)
        self.rows, self.kv = self._seats.rows, self._seats.kv
        self.num_surplus_tokens = 0
        self.num_preemptions = 0
        self._policy = policy
        self._requests: dict[int, ArRequest] = {}
        self._waiting: list[ArRequest] = []
        """By age: who was preempted stands before all who came later, best effort behind all else."""
        self._flights: OrderedDict[int, Flight] = OrderedDict()
        self._conditioned = stage.conditioned
        self._num_submitted = 0

    # -- requests ------------------------------------------------------------------------------------

    def check(self, prompt: StagePrompt, share: float = 1.0) -> None:
        """Raises LimitExceeded if the prompt and one token of reply do not fit into this share of what could
        ever be held."""
        reach, room = len(prompt.token_ids) + 1, int(share * self._seats.sizes.capacity)
        if reach > room:
            raise LimitExceeded(f"{self.name} context tokens", room, reach, "Shorten the input")

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

    def close(self, request: int) -> None:
        """No more upstream tokens will come."""
        active = self._requests.get(request)
        if active is None:
            return
        active.closed = True
        if active.row is not None:
            self.rows.closed[active.row] = 1

    def abort(self, request: int) -> ArRequest | None:
        """Take the request out at once; what steps in flight bring for it is dropped. None if unknown."""
        active = self._requests.pop(request, None)
        if active is None:
            return None
        if active.row is None:
            self._waiting.remove(active)
        else:
            self._seats.leave(active, self._busy_until)
        self.rows.num_waiting = len(self._waiting)
        return active

    def forget(self, session: str) -> None:
        """Drop the session's idle KV."""
        self.kv.drop(session, self._busy_until)

    @property
    def next_waiting(self) -> ArRequest | None:
        """Who gets the next row."""
        return self._waiting[0] if self._waiting else None

    def lacks(self, request: ArRequest) -> frozenset[int]:
        """Media that a request would have to compute if it joined now, and that are not at hand."""
        if request.media is None:
            return frozenset()
        cached = self._seats.cached(request)
        spans = request.prompt.spans
        return frozenset(span.key for span in spans if span.start + span.length > cached) - request.media

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
        rows = self.rows
        return bool(self._waiting) or len(rows.decoding) > 0 or len(rows.prefilling) > 0

    # -- planning ------------------------------------------------------------------------------------

    def plan(self, step: int, now: float) -> ArStep | None:
        """The next step, or None if nothing can run."""
        budget = Budget(self.config.step_tokens, self.config.max_rows)
        while True:
            self.rows.num_spare = self.kv.num_spare
            self.rows.crowded = self._is_crowded()
            choice = self._policy.decide(self.rows, budget, now)
            self._preempt(choice.preempt)
            order = self._carry_out(step, choice, budget)
            if order is not None or not len(choice.preempt):
                return order

    def _is_crowded(self) -> bool:
        """Could who is next join if best-effort work gave up its rows? What is in limbo comes by itself."""
        head, late = self.next_waiting, self.rows.best_effort[self.rows.running]
        if head is None or head.is_best_effort or not late.any() or self._seats.num_limbo:
            return False
        joins = self._seats.num_free > 0 and self._seats.fits(head, self.rows.num_needy)
        return not joins and self._is_ready(head)

    def _carry_out(self, step: int, choice: StepChoice, budget: Budget) -> ArStep | None:
        joins = self._admit(0 if len(choice.preempt) else choice.admit)
        at, stay = choice.admit_at, ~np.isin(choice.rows, choice.preempt)
        joined = ints([join.row for join in joins])
        late = self.rows.best_effort[joined] == 1
        order = np.concatenate(
            [choice.rows[:at][stay[:at]], joined[~late], choice.rows[at:][stay[at:]], joined[late]]
        )
        rows, counts = self._take(order, budget)
        if not len(rows) and not joins:
            return None
        starts = self.rows.planned[rows].copy()
        emits = (starts + counts >= self.rows.prompt[rows]).astype(np.int64)
        self.rows.planned[rows] += counts
        self.rows.sampled[rows] += emits
        requests = self.rows.request[rows].copy()
        newcomers = tuple(join.request for join in joins)
        self._flights[step] = Flight(rows, requests, starts + counts, newcomers)
        return self._step(step, joins, (rows, starts, counts, emits), choice.reason)

    def _step(
        self, step: int, joins: list[Join], columns: tuple[Ints, Ints, Ints, Ints], reason: str
    ) -> ArStep:
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
        """First come first served, until rows or blocks run out."""
        joins: list[Join] = []
        needed = self.rows.num_needy
        while self._waiting and len(joins) < most and self._seats.num_free:
            request = self._waiting[0]
            if not self._can_join(request, needed):
                break
            del self._waiting[0]
            joins.append(self._seats.join(request, self._busy_until))
        self.rows.num_waiting = len(self._waiting)
        return joins

    def _can_join(self, request: ArRequest, needed: int) -> bool:
        """All that it computes at once is there: upstream text, media, and blocks beside `needed` ones."""
        return self._is_ready(request) and self._seats.fits(request, needed)

    def _is_ready(self, request: ArRequest) -> bool:
        if self._conditioned and len(request.inputs) < len(request.tokens) and not request.closed:
            return False
        return not self.lacks(request)

    def _take(self, order: Ints, budget: Budget) -> tuple[Ints, Ints]:
        """Rows take tokens from the budget in order; a row that gets none, or no block, sits out."""
        order = order[: budget.rows]
        wanted = self.rows.wanted(order)
        before = np.cumsum(wanted) - wanted
        counts = np.clip(budget.tokens - before, 0, wanted)
        runs = counts > 0
        ends = self.rows.planned[order] + counts
        short = runs & (ends > self.rows.blocks[order] * self.config.block_size)
        for i in np.nonzero(short)[0].tolist():
            request = self._requests[int(self.rows.request[order[i]])]
            runs[i] = self._seats.grow(request, int(ends[i]))
        return order[runs], counts[runs]

    # -- accounting ----------------------------------------------------------------------------------

    def named_by(self, step: int) -> tuple[int, ...]:
        """Requests that ran or joined in a step in flight, whatever its executor will say of them."""
        flight = self._flights[step]
        return tuple(flight.requests.tolist()) + flight.joined

    def observe(self, fact: StageFact) -> list[Progress]:
        """Fold a reported step in. A failed step brings no progress: its requests are to be aborted."""
        flight = self._flights.pop(fact.step)
        progress: list[Progress] = []
        if isinstance(fact, StepDone):
            self._confirm(flight)
            seats = dict(zip(flight.requests.tolist(), flight.rows.tolist(), strict=True))
            for request, tokens in zip(fact.requests.tolist(), fact.tokens, strict=True):
                progress += self._emitted(seats.get(request), request, tokens)
        self._seats.settle(fact.step)
        return progress

    def _confirm(self, flight: Flight) -> None:
        """The rows still theirs have come this far; the blocks that they filled may be shared."""
        current = self.rows.request[flight.rows] == flight.requests
        rows, reach = flight.rows[current], flight.reach[current]
        size = self.config.block_size
        filled = reach // size > self.rows.confirmed[rows] // size
        self.rows.confirmed[rows] = reach
        for row in rows[filled].tolist():
            self._seats.learn(self._requests[int(self.rows.request[row])])

    def _emitted(self, row: int | None, request: int, tokens: Ints) -> list[Progress]:
        """A token of who has left the row since, preempted or for good, is surplus."""
        active = self._requests.get(request)
        if active is None or row is None or active.row != row:
            self.num_surplus_tokens += 1
            return []
        key = int(tokens[0])
        if key in self.config.stop_ids:
            self._finish(active)
            return [Progress(request, None, "stop")]
        active.draw(tokens, key)
        if len(active.tokens) < self._seats.sizes.limit(active):
            return [Progress(request, tokens, None)]
        self._finish(active)
        return [Progress(request, tokens, "length")]

    def _finish(self, active: ArRequest) -> None:
        del self._requests[active.request]
        self._seats.leave(active, self._busy_until)

    @property
    def _busy_until(self) -> int | None:
        return next(reversed(self._flights)) if self._flights else None

    def check_integrity(self) -> None:
        """Rows, blocks and queues agree; raises AssertionError otherwise."""
        self._seats.check_integrity(self._requests.values())
        if not self._flights:
            assert not self._seats.num_limbo, "limbo outlives the steps in flight"
