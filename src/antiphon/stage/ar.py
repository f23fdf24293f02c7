"""The step scheduler of an autoregressive stage: asks the policy, plans the next step, folds in what it
brought."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

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
from antiphon.stage.flights import Flight, Flights
from antiphon.stage.kv_ledger import KvLedger
from antiphon.stage.requests import ArRequest, Progress
from antiphon.stage.rows import RowLedger
from antiphon.stage.waiting import WaitingQueue

BEST_EFFORT_ORDER = 1 << 40
"""Added to a best-effort request's place in the order of arrival."""
MOST_RETRIES = 3
"""How often a request may begin anew after a step that failed while it waited for copies."""


class ArScheduler:
    """Turns a policy's choice into a step's delta. Owner of which requests the stage has.

    The queue, the rows, the steps in flight and the KV have owners of their own; `rows`, `kv` and `tiers` are
    there to be read.
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
        self.rows = RowLedger(config.max_rows, config.block_size, stage.conditioned)
        self._held = KvLedger(stage, config, kv_policies, self.name, tickets or count(), self.rows)
        self.kv, self.tiers = self._held.kv, self._held.tiers
        self.num_surplus_tokens = 0
        self.num_preemptions = 0
        self._policy = policy
        self._requests: dict[int, ArRequest] = {}
        self._waiting = WaitingQueue(stage.conditioned, self._held.lacks)
        self._flights = Flights()
        self._num_submitted = 0

    # -- requests ------------------------------------------------------------------------------------

    def check(self, prompt: StagePrompt, share: float = 1.0) -> None:
        """Raises LimitExceeded if the prompt and one token of reply do not fit into this share of what could
        ever be held."""
        reach, room = len(prompt.token_ids) + 1, int(share * self._held.sizes.capacity)
        if reach > room:
            raise LimitExceeded(f"{self.stage} context tokens", room, reach, "Shorten the input")

    def submit(self, request: ArRequest) -> None:
        """Queue a request whose prompt passed `check`."""
        request.order = self._num_submitted + BEST_EFFORT_ORDER * request.is_best_effort
        self._num_submitted += 1
        self._requests[request.request] = request
        self._waiting.add(request)

    def push(self, request: int, token: int) -> None:
        """One more upstream token for a conditioned stage."""
        active = self._requests.get(request)
        if active is None:
            return
        active.inputs.append(token)
        if active.row is not None:
            self.rows.push(active.row, token)

    def grant(self, request: int, tokens: int) -> None:
        """Its consumer has come so far that it may draw so many tokens in all."""
        active = self._requests.get(request)
        if active is None:
            return
        active.granted = tokens
        if active.row is not None:
            self.rows.grant(active.row, tokens)

    def close(self, request: int) -> None:
        """No more upstream tokens will come."""
        active = self._requests.get(request)
        if active is None:
            return
        active.closed = True
        if active.row is not None:
            self.rows.close(active.row)

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
            self._leave(active)
        return active

    def hand_on(self, request: int, target: str) -> ArRequest:
        """Take out a running request that goes on at the unit `target`, which may copy its KV."""
        active = self._requests.pop(request)
        active.lease = self._held.lend(active, target)
        self._leave(active)
        return active

    @property
    def leases(self) -> tuple[KvLease, ...]:
        """What other units may copy from here."""
        return tuple(self._held.leases)

    def take_back(self, lease: KvLease) -> None:
        """It is over."""
        self._held.take_back(lease)

    def forget(self, session: str) -> None:
        """Drop the session's idle KV."""
        self._held.forget(session, self._flights.last)

    def lacks(self, request: ArRequest) -> frozenset[int]:
        """Media that a request would have to compute if it joined now, and that are not at hand."""
        return self._held.lacks(request)

    @property
    def is_lacking(self) -> bool:
        """Would `lacking` return anything?"""
        return self._waiting.is_lacking

    def lacking(self) -> dict[int, frozenset[int]]:
        """Waiting requests that could not join for want of media, and which, since the last call."""
        return self._waiting.lacking()

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
        head = self._waiting.head
        self.tiers.tend("" if head is None else head.owner, now)

    def plan(self, step: int, now: float) -> ArStep | None:
        """The next step, or None if nothing can run."""
        budget = Budget(self.config.step_tokens, self.config.max_rows)
        while True:
            self.tiers.begin_plan()
            self.rows.num_waiting = len(self._waiting)
            self.rows.num_spare = self.kv.num_spare
            self.rows.crowded = self._is_crowded()
            choice = self._policy.decide(self.rows, budget, now)
            self._preempt(choice.preempt)
            order = self._carry_out(step, choice, budget)
            if order is not None or not len(choice.preempt):
                return order

    def _is_crowded(self) -> bool:
        """Could the next request join if best-effort work gave up its rows? What is pending free comes by
        itself."""
        head = self._waiting.head
        if head is None or head.is_best_effort or self._num_pending_free:
            return False
        if not self.rows.best_effort[self.rows.running].any():
            return False
        joins = self.rows.num_free > 0 and self._held.fits(head, self.rows.num_needy)
        return not joins and self._waiting.is_ready(head)

    def _carry_out(self, step: int, choice: StepChoice, budget: Budget) -> ArStep | None:
        joins = self._admit(0 if len(choice.preempt) else choice.admit)
        rows, counts = self._take(self._order(choice, joins), budget)
        if not len(rows) and not joins:
            return None
        starts = self.rows.planned[rows]
        emits = (starts + counts >= self.rows.to_compute[rows]).astype(np.int64)
        self.rows.plan(rows, counts, emits)
        requests = self.rows.request[rows]
        newcomers = tuple(join.request for join in joins)
        flight = Flight(rows, requests, starts + counts, newcomers, self._waits(requests))
        self._flights.begin(step, flight)
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
        blocks, changes = self._held.drain(), self.rows.drain()
        waits = self._flights[step].waits
        return ArStep(
            stage=self.name,
            step=step,
            joins=tuple(joins),
            leaves=changes.leaves,
            blocks=blocks,
            inputs_rows=changes.inputs_rows,
            inputs_tokens=changes.inputs_tokens,
            rows=columns[0],
            starts=columns[1],
            counts=columns[2],
            emits=columns[3],
            reason=reason,
            waits=tuple(sorted(ticket for transfer in waits for ticket in transfer.tickets)),
        )

    def _admit(self, most: int) -> list[Join]:
        """First come first served, until rows or blocks run out. Requests that are not ready are passed over,
        and hold up no other."""
        if not most or not self._waiting or not self.rows.num_free:
            return []
        joins: list[Join] = []
        needed = self.rows.num_needy
        for request in list(self._waiting):
            if len(joins) == most or not self.rows.num_free:
                break
            if not self._waiting.is_ready(request):
                continue
            if not self._has_room(request, needed):
                break
            self._waiting.remove(request)
            joins.append(self._join(request))
        return joins

    def _join(self, request: ArRequest) -> Join:
        cached = self._held.open(request, self._flights.last)
        assert request.row is not None
        return Join(
            request.row,
            request.request,
            request.prompt,
            cached,
            request.sampling,
            np.array(request.tokens, np.int64).reshape(-1, self.config.width),
            request.first_input,
            request.voice,
            request.residual,
        )

    def _has_room(self, request: ArRequest, needed: int) -> bool:
        """True if there are blocks for it beside `needed` ones, for what comes back from the host too. May
        evict what it would have begun with, so readiness is checked again."""
        has_room = self._held.fits(request, needed) and self._held.has_way_back(request)
        return has_room and self._waiting.is_ready(request)

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
        runs = np.ones(len(order), np.bool_)
        runs[short] = self._held.grow(self._of(order[short]), ends[short])
        return order[runs], counts[runs]

    def _of(self, rows: Ints) -> list[ArRequest]:
        """The requests of these rows."""
        return [self._requests[number] for number in self.rows.request[rows].tolist()]

    # -- giving up rows ------------------------------------------------------------------------------

    def _leave(self, request: ArRequest) -> None:
        """It loses row and sequence; what survives a turn is kept as the session's past."""
        assert request.row is not None
        self._held.leave(request, self._flights.last)
        self.rows.leave(request.row, self._flights.last)
        request.row = None

    def _preempt(self, rows: Ints) -> None:
        for request in self._of(rows):
            self._leave(request)
            self._waiting.add(request)
            self.num_preemptions += 1

    # -- accounting ----------------------------------------------------------------------------------

    def is_flying(self, step: int) -> bool:
        """Is its report still to come?"""
        return step in self._flights

    def named_by(self, step: int) -> tuple[int, ...]:
        """Requests that ran or joined in a step in flight, whatever its executor will say of them."""
        return self._flights[step].named

    def copied(self, fact: CopyFact, now: float) -> None:
        """A copy was answered. On failure, preempt every row whose blocks it was filling."""
        broken = set(self.tiers.copied(fact, now))
        if not broken:
            return
        rows = self.rows.running
        sequences = zip(rows.tolist(), (request.sequence for request in self._of(rows)), strict=True)
        self._preempt(ints([row for row, one in sequences if one and not broken.isdisjoint(one.blocks)]))

    def retry(self, fact: StepFailed) -> frozenset[int]:
        """Before a failed step is observed: if it waited for a copy that may have failed, all that it named
        begin anew, as often as they may. Returns them, and those that had begun anew already."""
        flight = self._flights[fact.step]
        if not flight.doubtful:
            return frozenset()
        self.tiers.distrust(flight.doubtful)
        row_of = flight.row_of
        alive = [self._requests[one] for one in flight.named if one in self._requests]
        seated = [one for one in alive if one.row is not None and one.row == row_of.get(one.request, one.row)]
        spent = {one.request for one in seated if one.num_retries == MOST_RETRIES}
        again = [one for one in seated if one.request not in spent]
        for one in again:
            one.num_retries += 1
        self._preempt(ints([one.row for one in again if one.row is not None]))
        return frozenset(one.request for one in alive) - spent

    def observe(self, fact: StageFact) -> list[Progress]:
        """Fold a reported step in. A failed step brings no progress: its requests are to be aborted."""
        flight = self._flights.end(fact.step)
        progress: list[Progress] = []
        if isinstance(fact, StepDone):
            self._confirm(flight)
            progress = self._emitted(flight, fact)
        self.kv.settle(fact.step)
        self.rows.settle(fact.step)
        return progress

    def _confirm(self, flight: Flight) -> None:
        """The rows still theirs have come this far; the blocks that they filled may be shared."""
        current = self.rows.request[flight.rows] == flight.requests
        rows, reach = flight.rows[current], flight.reach[current]
        size = self.config.block_size
        filled = reach // size > self.rows.confirmed[rows] // size
        self.rows.confirm(rows, reach)
        for request in self._of(rows[filled]):
            self._held.fill(request)

    def _emitted(self, flight: Flight, fact: StepDone) -> list[Progress]:
        """A token each. That of a request that has left its row since, preempted or for good, is surplus."""
        progress: list[Progress] = []
        row_of, requests, stops = flight.row_of, self._requests, self.config.stop_ids
        firsts: list[int] = fact.tokens[:, 0].tolist()
        for request, first, tokens in zip(fact.requests.tolist(), firsts, fact.tokens, strict=True):
            active = requests.get(request)
            if active is None or active.row is None or active.row != row_of.get(request):
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
        """It is over. It still tells the row that it had: a hand-off of this moment may name it."""
        del self._requests[active.request]
        row = active.row
        self._leave(active)
        active.row = row

    @property
    def _num_pending_free(self) -> int:
        """Rows and blocks that come back by themselves once steps and copies under way are done."""
        return self.rows.num_pending_free + self.kv.num_pending_free

    def check_integrity(self) -> None:
        """Rows, blocks and queues agree; raises AssertionError otherwise."""
        self._held.check_integrity()
        seated = {request.row: request for request in self._requests.values() if request.row is not None}
        self.rows.check_integrity(seated)
        if not self._flights and not self.tiers.num_in_flight and not self.leases:
            assert not self._num_pending_free, "blocks stay pending behind the steps in flight"
