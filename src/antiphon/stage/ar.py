"""The step scheduler of an autoregressive stage: takes requests, asks the policies, folds in what steps
brought."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from typing import cast

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.errors import LimitExceeded
from antiphon.core.facts import NO_INTS, CopyFact, StageFact, StagePrompt, StepDone, StepFailed
from antiphon.core.graph import Stage
from antiphon.core.plans import ArStep
from antiphon.kv.transfers import CopyOrder, KvLease
from antiphon.policy.base import Budget, Candidate, Mask, Refuse, StepChoice, StepView, Tier
from antiphon.stage.beside import Patience
from antiphon.stage.candidates import ArCandidates, Surroundings
from antiphon.stage.flights import Flight
from antiphon.stage.kv_asks import idle
from antiphon.stage.kv_ledger import KvLedger
from antiphon.stage.policies import Chooser, Question, StagePolicies, changes, soonest, to_run
from antiphon.stage.requests import ArRequest, RequestProgress
from antiphon.stage.rows import RowLedger
from antiphon.stage.step_maker import StepMaker
from antiphon.stage.waiting import WaitingQueue

MOST_RETRIES = 3
"""How often a request may begin anew after a step that failed while it waited for copies."""
MOST_IN_VAIN = 8
"""How often a request may be preempted beyond the steps that draw tokens."""


class ArScheduler(Chooser[ArCandidates, Flight]):
    """Owner of which requests the stage has.

    The queue, the rows, the steps in flight and the KV have owners of their own; `rows`, `kv` and `tiers` are
    there to be read. What the policy chose becomes a step in `StepMaker`.
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
        self._waiting = WaitingQueue(stage.conditioned, self._held.sizes)
        ledgers = self.rows, self._held
        cost = self._around.cost
        self._steps = StepMaker(
            self.name, config, self._requests, self._waiting, ledgers, self._flights, cost
        )
        self._num_submitted = 0
        self._in_vain: dict[int, int] = {}
        """Preempted requests, and how often: one less for each step since that drew tokens."""
        self._head: ArRequest | None = None
        """The first that a person waits for, as of the last view."""
        self._named = NO_INTS
        """Waiting requests in the order in which the policy named them last, if some were not ready."""
        self._has_host = self.tiers.host.num_blocks > 0
        self._is_alone = False
        self._kept, self._to_write = Question(), Question()
        self._lacked: tuple[ArRequest, frozenset[int]] | None = None
        """It, and the media that it turned out to lack when a policy looked; noted by the next plan."""

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
        self._waiting.add(request)

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
            self._waiting.changed(active)

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
            self._waiting.changed(request)

    @changes
    def arrived(self, request: int) -> None:
        """What was handed over for it is there."""
        if self.waits_for_payload(request):
            self._requests[request].waits_for_payload = False
            self._waiting.changed(self._requests[request])

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
            self._waiting.remove(active)
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
    def is_lacking(self) -> bool:
        """Would `lacking` return anything?"""
        return self._waiting.is_lacking

    def lacking(self) -> dict[int, frozenset[int]]:
        """Waiting requests that could not join for want of media, and which, since the last call."""
        return self._waiting.lacking()

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

    def could_run(self, request: ArRequest) -> bool:
        """Of one that waits: are its payload and its upstream text there, and may it draw?"""
        return self._waiting.could_run(request)

    def is_short_of_blocks(self, request: ArRequest) -> bool:
        """Of one that waits, as it was looked at last: does it need more blocks than are free?"""
        return self._held.sizes.promise(request) - request.found_used > self.kv.blocks.num_free

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
    def has_work(self) -> bool:
        return bool(self._waiting) or self.rows.has_work

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
        """At every decision, before steps are planned: evict ahead, and fetch. Without a host nothing leaves
        the device before it must."""
        if not self._has_host:
            return
        before = self.state
        if self._kept.is_due(before, now):
            self._kept.asked(before, self._tended(now), now)

    def _tended(self, now: float) -> float | None:
        """When the policies wish to be asked again."""
        in_turn = self._waiting.in_turn
        if len(self._named) and len(in_turn) > self.rows.num_free:
            places = {one: at for at, one in enumerate(self._named.tolist())}
            in_turn.sort(key=lambda one: places.get(one.request, len(places)))
        could_join = [one for one in in_turn if one.lease is None][: self.rows.num_free]
        wanted = self._held.wanted(could_join)
        wake_at = self.tiers.tend(wanted, in_turn[0].owner if in_turn else "", self.rows.num_short)
        for request in could_join:
            since_s = request.reload_wait_since_s
            if self.tiers.fetches.is_coming(request.owner):
                request.reload_wait_since_s = now if since_s is None else since_s
            elif since_s is not None:
                self.tiers.waited(since_s, bool(request.tokens))
                request.reload_wait_since_s = None
        return wake_at

    def write(self, left_s: Callable[[], float] | None = None, is_new: bool = False) -> None:
        """At every decision, after steps are planned: write what will have to leave. `left_s`: seconds that
        the step on this device will still take; None: none runs. is_new: it was ordered now."""
        if not self._has_host:
            return
        now = self.tiers.asks.now
        before = self.state
        if is_new or self._to_write.is_due(before, now):
            self._to_write.asked(before, self.tiers.write(left_s or idle), now)

    @property
    def state(self) -> tuple[int, int]:
        tiers = self.tiers
        return self.num_changes + tiers.num_changes, tiers.room.num_claimed

    @property
    def kv_wakes_at(self) -> float | None:
        """When a policy of the unit's KV wishes to be asked again."""
        asked = self.tiers.asks.wake_at
        return soonest(self._kept.wake_at, self._to_write.wake_at, asked) if self._has_host else asked

    # -- planning ------------------------------------------------------------------------------------

    @property
    def budget(self) -> Budget:
        return self._steps.budget

    def spendable(self, now: float) -> Budget:
        """A step that may read a prompt is bounded for those who live beside it."""
        budget, bound_s = self.budget, self.config.step_s
        rows = self.rows.running
        is_prompt_near = bool(self._waiting) or np.count_nonzero(self.rows.wanted(rows) > 1) > 0
        if is_prompt_near and bound_s != 0:
            bounded = self._around.beside.bounded(self.name, budget, now)
            if self._is_alone and bounded.unread_s is not None:
                bounded = replace(bounded, unread_s=inf)
            if bounded.seconds < inf:
                budget = bounded if bound_s is None else replace(budget, seconds=bound_s)
        self._steps.spendable = budget
        return budget

    @property
    def num_cut_steps(self) -> int:
        """Steps whose prompts were cut for those who live beside them."""
        return self._steps.num_cut

    @property
    def num_untimed_steps(self) -> int:
        """Steps beside whose prompts others lived, and whose time was not known."""
        return self._steps.num_untimed

    def _patience(self, now: float) -> Patience:
        """Of those whose replies are being drawn here."""
        rows = self.rows.running
        rows = rows[self.rows.planned[rows] >= self.rows.to_compute[rows]]
        return self._around.patience(self.rows.tier[rows], self.rows.slot[rows], now)

    def choose(self, now: float) -> tuple[ArCandidates, StepChoice]:
        """The same; what it changes of KV is asked for at the next call, which is due at once."""
        is_anew = self._chosen is None
        view, choice = chosen = super().choose(now)
        if is_anew and self._has_host:
            named = choice.order[choice.order >= view.num_rows]
            self._named = NO_INTS if view.ready[named].all() else view.request[named]
        if is_anew and choice.moves:
            self._kept.reopen()
            self._kept.wake_at = now
        return chosen

    def plan(self, step: int, now: float) -> ArStep | None:
        """The next step, or None if nothing can run."""
        while True:
            self.tiers.room.begin_plan()
            view, choice = self._taken(now)
            order, counts = to_run(view, choice)
            self._note_lacked()
            preempted = self._preempt(view, choice)
            planned = self._steps.carry_out(step, view, choice, order, counts)
            if planned is not None or not preempted:
                return self._noted(planned, now)

    def join_early(self, step: int, now: float) -> ArStep | None:
        """Nothing else can run on the device: the first request whose KV is on its way joins, and its step
        waits for the copies layer by layer. None if there is none."""
        if not self.tiers.num_in_flight:
            return None
        return self._noted(self._steps.join_early(step, *self._taken(now)), now)

    @property
    def left_out(self) -> bool:
        """Did the last plan run nothing, and leave out prompts for those who live beside them?"""
        return self._steps.left_out

    def be_alone(self, is_alone: bool) -> None:
        """Does nothing else run on the device? Then prompts are read at once."""
        self._is_alone, self._chosen = is_alone, None

    def _noted(self, planned: ArStep | None, now: float) -> ArStep | None:
        """The same; with it the stage is another one, and prompts may have been read."""
        if planned is not None:
            self.num_changes += 1
            if (planned.counts > 1).any():
                self._around.beside.read(self.name, now)
        return planned

    def _look(self, request: ArRequest) -> None:
        """Note what one that waits would find on the device now."""
        self._held.look(request)
        self._waiting.changed(request)

    def _look_at_evicted(self) -> None:
        """Preempted requests whose KV left the device since they were looked at."""
        known = self.tiers.known
        for owner in known.evicted:
            active = self._requests.get(known.request.get(owner, -1))  # it may be over
            if active is not None and active.row is None:
                self._look(active)
        known.evicted.clear()

    def _candidates(self, now: float) -> ArCandidates:
        self._look_at_evicted()
        self._head = self._waiting.first()
        for head in (self._head, self._waiting.first(Tier.BEST_EFFORT)):
            if head is not None:
                self._look(head)
        return ArCandidates(
            self.name,
            self._around,
            now,
            (self.rows, self.kv),
            (list(self._waiting), self._waiting.columns),
            self._could_join,
            self._held.place,
            self._held.reload_s,
        )

    def _could_join(self, waiting: Sequence[ArRequest], could_run: Mask) -> Mask:
        """By what is cheap to know; of the first request, also its media."""
        could_join = could_run.copy()
        if coming := self.tiers.fetches.coming:
            could_join &= [request.owner not in coming for request in waiting]
        at = next((at for at, request in enumerate(waiting) if request is self._head), None)
        if at is not None and could_join[at]:
            lacking = self._held.lacks(waiting[at], with_host=True)
            could_join[at] = not lacking
            self._lacked = (waiting[at], lacking) if lacking else None
        return could_join

    def _note_lacked(self) -> None:
        """What the first request lacks is asked for once the stage has its turn, whoever looked before."""
        lacked, self._lacked = self._lacked, None
        if lacked is not None and self._requests.get(lacked[0].request) is lacked[0]:
            self._waiting.note_lacking(*lacked)

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
        self._waiting.add(request)
        self.num_preemptions += 1

    # -- accounting ----------------------------------------------------------------------------------

    def named_by(self, step: int) -> tuple[int, ...]:
        """Requests that ran or joined in a step in flight, whatever its executor will say of them."""
        return self._flights[step].named

    @changes
    def copied(self, fact: CopyFact) -> None:
        """A copy was answered. On failure, preempt every row whose blocks it was filling."""
        broken = set(self.tiers.copied(fact))
        for request in self._steps.of(self.rows.running) if broken else ():
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
        for request in self._steps.of(rows[filled]):
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
            is_over = len(active.tokens) >= active.limit
            end = "length" if is_over else None
            progress.append(RequestProgress(request, tokens, first, end, num_samples, sound, log))
            if is_over:
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
        self._waiting.check_integrity()
        seated = {request.row: request for request in self._requests.values() if request.row is not None}
        self.rows.check_integrity(seated)
        if not self._flights and not self.tiers.num_in_flight and not self.leases:
            pending = self.rows.num_pending_free, self.kv.blocks.num_pending_free
            assert pending == (0, 0), "rows or blocks stay pending behind the steps in flight"
