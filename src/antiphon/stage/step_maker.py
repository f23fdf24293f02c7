"""How a decoder's step is made of what its policy chose: requests get rows, rows get blocks and tokens, and
the step waits for the copies that bring what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isnan, nan

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.facts import NO_INTS, Ints, Mask
from antiphon.core.plans import ArStep, Join, ints
from antiphon.kv.transfers import Transfer
from antiphon.policy.base import Budget, StepChoice, StepCost, granted
from antiphon.stage.candidates import ArCandidates
from antiphon.stage.kv_ledger import KvLedger
from antiphon.stage.policies import Flights
from antiphon.stage.requests import ArRequest
from antiphon.stage.rows import RowLedger
from antiphon.stage.waiting import WaitingQueue


@dataclass(frozen=True, slots=True)
class Flight:
    """A step in flight.

    reach   int64 [n]: tokens in the KV of each row once it is done
    joined  requests that it gave a row
    waits   copies that bring what it reads
    """

    rows: Ints
    requests: Ints
    reach: Ints
    joined: tuple[int, ...]
    waits: tuple[Transfer, ...] = ()

    @property
    def row_of(self) -> dict[int, int]:
        """The row that worked for each request."""
        return dict(zip(self.requests.tolist(), self.rows.tolist(), strict=True))

    @property
    def named(self) -> tuple[int, ...]:
        """Requests that ran or joined in it, each once, whatever its executor will say of them."""
        return tuple(dict.fromkeys((*self.requests.tolist(), *self.joined)))

    @property
    def doubtful(self) -> list[Transfer]:
        """Copies that it waited for and that broke off, or may yet."""
        return [transfer for transfer in self.waits if transfer.is_doubtful]


class StepMaker:
    """Makes a unit's steps. Owns nothing: it is given the owners of queue, rows, KV and steps in flight."""

    def __init__(
        self,
        unit: str,
        config: ArConfig,
        requests: Mapping[int, ArRequest],
        waiting: WaitingQueue,
        ledgers: tuple[RowLedger, KvLedger],
        flights: Flights[Flight],
        cost: StepCost | None = None,
    ) -> None:
        """requests: those that wait and those that run."""
        self.budget = Budget(config.step_tokens, config.step_rows or config.max_rows)
        """Of any step, however long it takes."""
        self.spendable = self.budget
        """Of the next step."""
        self.num_cut = self.num_untimed = 0
        """Steps with prompts beside replies: cut for them, and those whose time was not known."""
        self.left_out = False
        """Nothing ran last, since prompts have had their share of the time."""
        self._cost = cost
        self._unit, self._config = unit, config
        self._requests, self._waiting, self._flights = requests, waiting, flights
        self._rows, self._held = ledgers
        self._tiers = self._held.tiers

    def carry_out(
        self, step: int, view: ArCandidates, choice: StepChoice, order: Ints, counts: Ints | None
    ) -> ArStep | None:
        """The candidates of `order` as far as they get rows, blocks and tokens (`counts`; None: all that they
        can take); None where nothing runs and no request joins."""
        self.left_out = False
        rows, counts, joins = self._seated(view, order, counts, choice.stops)
        rows, counts = self._take(*self._unhindered(rows, counts), choice.stops)
        planned = self._ordered(step, rows, counts, joins, choice.reason)
        self.left_out &= planned is None
        return planned

    def join_early(self, step: int, view: ArCandidates, choice: StepChoice) -> ArStep | None:
        """The first request whose KV is on its way joins, as chosen and then by age, and its step waits for
        the copies layer by layer. None if there is none."""
        self.spendable = replace(self.spendable, unread_s=None)
        named = choice.order[choice.order >= view.num_rows].tolist()
        for at in dict.fromkeys((*named, *range(view.num_rows, len(view)))):
            request = view.waiting[at - view.num_rows]
            is_held = view.held_back is not None and bool(view.held_back[at])
            if request.row is not None or is_held or not self._rows.num_free:
                continue
            if not self._waiting.could_run(request) or not self._tiers.fetches.is_ordered(request.owner):
                continue
            if self._held.lacks(request, with_host=True) or not self._held.fits(request, 0, with_coming=True):
                continue
            join = self._join(request, with_coming=True)
            rows, counts = self._take(ints([join.row]), None, choice.stops)
            return self._ordered(step, rows, counts, [join], choice.reason)
        return None

    def of(self, rows: Ints) -> list[ArRequest]:
        """The requests of these rows."""
        return [self._requests[number] for number in self._rows.request[rows].tolist()]

    # -- requests ------------------------------------------------------------------------------------

    def _seated(
        self, view: ArCandidates, order: Ints, counts: Ints | None, stops: bool
    ) -> tuple[Ints, Ints | None, list[Join]]:
        """The rows of the candidates in order, those that join included; and tokens for each."""
        joins: list[Join] = []
        waiting = (order >= view.num_rows).nonzero()[0] if view.waiting else NO_INTS
        rows, apart = view.rows_in_use, 0
        if len(waiting):
            rows = np.full(len(view), -1, np.int64)
            rows[: view.num_rows] = view.rows_in_use
            rows[: view.num_rows][self._rows.request[view.rows_in_use] < 0] = -1  # preempted meanwhile
            apart = self._rows.num_short
        for at in waiting.tolist():
            if not self._rows.num_free:
                order = order[:at] if stops else order
                break
            request = view.waiting[int(order[at]) - view.num_rows]
            if request.row is not None or not self._is_ready(request):
                continue
            if self._tiers.fetches.is_unfit(request.owner) and self._is_busy:
                fits = False  # there will be room for its KV to be brought
            else:
                fits = self._held.fits(request, apart) and self._is_ready(request)
            if not fits:
                order = order[:at] if stops else order
                break
            if self._is_left_out(view, order, counts, rows, at):
                self.left_out = True
                continue
            join = self._join(request)
            joins.append(join)
            rows[order[at]] = join.row
        seated = rows[order]
        runs = (seated >= 0) & self._rows.could_run[seated]
        if counts is not None:
            counts = counts[: len(order)][runs]
        return seated[runs], counts, joins

    def _is_left_out(self, view: ArCandidates, order: Ints, counts: Ints | None, rows: Ints, at: int) -> bool:
        """Is this one of `order` a prompt, and would neither it nor one with a row get any of the time?"""
        if self.spendable.unread_s is None:
            return False
        seated = rows[order]
        wanted = view.tokens[order] if counts is None else np.minimum(counts, view.tokens[order])
        if wanted[at] == 1 or self.left_out:
            return bool(wanted[at] > 1)
        request = view.waiting[int(order[at]) - view.num_rows]
        told = self._rows.told[seated]
        told[at] = request.sampling.prompt_logprobs and not request.tokens
        runs = (seated >= 0) & self._rows.could_run[seated]
        runs[runs] = self._are_there(seated[runs])
        runs[at] = True
        wanted = wanted[runs]
        given = granted(self.spendable, self._cost, wanted, view.context[order][runs], told[runs])
        return not given[wanted > 1].any()

    def _is_ready(self, request: ArRequest) -> bool:
        """True if its payload, upstream text, media and KV are there. Media that it lacks are noted."""
        if not self._waiting.could_run(request) or request.owner in self._tiers.fetches.coming:
            return False
        lacking = self._held.lacks(request)
        if lacking:
            self._waiting.note_lacking(request, lacking)
        return not lacking

    @property
    def _is_busy(self) -> bool:
        """Is anything under way that will leave room?"""
        is_running = len(self._requests) > len(self._waiting) or len(self._flights) > 0
        return is_running or self._tiers.num_in_flight > 0

    def _join(self, request: ArRequest, with_coming: bool = False) -> Join:
        self._waiting.remove(request)
        cached = self._held.open(request, self._flights.last, with_coming)
        assert request.row is not None
        return Join(
            request.row,
            request.request,
            request.prompt,
            cached,
            request.sampling,
            np.array(request.tokens, np.int64).reshape(-1, self._config.width),
            request.first_input,
            request.voice,
            request.residual,
            ints(list(request.draft)),
        )

    # -- rows ----------------------------------------------------------------------------------------

    def _unhindered(self, rows: Ints, counts: Ints | None) -> tuple[Ints, Ints | None]:
        """Without rows whose KV is on its way, where others can run: a step waits for its copies, and one
        late layer would hold up every row in it."""
        if not self._tiers.num_in_flight:
            return rows, counts
        there = self._are_there(rows)
        if there.all() or not there.any():
            return rows, counts
        return rows[there], None if counts is None else counts[there]

    def _are_there(self, rows: Ints) -> Mask:
        """Is the KV of these rows on the device?"""
        if not self._tiers.num_in_flight:
            return np.ones(len(rows), np.bool_)
        sequences = [one.sequence for one in self.of(rows)]
        return np.array([one is None or not self._tiers.bringing(one) for one in sequences], np.bool_)

    def _take(self, rows: Ints, counts: Ints | None, stops: bool) -> tuple[Ints, Ints]:
        """Rows take tokens from the budget in order; a row that gets none, or no block, sits out, or ends the
        step if it `stops`."""
        budget, cost = self.spendable, self._cost
        wanted, contexts = self._rows.wanted(rows), self._rows.planned[rows]
        counts = wanted if counts is None else np.minimum(counts, wanted)
        told = self._rows.told[rows]
        given = granted(budget, cost, counts, contexts, told)
        self.left_out |= len(rows) > 0 and not given.any()
        if budget.seconds < inf and given.any() and (counts > 1).any():
            took_s = nan if cost is None else cost.seconds(given[given > 0], contexts[given > 0])
            self.num_untimed += isnan(took_s)
            self.num_cut += bool((given < granted(self.budget, cost, counts, contexts, told)).any())
        if given is not counts:
            rows, counts = rows[given > 0], given[given > 0]
        ends = self._rows.planned[rows] + counts
        short = (ends > self._rows.blocks[rows] * self._config.block_size).nonzero()[0]
        if not len(short):
            return rows, counts
        runs = np.ones(len(rows), np.bool_)
        runs[short] = self._held.grow(self.of(rows[short]), ends[short])
        if stops:
            runs = np.logical_and.accumulate(runs)
        return rows[runs], counts[runs]

    def _ordered(self, step: int, rows: Ints, counts: Ints, joins: list[Join], reason: str) -> ArStep | None:
        """The step that runs so many tokens of these rows; None where nothing runs and no request joins."""
        if not len(rows) and not joins:
            return None
        starts = self._rows.planned[rows]
        emits = (starts + counts >= self._rows.to_compute[rows]).astype(np.int64)
        self._rows.plan(rows, counts, emits)
        requests = self._rows.request[rows]
        newcomers = tuple(join.request for join in joins)
        waits = self._waits(rows)
        self._flights[step] = Flight(rows, requests, starts + counts, newcomers, tuple(waits))
        blocks, (leaves, inputs_rows, inputs_tokens) = self._held.drain(), self._rows.drain()
        pairs = sorted((ticket, row) for one, row in waits.items() for ticket in one.tickets)
        late, tickets = [row for _, row in pairs], [ticket for ticket, _ in pairs]
        return ArStep(
            stage=self._unit,
            step=step,
            joins=tuple(joins),
            leaves=leaves,
            blocks=blocks,
            inputs_rows=inputs_rows,
            inputs_tokens=inputs_tokens,
            rows=rows,
            starts=starts,
            counts=counts,
            emits=emits,
            reason=reason,
            waits=(ints(late), ints(tickets)) if pairs else (NO_INTS, NO_INTS),
        )

    def _waits(self, rows: Ints) -> dict[Transfer, int]:
        """Copies that bring what these rows read, and the row that waits for each."""
        if not self._tiers.num_in_flight:
            return {}
        found: dict[Transfer, int] = {}
        for request in self.of(rows):
            assert request.row is not None
            assert request.sequence is not None
            found |= dict.fromkeys(self._tiers.bringing(request.sequence), request.row)
        return found
