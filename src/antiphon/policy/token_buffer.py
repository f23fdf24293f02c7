"""TokenFlow's scheduling (EuroSys '26): text at the reader's pace. While memory is short it goes to those
whose readers are about to run dry, and to those who wait for the first word. A reply that is far ahead lends
its place; its KV waits on the host, where most of it has been written already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import floor, inf, isnan
from typing import NamedTuple

import numpy as np

from antiphon.core.errors import ConfigError
from antiphon.core.facts import Floats, Ints, Mask
from antiphon.policy.base import (
    LATENCY,
    NO_HOLD,
    SHORTER,
    Budget,
    Hold,
    Place,
    StepChoice,
    StepView,
    Told,
    is_starved,
    prompts_first,
)
from antiphon.policy.memory import NOTHING, KvState, KvView, Selection, num_beside_step, num_short
from antiphon.policy.rounds import SOON_S, Rounds, known_s
from antiphon.policy.working_set import Plan

OVERLOADED = "first come first served: more is read than this stage keeps up with"
LOOK = 8
"""Owners that are written in one call."""


class _Looked(NamedTuple):
    """Of a preempted request that is to go on: since when, and until when it is held, so that it is known by
    then what the device lacks of it. What is found out before that changes nothing until then."""

    since: float
    until: float


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where the requests of a view that wait for a row stand in a plan.

    plan     and `request`, the view's column: whose places these are
    places   among those that are to get a row; -1: it is none of them. [waiting]
    """

    plan: Plan
    request: Ints
    places: Ints


class TokenBuffer:
    """Decides which requests run, what leaves the device, what is written early and what comes back.

    interval_s  between two rounds (Δt of §4.2)
    value_s     seconds of buffer up to which a further token is worth its full value; from twice as much on
                it is worth nothing (v of eq. 3)
    gamma       weight of a reader who may run dry (eq. 3)
    safety      how many times as long as it takes to leave and come back a reply must be ahead of its reader
                before it gives way (μ of §4.2.1)
    adjusts     how far the working set stays below what memory holds, as a share of the way down to what runs
                (λ of eq. 5)
    grows       how many times what a request holds now it is taken to hold (β of eq. 4)
    load        share of the tokens a second that a full batch makes, up to which readers are taken (eq. 6)
                with the fallback, or without a host
    fallback    beyond all of that the oldest requests go first, as the paper has it (§4.3); off: those whose
                readers run dry do then too, and a host takes all that it has room for. That serves readers
                better
    ahead       share of a tier that is kept free while the tier below has room
    write       write full blocks to the host as they come (§5.1); off: when they leave
    """

    name = "token-buffer"
    together = "step", "pace", "evict", "write", "fetch"
    by_reading = True
    rounds_by = Rounds

    def __init__(
        self,
        interval_s: float = 0.5,
        value_s: float = 5.0,
        gamma: float = 2.0,
        safety: float = 1.5,
        adjusts: float = 0.25,
        grows: float = 2.0,
        load: float = 0.9,
        fallback: bool = False,
        ahead: float = 1 / 32,
        write: bool = True,
    ) -> None:
        if not 0 <= ahead <= 0.5:
            raise ConfigError(f"ahead is {ahead}; it is a share of the blocks, from 0 to 0.5")
        unknown = "step_unknown", "link_unknown"
        decided = "rounds", "preempted", "brought", "computed"
        short = "fcfs_begun", "starved", "held_at_door", "throttled"
        self.events: dict[str, int] = dict.fromkeys((*unknown, *decided, *short), 0)
        self._interval_s, self._ahead, self._write = interval_s, ahead, write
        self._rounds = self.rounds_by(
            interval_s, value_s, gamma, safety, adjusts, grows, load, fallback, self.events
        )
        self._plan: Plan | None = None
        """Of this interval; None: no request has to give way, and prompts go first."""
        self._placed: _Placed | None = None
        """Of the view that was looked at last: it is asked several times a choice."""
        self._seen: tuple[Ints, Floats] = np.zeros(0, np.int64), np.zeros(0)
        """Requests, and their leads, as of the last look at the stage."""
        self._leads_s: dict[int, float] | None = None
        """Their leads by request; None: nothing was asked of them since."""
        self._num_rows = 0
        """That are in use, as of then."""
        self._paused: set[int] = set()
        """Requests that lost their row, or have begun and have none, as of then, and those that lost theirs
        since."""
        self._unbegun: set[int] = set()
        """Those of them that have shown nothing yet: they lost their row within their prompt."""
        self._held: dict[int, _Looked] = {}
        """Preempted requests that are to go on."""
        self._is_anew = False
        """The plan was made, or given up, when it was asked last."""
        self._brings: dict[int, bool] = {}
        """Of those looked at, until they have a row: is their KV brought? Else what it lacks is computed."""
        self._block_size = 1

    # -- which requests run --------------------------------------------------------------------------

    def decide_pace(self, view: StepView, now: float) -> Hold:
        """The working set and its balance, decided anew in each interval while any finds no room (§4.2).
        Held back are requests that are to go on, for a look at where their KV is, and agents that slow down
        readers who run dry."""
        hold = self._look(view, now)
        throttled = self._throttled(view)
        if not throttled.any():
            return hold
        self.events["throttled"] += 1
        held = np.zeros(len(view.request), np.bool_) if hold.held is None else hold.held
        held[: view.num_rows] = throttled
        return Hold(held, "readers beside it are about to run dry", hold.wake_at)

    def _throttled(self, view: StepView) -> Mask:
        """Agents that have more than their least rate gives them, while a reader beside them is about to run
        dry and steps are shorter without them, and short enough for its rate (§8). One such reader runs, so
        that nothing stalls. [rows]."""
        rows = slice(view.num_rows)
        runs = view.ready[rows] & view.begun[rows]
        agents = runs & (view.rate[rows] == inf) & (view.lead_s[rows] > 0)
        if view.cost is None or not agents.any():
            return np.zeros(view.num_rows, np.bool_)
        readers = runs & np.isfinite(view.rate[rows]) & (view.tier[rows] == LATENCY)
        dry = readers & (view.lead_s[rows] < self._interval_s)
        if not dry.any():
            return np.zeros(view.num_rows, np.bool_)
        counts, contexts = view.tokens[rows], view.context[rows]
        with_s, without_s = (
            view.cost.seconds(counts[among], contexts[among])
            for among in (view.ready[rows], view.ready[rows] & ~agents)
        )
        helps = without_s <= SHORTER * with_s and (view.rate[rows][dry] * without_s <= 1).any()
        return agents & helps

    def _look(self, view: StepView, now: float) -> Hold:
        """A round, where one is due; and which requests are held until it is known where their KV is."""
        self._seen = view.request, np.where(view.rate == inf, inf, view.lead_s)
        self._leads_s = None
        num_rows = self._num_rows = view.num_rows
        self._block_size = view.block_size
        goes_on = view.begun[num_rows:].copy()
        if self._unbegun:
            goes_on |= np.isin(view.request[num_rows:], [*self._unbegun])
        self._paused = {*view.request[num_rows:][goes_on].tolist()}
        self._unbegun &= self._paused
        for one in self._brings.keys() - self._paused:
            del self._brings[one]
        plan_before = self._plan
        waits = self._waiting(view)
        if not view.num_blocks or not self._is_pressed(view, waits):
            self._plan = None
        elif self._plan is None or self._plan.tick != self._tick(now):
            self._plan = self._rounds.decide(view, waits, self._coming(view), self._tick(now))
            still = self._plan.resumes.requests
            self._brings = {one: does for one, does in self._brings.items() if does or one in still}
        self._is_anew = self._rounds.has_host and self._plan is not plan_before
        goes_on &= view.ready[num_rows:]
        if self._plan is not None:
            goes_on &= self._places(view) >= 0
        at = goes_on.nonzero()[0] + num_rows
        if not len(at) or not self._rounds.has_host:
            self._held.clear()
            return NO_HOLD
        requests: list[int] = view.request[at].tolist()
        before, look = self._held, _Looked(now, now + SOON_S)
        self._held = {one: before.get(one, look) for one in requests}
        until = np.array([one.until for one in self._held.values()])
        for place in (until <= now).nonzero()[0].tolist():
            one = requests[place]
            if one not in self._brings:
                self._held[one] = _Looked(self._held[one].since, look.until)
                until[place] = look.until
        is_held = until > now
        if not is_held.any():
            return NO_HOLD
        held = np.zeros(len(view.request), np.bool_)
        held[at[is_held]] = True
        wake_at = float(until[is_held].min())
        return Hold(held, "it was preempted, and goes on once it is known where its KV is", wake_at)

    def _tick(self, now: float) -> int:
        """The interval that this moment is in: what ends it is later."""
        tick = floor(now / self._interval_s)
        return tick if (tick + 1) * self._interval_s > now else tick + 1  # the quotient was rounded

    def decide_step(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        """Prompts first while all find room; else as the round has it."""
        self._rounds.most_rows = budget.rows
        choice = self._unpressed(view) if self._plan is None else self._pressed(view)
        if len(choice.preempt):
            self._paused.update(view.request[choice.preempt].tolist())
            self._unbegun.update(view.request[choice.preempt[~view.begun[choice.preempt]]].tolist())
        return replace(choice, moves=True) if self._is_anew else choice

    def _pressed(self, view: StepView) -> StepChoice:
        """As the round has it."""
        assert self._plan is not None
        rows = slice(view.num_rows)
        is_dry = self._is_dry(view)
        gives_way = self._plan.gives_way.places(view.request[rows]) >= 0
        gives_way &= ~(is_dry & view.begun[rows] & (view.tier[rows] == LATENCY))
        preempt = gives_way.nonzero()[0]
        if not len(preempt) and is_starved(view):
            preempt = self._least_needed(view)
        return StepChoice(
            self._order(view, preempt, is_dry),
            OVERLOADED if self._rounds.is_fcfs else "whose readers run dry first",
            preempt=preempt,
            keeps=np.ones(len(preempt), np.bool_),
            wake_at=(self._plan.tick + 1) * self._interval_s,
        )

    def tell_step(self, view: StepView, at: int, now: float) -> Told:
        """How far its reader is from running dry, and what follows."""
        lead_s, request = float(view.lead_s[at]), int(view.request[at])
        reader = f"{lead_s:.1f} s of it are left to be read or heard"
        if not view.begun[at]:
            reader = f"nothing of it is there yet, after {view.age_s[at]:.1f} s"
        elif view.rate[at] == inf:
            reader = "an agent takes it, and never runs dry"
        elif isnan(lead_s):
            reader = "how fast it is read is not known"
        if self._plan is None:
            return Told("", f"all find room; {reader}")
        until = (self._plan.tick + 1) * self._interval_s
        if request in self._plan.gives_way.requests:
            return Told("gives way", f"others need the memory more; {reader}", until)
        if view.row[at] >= 0:
            return Told("runs", reader, until)
        if request in self._plan.resumes.requests:
            return Told(
                "is next", f"{reader}; its KV is brought" if self._brings.get(request) else reader, until
            )
        return Told("waits", f"others need the memory more; {reader}", until)

    def _unpressed(self, view: StepView) -> StepChoice:
        """All that are there run. If blocks are short all the same, what is furthest ahead gives way."""
        choice = prompts_first(view)
        if not len(choice.preempt):
            return choice
        preempt = self._least_needed(view)
        ready = view.ready[: view.num_rows].copy()
        ready[preempt] = False
        return StepChoice(ready.nonzero()[0], choice.reason, preempt=preempt, keeps=np.ones(1, np.bool_))

    def _is_pressed(self, view: StepView, waits: Mask) -> bool:
        """One of `waits` finds no room beside all others. waits: [waiting]."""
        num_waiting = int(np.count_nonzero(waits))
        if not num_waiting:
            return False
        if num_waiting > view.num_free_rows + view.num_pending_rows:
            return True
        spare = view.num_free + view.num_pending_free + view.num_evictable - view.num_promised
        return int(view.needs[view.num_rows :][waits].sum()) > spare

    def _waiting(self, view: StepView) -> Mask:
        """Of those without a row, which a person waits for and which could run, or whose KV is coming:
        [waiting]."""
        waiting = slice(view.num_rows, None)
        could_run = view.ready[waiting]
        if self._plan is not None:
            could_run = could_run | (self._places(view) >= 0)
        return (view.tier[waiting] == LATENCY) & could_run

    def _places(self, view: StepView) -> Ints:
        """Of each without a row, its place among those that are to get one; -1: it is none of them.
        [waiting]."""
        assert self._plan is not None
        placed, request = self._placed, view.request
        if placed is None or placed.plan is not self._plan or placed.request is not request:
            places = self._plan.resumes.places(request[view.num_rows :])
            placed = self._placed = _Placed(self._plan, request, places)
        return placed.places

    def _least_needed(self, view: StepView) -> Ints:
        """The row whose reader has most left to read; before all else work that no person waits for, and then
        what an agent takes."""
        self.events["starved"] += 1
        rows = np.arange(view.num_rows)
        late = view.tier[rows] != LATENCY
        lead_s = np.where(view.begun[rows], np.fmax(view.lead_s[rows], 0.0), 0.0)
        return np.lexsort((rows, lead_s, view.rate[rows] == inf, late))[-1:]

    def _coming(self, view: StepView) -> Mask:
        """Those that the last round had go on and whose KV is still on its way: another round would not have
        it sooner, and if each chose others while links are slow, none would ever run. [waiting]."""
        if self._plan is None:
            return np.zeros(len(view.request) - view.num_rows, np.bool_)
        coming = (self._places(view) >= 0) & ~view.ready[view.num_rows :]
        requests: list[int] = view.request[view.num_rows :][coming].tolist()
        coming[coming] = [self._brings.get(request, False) for request in requests]
        return coming

    # -- in between ----------------------------------------------------------------------------------

    def _order(self, view: StepView, preempt: Ints, is_dry: Mask) -> Ints:
        """Rows: what is about to run dry, then prompts, and what is well ahead; then what gets a row, as the
        round has it. Best effort comes behind people of both kinds. is_dry: [rows]."""
        num_rows = view.num_rows
        ready = view.ready[:num_rows].copy()
        ready[preempt] = False
        reading = view.reading[:num_rows]
        is_ahead = ~(reading | is_dry)
        parts = [(ready & of).nonzero()[0] for of in (is_dry & ~reading, reading, is_ahead)]
        places = self._places(view)
        at = (places >= 0).nonzero()[0]
        resumed = at[places[at].argsort()] + num_rows
        if not (ready.any() or view.ready[resumed].any() or self._is_bringing(view, resumed)):
            could_run = view.ready[num_rows:].nonzero()[0][:1] + num_rows
            resumed = np.concatenate((resumed, could_run))  # one must run
        order = np.concatenate((*parts, resumed))
        is_late = view.tier[order] != LATENCY
        return np.concatenate((order[~is_late], order[is_late]))

    def _is_dry(self, view: StepView) -> Mask:
        """Of each row: has its reader not begun, or nothing left to read by the end of an interval? No agent
        has. [rows]."""
        rows = slice(view.num_rows)
        return (np.fmax(view.lead_s[rows], 0.0) < self._interval_s) & (view.rate[rows] != inf)

    def _is_bringing(self, view: StepView, resumed: Ints) -> bool:
        """Is any KV to be brought of those that are to get a row, a session's past included, or is one held
        for a look at where its KV is? What that finds before the hold ends changes nothing until then."""
        assert self._plan is not None
        if any(one in self._held or self._brings.get(one, False) for one in self._plan.resumes.requests):
            return True
        return bool((view.place[resumed] == Place.COMING).any())

    # -- KV (§5) -------------------------------------------------------------------------------------

    def decide_evict(self, view: KvView, now: float) -> Selection:
        """What no request runs on, used longest ago first; then what was preempted, the furthest ahead of its
        reader first. Of the host, copies of what runs go before any that are the only ones."""
        if view.tier == "host":
            count = view.num_wanted - view.num_free
            return (
                Selection(self._spare_copies(view), count, "a copy of it is left") if count > 0 else NOTHING
            )
        count = num_short(view, self._ahead)
        return Selection(self._leaving(view), count, "its reader has most left to read") if count else NOTHING

    def _leaving(self, view: KvView) -> Iterator[str]:
        requests = view.requests
        resumes = {} if self._plan is None else self._plan.resumes.requests
        paused: list[tuple[float, str]] = []
        for owner in view.oldest():
            request = requests.get(owner)
            if request is None:
                yield owner
            elif request not in resumes:
                paused.append((self._lead_s(request), owner))
        yield from (owner for _, owner in sorted(paused, reverse=True))

    def _spare_copies(self, view: KvView) -> Iterator[str]:
        """Copies of the rows, those that give way last first, then what rests; nothing of what gave way."""
        requests = view.requests
        yield from sorted(
            (owner for owner in requests if view.state(owner) is KvState.RUNNING),
            key=lambda owner: self._lead_s(requests[owner]),
        )
        yield from (owner for owner in view.oldest() if owner not in requests)

    def decide_write(self, view: KvView, now: float) -> Selection:
        """Full blocks of those that run, the furthest ahead of its reader first, as much as goes beside the
        step (§5.1, §5.2)."""
        self._rounds.note_links(view, self._write)
        if not self._write or not view.num_below:
            return NOTHING
        requests = view.requests
        found = [(self._lead_s(requests[one]), one) for one in view.dirty() if one in requests]
        if not found:
            return NOTHING
        owners = [owner for _, owner in islice(sorted(found, reverse=True), LOOK)]
        return Selection(owners, num_beside_step(view, self.events), "it may have to leave")

    def decide_fetch(self, view: KvView, now: float) -> Selection:
        """What a request waits for. Of those that were preempted only what is to go on, unless it is computed
        sooner (§4.2.3). Asked again soon while there is KV of any that is preempted: the round that has it
        go on comes after this. The stage may since have come to rest, and is then not looked at again."""
        self._rounds.note_links(view, self._write)
        requests, waiting = view.requests, list(view.waiting())
        owner_of = {request: owner for owner, request in requests.items()}
        self._brings |= dict.fromkeys(self._paused - owner_of.keys(), False)  # it has no KV, or is over
        back = view.back
        queued_s = known_s(back.queued_s)
        owners: list[str] = []
        for request in self._going_on(view, waiting):
            owner = owner_of.get(request)
            if owner is None or not self._brings.get(request, True):
                continue
            num_away, look = view.num_away(owner), self._held.get(request)
            if num_away and look is not None and request not in self._brings and owner not in waiting:
                owners.append(owner)  # others are before it; some of it may come all the same
                if now >= look.since + self._interval_s:
                    self._brings[request] = False
            elif self._is_brought(request, num_away, queued_s, back.block_s):
                owners.append(owner)
                queued_s += num_away * known_s(back.block_s)
        owners += [owner for owner in waiting if owner not in requests]
        paused = (owner_of[one] for one in self._paused & owner_of.keys())
        is_any_paused = any(view.state(owner) is not KvState.RUNNING for owner in paused)
        wake_at = now + SOON_S if is_any_paused else None
        is_first = self._plan is not None
        return Selection(owners, view.num_blocks, "a request is to go on", wake_at=wake_at, is_first=is_first)

    def _going_on(self, view: KvView, waiting: list[str]) -> list[int]:
        """Preempted requests whose KV is looked at: those that the round has go on, in its order; while all
        find room, all that are known to wait for theirs."""
        known = dict.fromkeys((*self._brings, *self._held))
        if self._plan is not None:
            return [one for one in self._plan.resumes.requests if one in known]
        requests = view.requests
        return [*known | dict.fromkeys(requests[owner] for owner in waiting if owner in requests)]

    def _is_brought(self, request: int, num_away: int, queued_s: float, block_s: float) -> bool:
        """Decided once, until it runs again or a round has others go on. What computes it holds up every row
        of the step, and what brings it only itself: the sooner of the two, by the time of rows. What has to
        leave before there is room holds up either."""
        if request not in self._brings:
            load_s = queued_s + num_away * block_s
            compute_s = num_away * self._block_size * self._rounds.token_s
            held_up_s = compute_s * max(self._num_rows, 1)
            is_brought = self._brings[request] = num_away > 0 and not load_s > held_up_s
            self.events["brought" if is_brought else "computed"] += num_away > 0
        return self._brings[request]

    def _lead_s(self, request: int) -> float:
        """A request's lead when a step was last chosen; 0 of one that has nothing yet."""
        if self._leads_s is None:
            self._leads_s = dict(zip(*(column.tolist() for column in self._seen), strict=True))
        lead_s = self._leads_s.get(request, 0.0)
        return 0.0 if isnan(lead_s) else lead_s
