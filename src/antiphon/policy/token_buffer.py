"""TokenFlow's scheduling (EuroSys '26): text at the reader's pace. While memory is short it goes to those
whose readers are about to run dry, and to those who wait for the first word. A reply that is far ahead lends
its place; its KV waits on the host, where most of it has been written already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import floor, inf, isnan, nan

import numpy as np

from antiphon.core.errors import ConfigError
from antiphon.core.facts import Ints
from antiphon.policy.base import (
    NO_HOLD,
    Budget,
    Floats,
    Hold,
    Mask,
    StepChoice,
    StepView,
    Tier,
    Told,
    is_starved,
)
from antiphon.policy.memory import NOTHING, KvState, KvView, Selection, num_beside_step, num_short
from antiphon.policy.prefill_first import PrefillFirst

LATENCY = int(Tier.LATENCY)
OVERLOADED = "first come first served: more is read than this stage keeps up with"
SOON_S = 0.02
"""So long what is to go on is held for a look at where its KV is."""
PROMPT = 512
"""Tokens of a prompt by which reading one is measured."""
LOOK = 8
"""Owners that are written in one call."""
MOST_SWAPS = 16
"""Candidates on either side of the cut that are looked at for swaps."""
RELAXES_AT = 0.9
"""Share of the bound below which first come first served is over again."""


@dataclass(slots=True)
class _Plan:
    """What was decided at a tick. Requests by number.

    gives_way  those with a row that lose it
    resumes    those without one that are to get it, the first first
    """

    tick: int
    gives_way: set[int] = field(default_factory=set[int])
    resumes: dict[int, None] = field(default_factory=dict[int, None])


@dataclass(frozen=True, slots=True)
class _Looked:
    """Of a preempted request that is to go on: since when, and until when it is held, so that it is known by
    then what the device lacks of it."""

    since: float
    until: float


@dataclass(slots=True)
class _Gains:
    """What running for an interval is worth (eq. 3), and what it takes: [n] each.

    gain    of running against staying out
    blocks  that it holds by the end of the interval
    """

    gain: Floats
    blocks: Ints


class TokenBuffer:
    """Decides who runs, what leaves the device, what is written early and what comes back.

    interval_s  between two rounds (Δt of §4.2)
    value_s     seconds of buffer up to which a further token is worth its full value; from twice as much on
                it is worth nothing (v of eq. 3)
    gamma       weight of a reader who may run dry (eq. 3)
    safety      how many times as long as it takes to leave and come back a reply must be ahead of its reader
                before it gives way (μ of §4.2.1)
    adjusts     how far the working set stays below what memory holds, as a share of the way down to what runs
                (λ of eq. 5)
    load        share of the tokens a second that a full batch makes, up to which readers are taken (eq. 6);
                beyond all of it requests are served first come first served
    ahead       share of a tier that is kept free while the tier below has room
    write       write full blocks to the host as they come (§5.1); off: when they leave
    """

    name = "token-buffer"

    def __init__(
        self,
        interval_s: float = 0.5,
        value_s: float = 5.0,
        gamma: float = 2.0,
        safety: float = 1.5,
        adjusts: float = 0.25,
        load: float = 0.9,
        ahead: float = 1 / 32,
        write: bool = True,
    ) -> None:
        for name, value in (("interval_s", interval_s), ("value_s", value_s), ("load", load)):
            if not 0 < value < inf:
                raise ConfigError(f"{name} is {value}; it must be above 0")
        if not 0 <= gamma < inf:
            raise ConfigError(f"gamma is {gamma}; it must be 0 or above")
        if not 1 <= safety < inf:
            raise ConfigError(f"safety is {safety}; it must be 1 or above")
        if not 0 <= adjusts < 1:
            raise ConfigError(f"adjusts is {adjusts}; it must be from 0 to below 1")
        if not 0 <= ahead <= 0.5:
            raise ConfigError(f"ahead is {ahead}; it is a share of the blocks, from 0 to 0.5")
        self._interval_s, self._value_s, self._gamma, self._safety = interval_s, value_s, gamma, safety
        self._adjusts, self._load, self._ahead, self._write = adjusts, load, ahead, write
        self._first = PrefillFirst()
        self._plan: _Plan | None = None
        """Of this interval; None: nobody has to give way, and prompts go first."""
        self._is_fcfs = False
        self._leads_s: dict[int, float] = {}
        """Of requests, as of the last look at the stage."""
        self._held: dict[int, _Looked] = {}
        """Preempted requests that are to go on."""
        self._brings: dict[int, bool] = {}
        """Of those looked at, until they have a row: is their KV brought? Else what it lacks is computed."""
        self._has_host = False
        self._most_rows = 1 << 30
        """Of a step."""
        self._swap_s = self._block_s = 0.0
        """To leave and come back, beside what the blocks themselves take, and to bring one of those."""
        self._num_host_free: float = inf
        self._block_size = 1
        self._token_s = nan
        """To read one of a prompt."""
        counted = "rounds", "preempted", "brought", "computed", "fcfs_begun", "starved", "held_at_door"
        self.events = dict.fromkeys(counted, 0)

    # -- who runs ------------------------------------------------------------------------------------

    def decide_pace(self, view: StepView, now: float) -> Hold:
        """The working set and its balance, decided anew in each interval while somebody finds no room (§4.2).
        What is to go on waits for a look at where its KV is, and is not computed before that."""
        requests: list[int] = view.request.tolist()
        self._leads_s = dict(zip(requests, view.lead_s.tolist(), strict=True))
        if self._brings:
            waiting = set(requests[view.num_rows :])
            self._brings = {one: how for one, how in self._brings.items() if one in waiting}
        if not view.num_blocks or not self._is_pressed(view):
            self._plan = None
        elif self._plan is None or self._plan.tick != floor(now / self._interval_s):
            self._plan = self._round(view, floor(now / self._interval_s))
        goes_on = (view.row < 0) & view.begun & view.ready
        if self._plan is not None:
            goes_on &= self._is_resumed(view)
        if not goes_on.any() or not self._has_host:
            self._held.clear()
            return NO_HOLD
        at = goes_on.nonzero()[0]
        self._held = {one: self._look(one, now) for one in view.request[at].tolist()}
        until = np.array([one.until for one in self._held.values()])
        if not (until > now).any():
            return NO_HOLD
        held = np.zeros(len(requests), np.bool_)
        held[at[until > now]] = True
        wake_at = float(until[until > now].min())
        return Hold(held, "it was preempted, and goes on once it is known where its KV is", wake_at)

    def _look(self, request: int, now: float) -> _Looked:
        """What is found out before it is over changes nothing until then."""
        look = self._held.get(request) or _Looked(now, now + SOON_S)
        if look.until <= now and request not in self._brings:
            return _Looked(look.since, now + SOON_S)
        return look

    def decide_step(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        """Prompts first while all find room; else as the round has it."""
        self._most_rows = budget.rows
        if self._plan is None:
            return self._unpressed(view, budget, now)
        preempt = np.isin(view.request[: view.num_rows], [*self._plan.gives_way]).nonzero()[0]
        if not len(preempt) and is_starved(view):
            preempt = self._least_needed(view)
        return StepChoice(
            self._order(view, preempt),
            OVERLOADED if self._is_fcfs else "whose readers run dry first",
            preempt=preempt,
            keeps=np.ones(len(preempt), np.bool_),
            wake_at=(self._plan.tick + 1) * self._interval_s,
        )

    def tell_step(self, view: StepView, at: int, now: float) -> Told:
        """How far its reader is from running dry, and what follows."""
        lead_s, request = float(view.lead_s[at]), int(view.request[at])
        reader = f"its reader has {lead_s:.1f} s left to read"
        if not view.begun[at]:
            reader = f"nothing of it is there yet, after {view.age_s[at]:.1f} s"
        elif isnan(lead_s):
            reader = "how fast it is read is not known"
        if self._plan is None:
            return Told("", f"all find room; {reader}")
        until = (self._plan.tick + 1) * self._interval_s
        if request in self._plan.gives_way:
            return Told("gives way", f"others need the memory more; {reader}", until)
        if view.row[at] >= 0:
            return Told("runs", reader, until)
        if request in self._plan.resumes:
            return Told(
                "is next", f"{reader}; its KV is brought" if self._brings.get(request) else reader, until
            )
        return Told("waits", f"others need the memory more; {reader}", until)

    def _unpressed(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        """All that are there run. If blocks are short all the same, what is furthest ahead gives way."""
        choice = self._first.decide(view, budget, now)
        if not len(choice.preempt):
            return choice
        preempt = self._least_needed(view)
        ready = view.ready[: view.num_rows].copy()
        ready[preempt] = False
        return StepChoice(ready.nonzero()[0], choice.reason, preempt=preempt, keeps=np.ones(1, np.bool_))

    def _is_pressed(self, view: StepView) -> bool:
        """Somebody waits for whom there is no room beside all others."""
        waits = self._waiting(view)
        if not waits.any():
            return False
        spare = view.num_free + view.num_pending_free + view.num_evictable - view.num_promised
        lacks_rows = np.count_nonzero(waits) > view.num_free_rows + view.num_pending_rows
        return bool(lacks_rows) or int(view.needs[waits].sum()) > spare

    def _waiting(self, view: StepView) -> Mask:
        """Those without a row that a person waits for and that could run, or whose KV is coming: [n]."""
        return (view.row < 0) & (view.tier == LATENCY) & (view.ready | self._is_resumed(view))

    def _is_resumed(self, view: StepView) -> Mask:
        """[n]."""
        if self._plan is None or not self._plan.resumes:
            return np.zeros(len(view.request), np.bool_)
        return np.isin(view.request, [*self._plan.resumes])

    def _least_needed(self, view: StepView) -> Ints:
        """The row whose reader has most left to read; work that no person waits for before all else."""
        self.events["starved"] += 1
        rows = np.arange(view.num_rows)
        late = view.tier[rows] != LATENCY
        lead_s = np.where(view.begun[rows], np.fmax(view.lead_s[rows], 0.0), 0.0)
        return np.lexsort((rows, lead_s, late))[-1:]

    # -- a round (§4.2) ------------------------------------------------------------------------------

    def _round(self, view: StepView, tick: int) -> _Plan:
        """Decides anew what has a row."""
        self.events["rounds"] += 1
        self._block_size = view.block_size
        step_s, most_per_s = self._speed(view)
        self._token_s = _prefill_token_s(view)
        has_row = view.row >= 0
        able = has_row | self._waiting(view)
        in_set = able & (has_row | view.begun)
        self._note_load(view, in_set, most_per_s)
        gains = self._gains(view, step_s)
        fixed = self._fixed(view)
        if self._is_fcfs:
            rank = self._by_age(view, in_set & ~fixed)
        else:
            admitted = self._admitted(view, able & ~in_set, in_set, most_per_s)
            rank = self._by_gain(view, (in_set & ~fixed) | admitted, gains)
        chosen = self._chosen(view, fixed, rank, gains)
        resumes = dict.fromkeys(
            view.request[[at for at in rank.tolist() if chosen[at] and not has_row[at]]].tolist()
        )
        out: list[int] = view.request[has_row & ~chosen].tolist() if resumes else []
        self.events["preempted"] += len(out)
        return _Plan(tick, set(out), resumes)

    def _speed(self, view: StepView) -> tuple[float, float]:
        """Seconds of a step of all rows, and tokens a second of as large a batch as memory holds (Γ, eq. 6).
        nan: not known."""
        if view.cost is None:
            return nan, nan
        num = max(view.num_rows, 1)
        size = max(float(np.mean(view.context[:num])), 1.0) if view.num_rows else 1.0
        held = max(float(np.mean(view.held[:num])), 1.0) if view.num_rows else 1.0
        full = max(min(int(view.num_blocks / held), view.num_rows + view.num_free_rows, self._most_rows), 1)
        now_s, full_s = (
            view.cost.seconds(np.ones(many, np.int64), np.full(many, int(size), np.int64))
            for many in (num, full)
        )
        return now_s, full / full_s if full_s > 0 else nan

    def _note_load(self, view: StepView, in_set: Mask, most_per_s: float) -> None:
        """Eq. 6, with hysteresis. What nobody is known to read counts for nothing."""
        wanted_per_s = float(np.nansum(view.rate[in_set]))
        bound = most_per_s * (RELAXES_AT if self._is_fcfs else 1.0)
        is_over = wanted_per_s > bound  # False where the bound is not known
        self.events["fcfs_begun"] += is_over and not self._is_fcfs
        self._is_fcfs = is_over

    def _gains(self, view: StepView, step_s: float) -> _Gains:
        """Eq. 3 as a gain: v t' + γ (φ(b without) - φ(b with)), φ(b) = exp(-b / (r Δt)); t' in intervals."""
        lead_s = np.where(view.begun, np.fmax(view.lead_s, 0.0), 0.0)
        interval_s, rate = self._interval_s, view.rate
        away_s = np.where(view.row < 0, self._overhead_s(view), 0.0)
        runs_s = np.maximum(interval_s - away_s, 0.0)
        made = runs_s / step_s if step_s > 0 else runs_s * 2 * np.nan_to_num(rate, nan=1.0)
        read_s = np.where(np.isnan(rate), interval_s, made / np.where(rate > 0, rate, 1.0))
        idle_s, with_s = np.maximum(lead_s - interval_s, 0.0), np.maximum(lead_s + read_s - interval_s, 0.0)
        worth = np.clip(2.0 - lead_s / self._value_s, 0.0, 1.0)
        risk = np.exp(-idle_s / interval_s) - np.exp(-with_s / interval_s)
        gain = worth * runs_s / interval_s + self._gamma * risk
        gain = np.where((view.tier != LATENCY) | np.isinf(lead_s), -1.0, gain)
        growth = np.ceil(made / view.block_size).astype(np.int64)
        own = np.where(view.row >= 0, view.held + np.where(view.reading, view.needs, 0), view.needs)
        return _Gains(gain, own + growth)

    def _overhead_s(self, view: StepView) -> Floats:
        """What it takes a request without a row until it can go on: to bring its KV, or to compute it."""
        compute_s = view.tokens * np.fmax(self._token_s, 0.0)
        load_s = self._swap_s + view.needs * self._block_s
        return np.where(view.begun & (load_s > 0), np.minimum(compute_s, load_s), compute_s)

    def _fixed(self, view: StepView) -> Mask:
        """Rows that keep their place: what could not leave and come back before its reader runs dry, what is
        read by nobody at a known rate, and what has shown nothing yet. The admission test of §4.2.1, held
        against those who would have to give way: [n]."""
        comes_back_s = self._swap_s + view.held * self._block_s + self._interval_s
        is_ahead = view.begun & (view.lead_s >= self._safety * comes_back_s)
        may_go = is_ahead | (view.tier != LATENCY)
        return (view.row >= 0) & ~may_go

    def _admitted(self, view: StepView, new: Mask, in_set: Mask, most_per_s: float) -> Mask:
        """New requests that the working set has room for (eqs. 4 to 6), the oldest first: [n]."""
        admitted = np.zeros(len(new), np.bool_)
        at = new.nonzero()[0]
        if not len(at):
            return admitted
        num_set, num_running = int(np.count_nonzero(in_set)), view.num_rows
        held = np.where(view.row >= 0, view.held, view.needs)[in_set]
        each = max(float(held.mean()) if len(held) else float(view.needs[at].mean()), 1.0)
        room = view.num_free + max(view.num_evictable, 0) + self._num_host_free
        static = inf if room == inf else num_set + floor(room / each)
        most = max(
            static - self._adjusts * max(static - num_running, 0) if static < inf else inf, num_set + 1
        )
        rates = np.fmax(view.rate[at], 0.0)
        wanted_per_s = float(np.nansum(view.rate[in_set])) + rates.cumsum()
        fits = ~(wanted_per_s > self._load * most_per_s)
        fits &= num_set + 1 + np.arange(len(at)) <= most
        if not num_set:
            fits[0] = True
        self.events["held_at_door"] += int(np.count_nonzero(~fits))
        admitted[at[fits]] = True
        return admitted

    def _by_age(self, view: StepView, among: Mask) -> Ints:
        """Indices, the oldest first."""
        at = among.nonzero()[0]
        return at[np.argsort(-np.fmax(view.age_s[at], 0.0), kind="stable")]

    def _by_gain(self, view: StepView, among: Mask, gains: _Gains) -> Ints:
        """Indices, the highest gain first; among equals whose reader has begun, and then the oldest."""
        at = among.nonzero()[0]
        age_s = np.fmax(view.age_s[at], 0.0)
        return at[np.lexsort((-age_s, ~view.begun[at], -np.round(gains.gain[at], 3)))]

    def _chosen(self, view: StepView, fixed: Mask, rank: Ints, gains: _Gains) -> Mask:
        """Greedy, as far as the device has blocks and rows; then swaps across the cut: [n]."""
        chosen = fixed.copy()
        room = view.num_blocks - int(gains.blocks[fixed].sum())
        rows = view.num_rows + view.num_free_rows + view.num_pending_rows - int(np.count_nonzero(fixed))
        taken: list[int] = []
        left: list[int] = []
        blocks, gain = gains.blocks.tolist(), gains.gain.tolist()
        for at in rank.tolist():
            if chosen[at]:
                continue
            if rows > len(taken) and blocks[at] <= room:
                taken.append(at)
                room -= blocks[at]
            elif len(left) < MOST_SWAPS:
                left.append(at)
        if not self._is_fcfs:
            room = self._swapped(taken, left, room, blocks, gain)
        chosen[taken] = True
        return chosen

    def _swapped(
        self, taken: list[int], left: list[int], room: int, blocks: list[int], gain: list[float]
    ) -> int:
        """What was too large to fit takes the place of what is worth less, where that makes room enough."""
        for out in left:
            for index in range(len(taken) - 1, max(len(taken) - 1 - MOST_SWAPS, -1), -1):
                at = taken[index]
                if gain[at] >= gain[out]:
                    break
                if blocks[out] <= room + blocks[at]:
                    room += blocks[at] - blocks[out]
                    taken[index] = out
                    break
        return room

    # -- in between ----------------------------------------------------------------------------------

    def _order(self, view: StepView, preempt: Ints) -> Ints:
        """Rows: what is about to run dry, then prompts, then what is well ahead; then what gets a row, as the
        round has it."""
        assert self._plan is not None
        ready = view.ready.copy()
        ready[preempt] = False
        rows = (ready & (view.row >= 0)).nonzero()[0]
        is_dry = np.fmax(view.lead_s[rows], 0.0) < self._interval_s
        rows = rows[np.lexsort((np.where(view.reading[rows], 1, np.where(is_dry, 0, 2)),))]
        waiting = (view.row < 0).nonzero()[0]
        places = {request: place for place, request in enumerate(self._plan.resumes)}
        asked: list[int] = view.request[waiting].tolist()
        found = [(places[one], at) for one, at in zip(asked, waiting.tolist(), strict=True) if one in places]
        resumed = [at for _, at in sorted(found)]
        comes = any(self._brings.get(one) for one in self._plan.resumes)
        if not len(rows) and not ready[resumed].any() and not comes:
            resumed += (ready & (view.row < 0)).nonzero()[0][:1].tolist()  # somebody must run
        return np.array([*rows.tolist(), *resumed], np.int64)

    # -- KV (§5) -------------------------------------------------------------------------------------

    def decide_evict(self, view: KvView, now: float) -> Selection:
        """What nobody runs on, used longest ago first; then what was preempted, the furthest ahead of its
        reader first. Of the host, copies of what the device has too go before any that are the only ones."""
        if view.tier == "host":
            count = view.num_wanted - view.num_free
            return (
                Selection(self._spare_copies(view), count, "a copy of it is left") if count > 0 else NOTHING
            )
        count = num_short(view, self._ahead)
        return Selection(self._leaving(view), count, "its reader has most left to read") if count else NOTHING

    def _leaving(self, view: KvView) -> Iterator[str]:
        requests = view.requests
        resumes = {} if self._plan is None else self._plan.resumes
        paused: list[tuple[float, str]] = []
        for owner in view.oldest():
            request = requests.get(owner)
            if request is None:
                yield owner
            elif request not in resumes:
                paused.append((self._lead_s(request), owner))
        yield from (owner for _, owner in sorted(paused, reverse=True))

    def _spare_copies(self, view: KvView) -> Iterator[str]:
        requests = view.requests
        later: list[str] = []
        for owner in view.oldest():
            if view.state(owner) is KvState.RUNNING:
                later.append(owner)
            elif owner not in requests:
                yield owner
        yield from later

    def decide_write(self, view: KvView, now: float) -> Selection:
        """Full blocks of those that run, the furthest ahead of its reader first, as much as goes beside the
        step (§5.1, §5.2)."""
        self._note_links(view)
        if not self._write or not view.num_below:
            return NOTHING
        requests = view.requests
        found = [(self._lead_s(requests[one]), one) for one in view.dirty() if one in requests]
        if not found:
            return NOTHING
        owners = [owner for _, owner in islice(sorted(found, reverse=True), LOOK)]
        return Selection(owners, num_beside_step(view), "it may have to leave")

    def decide_fetch(self, view: KvView, now: float) -> Selection:
        """What a request waits for. Of those that were preempted only what is to go on, unless it is computed
        sooner (§4.2.3)."""
        self._has_host = True
        self._note_links(view)
        requests, waiting = view.requests, list(view.waiting())
        owner_of = {request: owner for owner, request in requests.items()}
        queued_s = _known(view.back.queued_s)
        owners: list[str] = []
        for request in dict.fromkeys((*self._brings, *self._held)):
            owner = owner_of.get(request)
            if owner is None:  # nothing of its KV is left
                self._brings[request] = False
                continue
            num_away, look = view.num_away(owner), self._held.get(request)
            if num_away and look is not None and request not in self._brings and owner not in waiting:
                owners.append(owner)  # others are before it; some of it may come all the same
                if now >= look.since + self._interval_s:
                    self._brings[request] = False
            elif self._is_brought(request, num_away, queued_s, view.back.block_s):
                owners.append(owner)
                queued_s += num_away * _known(view.back.block_s)
        owners += [owner for owner in waiting if owner not in requests]
        wake_at = now + SOON_S if any(one in owner_of for one in self._held) else None
        return Selection(owners, view.num_blocks, "a request is to go on", wake_at=wake_at)

    def _is_brought(self, request: int, num_away: int, queued_s: float, block_s: float) -> bool:
        """Decided once, until it runs again."""
        if request not in self._brings:
            load_s, compute_s = queued_s + num_away * block_s, num_away * self._block_size * self._token_s
            is_brought = self._brings[request] = num_away > 0 and not load_s > compute_s
            self.events["brought" if is_brought else "computed"] += num_away > 0
        return self._brings[request]

    def _lead_s(self, request: int) -> float:
        """As it was when a step was last chosen; of one who has nothing yet, nothing."""
        lead_s = self._leads_s.get(request, 0.0)
        return 0.0 if isnan(lead_s) else lead_s

    def _note_links(self, view: KvView) -> None:
        out, back = view.out, view.back
        self._swap_s = _known(out.queued_s) + _known(back.queued_s)
        self._block_s = _known(back.block_s)
        self._num_host_free = view.num_below or inf


def _prefill_token_s(view: StepView) -> float:
    """To read a token of a prompt, among others; nan: not known."""
    if view.cost is None:
        return nan
    return view.cost.seconds(np.array([PROMPT], np.int64), np.zeros(1, np.int64)) / PROMPT


def _known(seconds: float) -> float:
    """0 where nothing is known."""
    return 0.0 if isnan(seconds) else seconds
