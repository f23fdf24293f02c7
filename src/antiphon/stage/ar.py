"""The step scheduler of an autoregressive stage: takes requests, asks the policies, folds in what steps
brought."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from math import inf
from typing import cast

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.errors import LimitExceeded
from antiphon.core.facts import CopyFact, StageFact, StagePrompt, StepDone, StepFailed
from antiphon.core.graph import Stage
from antiphon.core.plans import ArStep
from antiphon.kv.transfers import CopyOrder, KvLease
from antiphon.policy.base import Budget, Candidate, Refuse, StepChoice, StepView, Tier
from antiphon.stage.beside import WaitBounds
from antiphon.stage.candidates import ArCandidates, Surroundings
from antiphon.stage.kv_ledger import KvLedger
from antiphon.stage.policies import Chooser, StagePolicies, changes, to_run
from antiphon.stage.requests import ArRequest, RequestProgress
from antiphon.stage.rows import RowLedger
from antiphon.stage.step_maker import Flight, StepMaker
from antiphon.stage.tending import Tending
from antiphon.stage.waiting import WaitingQueue

MOST_RETRIES = 3
"""How often a request may begin anew after a step that failed while it waited for copies."""
MOST_IN_VAIN = 8
"""How often a request may be preempted beyond the steps that draw tokens."""


class ArScheduler(Chooser[ArCandidates, Flight]):
    """Owner of which requests the stage has.

    The queue, the rows, the steps in flight and the KV have owners of their own; `waiting`, `rows`, `kv`,
    `tiers` and `steps` are there to be read. What the policy chose becomes a step in `StepMaker`.
    """

    def __init__(
        self,
        stage: Stage,
        config: ArConfig,
        policies: StagePolicies,
        name: str = "",
        tickets: Iterator[int] | None = None,
        around: Surroundings | None = None,
    ) -> None:
        """name: the unit's, where the stage has several; tickets: ascending, where several share them."""
        super().__init__(policies, around)
        self.name = name or stage.name
        self.stage = stage.name
        self.config = config
        self.rows = rows = RowLedger(config.max_rows, config.block_size, stage.conditioned)
        self._around.rows.tell(self.name, self._around.stage, lambda: rows.in_use)
        self._around.beside.tell(self.name, self._patience)
        tickets = tickets or count()
        self._held = KvLedger(stage, config, policies.kv, self.name, tickets, self.rows, self._around.lanes)
        self.kv, self.tiers = self._held.kv, self._held.tiers
        self.num_surplus_tokens = 0
        self.num_preemptions = 0
        self._requests: dict[int, ArRequest] = {}
        self.waiting = WaitingQueue(stage.conditioned, self._held)
        self._tending = Tending(self.waiting, self.rows, self._held)
        ledgers = self.rows, self._held
        cost = self._around.cost
        self.steps = StepMaker(self.name, config, self._requests, self.waiting, ledgers, self._flights, cost)
        self._num_submitted = 0
        self._in_vain: dict[int, int] = {}
        """Preempted requests, and how often: one less for each step since that drew tokens."""
        self._is_alone = False

    # -- requests ------------------------------------------------------------------------------------

    def check(self, prompt: StagePrompt, share: float = 1.0) -> None:
        """Raises LimitExceeded if the prompt and one token of reply do not fit into this share of what could
        ever be held."""
        reach, room = len(prompt.token_ids) + 1, int(share * self._held.sizes.capacity)
        if reach > room:
            raise LimitExceeded(f"{self.stage} context tokens", room, reach, "Shorten the input")

    def admit(self, request: ArRequest, now: float) -> Refuse | None:
        """What the policy says of a request whose prompt passed `check`, before it is submitted."""
        candidate = Candidate(
            len(request.prompt.token_ids),
            self._held.cached(request),
            request.tier,
            float(self._around.ttft_s[request.tier]),
            float(self._around.tpot_s[request.tier]),
        )
        return self._policies.admission.decide(cast(StepView, self._candidates(now)), candidate, now)

    def has_spare(self, request: ArRequest) -> bool:
        """Are there blocks for a new request that hold nothing?"""
        return self._held.has_spare(request)

    @changes
    def submit(self, request: ArRequest) -> None:
        """Queue a request whose prompt passed `check`."""
        request.order = self._num_submitted
        self._num_submitted += 1
        self._requests[request.request] = request
        self._held.look(request)
        self.waiting.add(request)

    @changes
    def push(self, request: int, token: int) -> None:
        """One more upstream token for a conditioned stage."""
        active = self._requests.get(request)
        if active is None:
            return
        active.inputs.append(token)
        if active.row is not None:
            self.rows.push(active.row, token)
        else:
            self.waiting.changed(active)

    @changes
    def grant(self, request: int, tokens: int) -> None:
        """Its consumer has come so far that it may draw so many tokens in all."""
        active = self._requests.get(request)
        if active is not None:
            active.granted = tokens
            self._update(active)

    @changes
    def close(self, request: int) -> None:
        """No more upstream tokens will come."""
        active = self._requests.get(request)
        if active is not None:
            active.closed = True
            self._update(active)

    def _update(self, request: ArRequest) -> None:
        """Its credit or its tier is another one, or no more upstream tokens will come."""
        if request.row is not None:
            self.rows.update(request)
        else:
            self.waiting.changed(request)

    @changes
    def arrived(self, request: int) -> None:
        """What was handed over for it is there."""
        if self.waits_for_payload(request):
            self._requests[request].waits_for_payload = False
            self.waiting.changed(self._requests[request])

    @changes
    def got_media(self, request: ArRequest, keys: frozenset[int]) -> None:
        """The outputs of these media are at hand for it, whether it is submitted already or not."""
        request.media = keys

    def waits_for_payload(self, request: int) -> bool:
        return request in self._requests and self._requests[request].waits_for_payload

    @changes
    def abort(self, request: int) -> ArRequest | None:
        """Take the request out at once; what steps in flight bring for it is dropped. None if unknown."""
        active = self._requests.pop(request, None)
        self._in_vain.pop(request, None)
        if active is None:
            return None
        if active.row is None:
            self.waiting.remove(active)
            self._held.give_up(active)
        else:
            self._leave(active)
        return active

    @changes
    def hand_on(self, request: int, target: str) -> ArRequest:
        """Take out a running request that goes on at the unit `target`, which may copy its KV."""
        active = self._requests.pop(request)
        self._in_vain.pop(request, None)
        active.lease = self._held.lend(active, target)
        self._leave(active)
        return active

    @property
    def leases(self) -> tuple[KvLease, ...]:
        """What other units may copy from here."""
        return tuple(self._held.leases)

    @changes
    def take_back(self, lease: KvLease) -> None:
        """It is over."""
        self._held.take_back(lease)

    @changes
    def forget(self, session: str, as_cache: bool = False) -> None:
        """Drop the session's resting KV; `as_cache`: other prompts find it until its room is needed."""
        self._held.forget(session, self._flights.last, as_cache)

    def lacks(self, request: ArRequest) -> frozenset[int]:
        """Media that a new request will have to compute, as it looks now."""
        return self._held.lacks(request, with_host=True)

    @changes
    def rank(self, request: ArRequest, tier: Tier) -> None:
        """Its tier is another one from now on, whether it is submitted already or not."""
        request.tier = tier
        if request.request in self._requests:
            self._update(request)

    @property
    def held(self) -> dict[str, tuple[int, int]]:
        """KV of each session, as (tokens, blocks): its running request's, or what it left behind."""
        held = self._held.held
        for active in self._requests.values():
            if active.row is not None and active.sequence is not None:
                held[active.session] = int(self.rows.confirmed[active.row]), active.sequence.num_blocks
        return held

    def find(self, request: int) -> ArRequest | None:
        """Waiting or running, to be read only."""
        return self._requests.get(request)

    def is_short_of_blocks(self, request: ArRequest) -> bool:
        """Of one that waits, as it was looked at last: does it need more blocks than are free?"""
        return self._held.sizes.promise(request) - request.found_used > self.kv.blocks.num_free

    @property
    def requests(self) -> frozenset[int]:
        """Waiting and running."""
        return frozenset(self._requests)

    @property
    def num_running(self) -> int:
        return len(self._requests) - len(self.waiting)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) or self.rows.has_work

    @property
    def is_churning(self) -> bool:
        """True if a request is preempted again and again while no step draws a token."""
        return bool(self._in_vain) and max(self._in_vain.values()) >= MOST_IN_VAIN

    # -- memory --------------------------------------------------------------------------------------

    def drain(self) -> tuple[CopyOrder, ...]:
        """Copies ordered since the last call: they go before the step that was planned with them."""
        return self.tiers.drain()

    def tell_time(self, now: float) -> None:
        super().tell_time(now)
        self.tiers.asks.tell_time(now)

    def tend(self, now: float) -> None:
        """As `Tending` says."""
        self._tending.tend(self.num_changes, now)

    def write(self, left_s: Callable[[], float] | None = None, is_new: bool = False) -> None:
        """As `Tending` says."""
        self._tending.write(self.num_changes, left_s, is_new)

    @property
    def state(self) -> tuple[int, int]:
        return self._tending.state(self.num_changes)

    @property
    def kv_wakes_at(self) -> float | None:
        """When a policy of the unit's KV wishes to be asked again."""
        return self._tending.wakes_at

    # -- planning ------------------------------------------------------------------------------------

    @property
    def budget(self) -> Budget:
        return self.steps.budget

    def spendable(self, now: float) -> Budget:
        """A step that may read a prompt is bounded for the replies beside it."""
        budget, bound_s = self.budget, self.config.step_s
        rows = self.rows.running
        is_prompt_near = bool(self.waiting) or np.count_nonzero(self.rows.wanted(rows) > 1) > 0
        if is_prompt_near and bound_s != 0:
            bounded = self._around.beside.bounded(self.name, budget, now)
            if self._is_alone and bounded.unread_s is not None:
                bounded = replace(bounded, unread_s=inf)
            if bounded.seconds < inf:
                budget = bounded if bound_s is None else replace(budget, seconds=bound_s)
        self.steps.spendable = budget
        return budget

    def _patience(self, now: float) -> WaitBounds:
        """Of the replies that are being drawn here."""
        rows = self.rows.running
        rows = rows[self.rows.planned[rows] >= self.rows.to_compute[rows]]
        return self._around.patience(self.rows.tier[rows], self.rows.slot[rows], now)

    def choose(self, now: float) -> tuple[ArCandidates, StepChoice]:
        is_anew = self._chosen is None
        chosen = super().choose(now)
        if is_anew:
            self._tending.chosen(*chosen, now)
        return chosen

    def plan(self, step: int, now: float) -> ArStep | None:
        """The next step, or None if nothing can run."""
        while True:
            self.tiers.room.begin_plan()
            view, choice = self._taken(now)
            order, counts = to_run(view, choice)
            self.waiting.note_lacked()
            preempted = self._preempt(view, choice)
            planned = self.steps.carry_out(step, view, choice, order, counts)
            if planned is not None or not preempted:
                return self._noted(planned, now)

    def join_early(self, step: int, now: float) -> ArStep | None:
        """Nothing else can run on the device: the first request whose KV is on its way joins, and its step
        waits for the copies layer by layer. None if there is none."""
        if not self.tiers.num_in_flight:
            return None
        return self._noted(self.steps.join_early(step, *self._taken(now)), now)

    def be_alone(self, is_alone: bool) -> None:
        """Does nothing else run on the device? Then prompts are read at once."""
        self._is_alone, self._chosen = is_alone, None

    def _noted(self, planned: ArStep | None, now: float) -> ArStep | None:
        """The planned step, noted: the stage has changed with it, and prompts may have been read."""
        if planned is not None:
            self.num_changes += 1
            if (planned.counts > 1).any():
                self._around.beside.read(self.name, now)
        return planned

    def _look_at_evicted(self) -> None:
        """Preempted requests whose KV left the device since they were looked at."""
        known = self.tiers.known
        for owner in known.evicted:
            active = self._requests.get(known.request.get(owner, -1))  # it may be over
            if active is not None and active.row is None:
                self.waiting.look(active)
        known.evicted.clear()

    def _candidates(self, now: float) -> ArCandidates:
        self._look_at_evicted()
        self.waiting.look_at_heads()
        return ArCandidates(self.name, self._around, now, self.rows, self._held, self.waiting)

    # -- giving up rows ------------------------------------------------------------------------------

    def _leave(self, request: ArRequest, keep: bool = False) -> None:
        """It loses row and sequence; what survives a turn is kept as the session's past, or (`keep`) all of
        it for itself."""
        assert request.row is not None
        self._held.leave(request, self._flights.last, keep)
        self.rows.leave(request.row, self._flights.last)
        request.row = None

    def _preempt(self, view: ArCandidates, choice: StepChoice) -> bool:
        keeps = choice.keeps
        for at, candidate in enumerate(choice.preempt.tolist()):
            request = self._requests[int(view.request[candidate])]
            self._requeue(request, keeps is not None and bool(keeps[at]))
            self._in_vain[request.request] = self._in_vain.get(request.request, 0) + 1
        return len(choice.preempt) > 0

    @changes
    def _requeue(self, request: ArRequest, keep: bool = False) -> None:
        """It gives up its row, and waits again."""
        self._leave(request, keep)
        self._held.look(request)
        self.waiting.add(request)
        self.num_preemptions += 1

    # -- accounting ----------------------------------------------------------------------------------

    def named_by(self, step: int) -> tuple[int, ...]:
        """Requests that ran or joined in a step in flight, whatever its executor will say of them."""
        return self._flights[step].named

    @changes
    def copied(self, fact: CopyFact) -> None:
        """A copy was answered. On failure, preempt every row whose blocks it was filling."""
        broken = set(self.tiers.copied(fact))
        for request in self.steps.of(self.rows.running) if broken else ():
            if request.sequence is not None and not broken.isdisjoint(request.sequence.blocks):
                self._requeue(request)

    @changes
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
        for one in seated:
            if one.request not in spent:
                one.num_retries += 1
                self._requeue(one)
        return frozenset(one.request for one in alive) - spent

    @changes
    def observe(self, fact: StageFact) -> list[RequestProgress]:
        """Fold a reported step in. A failed step brings no progress: its requests are to be aborted."""
        flight = self._flights.pop(fact.step)
        progress: list[RequestProgress] = []
        if isinstance(fact, StepDone):
            progress = self._emitted(fact, self._confirm(flight))
        if progress and self._in_vain:
            self._in_vain = {one: times - 1 for one, times in self._in_vain.items() if times > 1}
        self.kv.blocks.settle(fact.step)
        self.rows.settle(fact.step)
        return progress

    def _confirm(self, flight: Flight) -> frozenset[int]:
        """The rows still theirs have come this far; the blocks that they filled may be shared. Returns the
        requests that have left their rows since, preempted or for good."""
        current = self.rows.request[flight.rows] == flight.requests
        rows, reach = flight.rows[current], flight.reach[current]
        size = self.config.block_size
        filled = reach // size > self.rows.confirmed[rows] // size
        self.rows.confirm(rows, reach)
        for request in self.steps.of(rows[filled]):
            self._held.fill(request)
        return frozenset(flight.requests[~current].tolist())

    def _emitted(self, fact: StepDone, left: frozenset[int]) -> list[RequestProgress]:
        """A token each. Those of requests that have left their rows since are surplus."""
        progress: list[RequestProgress] = []
        requests, stops = self._requests, self.config.stop_ids
        firsts: list[int] = fact.tokens[:, 0].tolist()
        num = len(firsts)
        samples, audio = (fact.samples.tolist(), fact.audio) if fact.audio else ([0] * num, (b"",) * num)
        emitted: list[int] = []
        logs = fact.logprobs or (b"",) * num
        columns = fact.requests.tolist(), firsts, fact.tokens[:, None], samples, audio, logs
        for request, first, tokens, num_samples, sound, log in zip(*columns, strict=True):
            active = requests.get(request)
            if request in left or active is None or active.row is None:
                self.num_surplus_tokens += 1
                continue
            if first in stops and not active.sampling.ignore_eos:
                progress.append(RequestProgress(request, None, first, "stop", logprobs=log))
                self._finish(active)
                continue
            emitted.append(active.slot)
            active.tokens.append(tokens)
            active.fresh.append(first)
            end = "length" if len(active.tokens) >= active.limit else None
            progress.append(RequestProgress(request, tokens, first, end, num_samples, sound, log))
            if end is not None:
                self._finish(active)
        if self._around.stage is not None:
            slots = np.array(emitted, np.intp)
            self._around.frontier.make(self._around.stage, slots, now=self.tiers.asks.now)
        return progress

    def _finish(self, active: ArRequest) -> None:
        """It is over. It still tells the row that it had: a hand-off of this moment may name it."""
        del self._requests[active.request]
        self._in_vain.pop(active.request, None)
        row = active.row
        self._leave(active)
        active.row = row

    def check_integrity(self) -> None:
        """Rows, blocks and queues agree; raises AssertionError otherwise."""
        self._held.check_integrity()
        self.waiting.check_integrity()
        seated = {request.row: request for request in self._requests.values() if request.row is not None}
        self.rows.check_integrity(seated)
        if not self._flights and not self.tiers.num_in_flight and not self.leases:
            pending = self.rows.num_pending_free, self.kv.blocks.num_pending_free
            assert pending == (0, 0), "rows or blocks stay pending behind the steps in flight"
