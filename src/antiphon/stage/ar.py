"""The step scheduler of an autoregressive stage."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.errors import LimitExceeded
from antiphon.core.facts import Ints, StageFact, StagePrompt, StepDone
from antiphon.core.graph import Stage, Survives
from antiphon.core.plans import ArStep, BlockDelta, Join, ints
from antiphon.core.sampling import Sampling
from antiphon.kv.blocks import BlockPool
from antiphon.kv.sequences import Sequence, StageKv
from antiphon.policy.base import Budget, StepPolicy
from antiphon.stage.groups import kv_groups
from antiphon.stage.rows import Rows

Entry = tuple[str, int, int, int]
"""A block table entry: (group, row, index, block)."""


@dataclass(slots=True)
class ArRequest:
    """A request of this stage. `tokens` are its confirmed tokens, the stop token left out."""

    request: int
    session: str
    prompt: StagePrompt
    sampling: Sampling
    first_input: int | None = None
    voice: str | None = None
    inputs: list[int] = field(default_factory=list[int])
    closed: bool = False
    row: int | None = None
    sequence: Sequence | None = None
    cached: int = 0
    tokens: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class Progress:
    """What a reported step brought a request: its new token row, or its end ("stop" or "length")."""

    request: int
    tokens: Ints | None
    end: str | None


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step in flight: which request each row worked for, and how far its KV then reaches."""

    rows: Ints
    requests: Ints
    reach: Ints


class ArScheduler:
    """Queues, rows and KV of one AR stage; turns a policy's choice into a step's delta."""

    def __init__(self, stage: Stage, config: ArConfig, policy: StepPolicy) -> None:
        self.name = stage.name
        self.survives = stage.survives
        self.config = config
        self.kv = StageKv(kv_groups(stage, config), config.num_blocks, config.block_size)
        self.rows = Rows(config.max_rows, stage.conditioned)
        self.num_surplus_tokens = 0
        self._policy = policy
        self._row_pool = BlockPool(config.max_rows)
        self._requests: dict[int, ArRequest] = {}
        self._waiting: OrderedDict[int, ArRequest] = OrderedDict()
        self._flights: OrderedDict[int, _Flight] = OrderedDict()
        self._leaves: list[int] = []
        self._new_inputs: list[tuple[int, int]] = []

    # -- requests ------------------------------------------------------------------------------------

    def check(self, prompt: StagePrompt) -> None:
        """Raises LimitExceeded if the prompt and one token of reply could never fit."""
        reach = len(prompt.token_ids) + 1
        if reach > self._capacity:
            raise LimitExceeded(f"{self.name} context tokens", self._capacity, reach, "Shorten the input")

    def submit(self, request: ArRequest) -> None:
        """Queue a request whose prompt passed `check`."""
        self._requests[request.request] = request
        self._waiting[request.request] = request
        self.rows.num_waiting = len(self._waiting)

    def push(self, request: int, token: int) -> None:
        """One more upstream token for a conditioned stage."""
        active = self._requests.get(request)
        if active is None:
            return
        active.inputs.append(token)
        if active.row is not None:
            self.rows.inputs[active.row] += 1
            self._new_inputs.append((active.row, token))

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
        if self._waiting.pop(request, None) is None:
            self._retire(active)
        self.rows.num_waiting = len(self._waiting)
        return active

    def forget(self, session: str) -> None:
        """Drop the session's idle KV."""
        self.kv.drop(session, self._busy_until)

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
        choice = self._policy.decide(self.rows, budget, now)
        blocks: list[Entry] = []
        joins = self._admit(choice.admit, blocks)
        at = choice.admit_at
        order = np.concatenate([choice.rows[:at], ints([join.row for join in joins]), choice.rows[at:]])
        rows, counts = self._take(order, budget, blocks)
        if not len(rows) and not joins:
            return None
        starts = self.rows.planned[rows].copy()
        emits = (starts + counts >= self.rows.prompt[rows]).astype(np.int64)
        self.rows.planned[rows] += counts
        self.rows.sampled[rows] += emits
        self._flights[step] = _Flight(rows, self.rows.request[rows].copy(), starts + counts)
        return self._step(step, joins, blocks, (rows, starts, counts, emits), choice.reason)

    def _step(
        self,
        step: int,
        joins: list[Join],
        blocks: list[Entry],
        columns: tuple[Ints, Ints, Ints, Ints],
        reason: str,
    ) -> ArStep:
        leaves, self._leaves = self._leaves, []
        inputs, self._new_inputs = self._new_inputs, []
        return ArStep(
            stage=self.name,
            step=step,
            joins=tuple(joins),
            leaves=ints(leaves),
            blocks=_block_deltas(self.kv.groups, blocks),
            inputs_rows=ints([row for row, _ in inputs]),
            inputs_tokens=ints([token for _, token in inputs]),
            rows=columns[0],
            starts=columns[1],
            counts=columns[2],
            emits=columns[3],
            reason=reason,
        )

    def _admit(self, most: int, blocks: list[Entry]) -> list[Join]:
        """First come first served, until rows or blocks run out."""
        joins: list[Join] = []
        while self._waiting and len(joins) < most and self._row_pool.num_free:
            request = next(iter(self._waiting.values()))
            if not self.kv.fits(self._reach(request)):
                break
            self._waiting.popitem(last=False)
            joins.append(self._join(request, blocks))
        self.rows.num_waiting = len(self._waiting)
        return joins

    def _join(self, request: ArRequest, blocks: list[Entry]) -> Join:
        row = self._row_pool.allocate(1)[0]
        prompt = request.prompt
        sequence, cached = self.kv.open(request.session, prompt.keys, self._reach(request), self._busy_until)
        self.rows.join(row, request.request, len(prompt.token_ids), cached, self._limit(request))
        request.row, request.sequence, request.cached = row, sequence, cached
        self.rows.inputs[row] = len(request.inputs)
        self.rows.closed[row] = int(request.closed)
        self.rows.blocks[row] = sequence.num_blocks
        self._new_inputs += [(row, token) for token in request.inputs]
        for group, held in sequence.blocks.items():
            blocks += [(group, row, index, block) for index, block in enumerate(held)]
        return Join(
            row, request.request, prompt, cached, request.sampling, request.first_input, request.voice
        )

    def _take(self, order: Ints, budget: Budget, blocks: list[Entry]) -> tuple[Ints, Ints]:
        """Rows take tokens from the budget in order; a row that gets none, or no block, sits out."""
        order = order[: budget.rows]
        wanted = self.rows.wanted(order)
        before = np.cumsum(wanted) - wanted
        counts = np.clip(budget.tokens - before, 0, wanted)
        runs = counts > 0
        ends = self.rows.planned[order] + counts
        short = runs & (ends > self.rows.blocks[order] * self.config.block_size)
        for i in np.nonzero(short)[0].tolist():
            runs[i] = self._grow(int(order[i]), int(ends[i]), blocks)
        return order[runs], counts[runs]

    def _grow(self, row: int, num_tokens: int, blocks: list[Entry]) -> bool:
        sequence = self._requests[int(self.rows.request[row])].sequence
        assert sequence is not None
        entries = self.kv.grow(sequence, num_tokens)
        if entries is None:
            return False
        blocks += [(group, row, index, block) for group, index, block in entries]
        self.rows.blocks[row] = sequence.num_blocks
        return True

    # -- accounting ----------------------------------------------------------------------------------

    def observe(self, fact: StageFact) -> list[Progress]:
        """Fold a reported step in. A failed step brings no progress: its requests are to be aborted."""
        flight = self._flights.pop(fact.step)
        progress: list[Progress] = []
        if isinstance(fact, StepDone):
            current = self.rows.request[flight.rows] == flight.requests
            self.rows.confirmed[flight.rows[current]] = flight.reach[current]
            for request, tokens in zip(fact.requests.tolist(), fact.tokens, strict=True):
                progress += self._emitted(request, tokens)
        self._settle(fact.step)
        return progress

    def _emitted(self, request: int, tokens: Ints) -> list[Progress]:
        active = self._requests.get(request)
        if active is None:
            self.num_surplus_tokens += 1
            return []
        if int(tokens[0]) in self.config.stop_ids:
            self._finish(active)
            return [Progress(request, None, "stop")]
        active.tokens.append(int(tokens[0]))
        if len(active.tokens) < self._limit(active):
            return [Progress(request, tokens, None)]
        self._finish(active)
        return [Progress(request, tokens, "length")]

    def _finish(self, active: ArRequest) -> None:
        del self._requests[active.request]
        self._retire(active)

    def _retire(self, active: ArRequest) -> None:
        """Free the row; keep of the KV what survives a turn, as far as reported steps filled it."""
        assert active.row is not None
        assert active.sequence is not None
        row, busy = active.row, self._busy_until
        keys = np.concatenate([active.prompt.keys, ints(active.tokens)])[: int(self.rows.confirmed[row])]
        if self.survives is Survives.PROMPT:
            keys = keys[: active.prompt.num_stable]
        if self.survives is Survives.NONE:
            self.kv.discard(active.sequence, busy)
        else:
            self.kv.park(active.session, active.sequence, keys, busy)
        self.rows.leave(row)
        self._row_pool.release([row], busy)
        self._leaves.append(row)
        self._new_inputs = [entry for entry in self._new_inputs if entry[0] != row]

    def _settle(self, step: int) -> None:
        """Steps report in order, so everything up to `step` is done."""
        self.kv.settle(step)
        self._row_pool.settle(step)

    @property
    def _busy_until(self) -> int | None:
        return next(reversed(self._flights)) if self._flights else None

    @property
    def _capacity(self) -> int:
        """Tokens that one request alone could have in the KV."""
        return self.kv.num_blocks * self.config.block_size

    def _limit(self, request: ArRequest) -> int:
        """Tokens to draw, at most what the KV holds beside the prompt.

        A frame stage draws one less than asked: the last code of a cut reply is never spoken.
        """
        most = request.sampling.max_tokens
        most = most if self.config.width == 1 else max(most - 1, 1)
        return min(most, self._capacity - len(request.prompt.token_ids))

    def _reach(self, request: ArRequest) -> int:
        return len(request.prompt.token_ids) + self._limit(request)

    def check_integrity(self) -> None:
        """Rows, blocks and queues agree; raises AssertionError otherwise."""
        self.kv.check_integrity()
        if not self._flights:
            assert not self.kv.num_limbo + self._row_pool.num_limbo, "limbo outlives the steps in flight"
        live = {request.row for request in self._requests.values() if request.row is not None}
        self._row_pool.check_integrity(sorted(live))
        for row in live:
            request = self._requests[int(self.rows.request[row])]
            assert request.row == row, "a row names a request that sits elsewhere"
            assert request.sequence is not None
            assert request.sequence.num_blocks == int(self.rows.blocks[row]), "block count of a row is wrong"
        assert (self.rows.confirmed <= self.rows.planned).all(), "confirmed runs ahead of planned"


def _block_deltas(groups: tuple[str, ...], entries: list[Entry]) -> tuple[BlockDelta, ...]:
    """One column set per group."""
    deltas: list[BlockDelta] = []
    for group in groups:
        mine = np.array([entry[1:] for entry in entries if entry[0] == group], np.int64)
        if len(mine):
            deltas.append(BlockDelta(group, mine[:, 0], mine[:, 1], mine[:, 2]))
    return tuple(deltas)
