"""A round of TokenFlow's scheduling (§4.2): which requests are in the working set, what a place is worth to
each, and which have one until the next round."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf, isnan, nan

import numpy as np

from antiphon.core.errors import ConfigError
from antiphon.core.facts import NO_INTS, Floats, Ints, Mask
from antiphon.policy.base import LATENCY, StepView
from antiphon.policy.memory import KvView
from antiphon.policy.working_set import Gains, Numbers, Plan, by_age, by_gain, chosen_of

SOON_S = 0.02
"""So long what is to go on is held for a look at where its KV is."""
PROMPT = 512
"""Tokens of a prompt by which reading one is measured."""
MOST_LOST = 0.25
"""Share of an interval that beginning or going on may cost a request: it costs it once, and the place that it
gets lasts. If all of it counted in every round, a long prompt, or KV on a slow link, would be worth nothing
beside a reply that is a minute ahead."""
RELAXES_AT = 0.9
"""Share of the bound below which first come first served is over again."""


@dataclass(frozen=True, slots=True)
class Host:
    """What is known of the host and of the links to it.

    num_blocks  that it holds
    queued_s    until what is on its way is there, in both directions
    leave_s     to write a block once its request has to leave
    back_s      to bring one
    """

    num_blocks: int = 0
    queued_s: float = 0.0
    leave_s: float = 0.0
    back_s: float = 0.0


class Rounds:
    """Settings are as in `TokenBuffer`.

    has_host   KV has somewhere to go
    token_s    to read one of a prompt; nan: not known. As of the last round, like the next
    is_fcfs    more is read than this stage keeps up with, and the oldest go first
    """

    def __init__(
        self,
        interval_s: float,
        value_s: float,
        gamma: float,
        safety: float,
        adjusts: float,
        grows: float,
        load: float,
        fallback: bool,
        events: dict[str, int],
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
        if not 1 <= grows < inf:
            raise ConfigError(f"grows is {grows}; it must be 1 or above")
        self._interval_s, self._value_s, self._gamma, self._safety = interval_s, value_s, gamma, safety
        self._adjusts, self._grows = adjusts, grows
        self._load, self._falls_back = load, fallback
        self._events = events
        self._host: Host | None = None
        self.token_s = nan
        self.is_fcfs = False
        self.most_rows = 1 << 30
        """Of a step, from now on."""

    @property
    def has_host(self) -> bool:
        return self._host is not None

    def note_links(self, view: KvView, is_written: bool) -> None:
        """What copies take from now on. is_written: a block is in the host as soon as it is full, so that
        nothing is left to write when its request has to leave."""
        out, back = view.out, view.back
        self._host = Host(
            view.size_below,
            queued_s=known_s(out.queued_s) + known_s(back.queued_s),
            leave_s=0.0 if is_written else known_s(out.block_s),
            back_s=known_s(back.block_s),
        )

    def decide(self, view: StepView, waits: Mask, coming: Mask, tick: int) -> Plan:
        """Which have a row until the next tick. waits: [waiting], those to get one; coming: [waiting],
        those among them whose KV is on its way because an earlier round had them go on."""
        self._events["rounds"] += 1
        step_s = _decoding_s(view, max(view.num_rows, 1))
        self.token_s = _prefill_token_s(view)
        num_rows, begun = view.num_rows, view.begun
        in_set, new = np.ones(len(begun), np.bool_), np.zeros(len(begun), np.bool_)
        np.logical_and(waits, begun[num_rows:], out=in_set[num_rows:])
        np.greater(waits, begun[num_rows:], out=new[num_rows:])
        of_people = in_set & (view.tier == LATENCY)
        rates, most_per_s = np.zeros(len(begun)), inf
        if self._falls_back or self._host is None or not self._host.num_blocks:
            rates, most_per_s = self._demand(view, step_s)
            self._note_load(rates[of_people], most_per_s)
        gains, stays = self._gains(view, step_s), self._fixed(view)
        if view.rows_behind >= 1:
            stuck = _stuck(view)
            gains.gain[:num_rows][stuck] = -1.0
            stays &= ~stuck
        fixed = np.concatenate((stays, coming))
        if self.is_fcfs:
            rank = by_age(view, in_set & ~fixed)
        else:
            admitted = self._admitted(view, new, of_people, rates, most_per_s)
            rank = by_gain(view, (in_set | admitted) & ~fixed, gains)
        chosen = chosen_of(view, fixed, rank, gains, swaps=not self.is_fcfs)
        rank = np.concatenate((coming.nonzero()[0] + num_rows, rank))
        resumes = view.request[rank[(rank >= num_rows) & chosen[rank]]]
        out = view.request[:num_rows][~chosen[:num_rows]] if len(resumes) else NO_INTS
        self._events["preempted"] += len(out)
        return Plan(tick, Numbers(out), Numbers(resumes))

    def _demand(self, view: StepView, step_s: float) -> tuple[Floats, float]:
        """What each reader takes (agents nothing, and others a row's rate at most), [n], and what as large a
        batch as memory holds makes (Γ, eq. 6), in tokens a second. nan: not known."""
        rates = np.minimum(view.rate, 1.0 / step_s) if step_s > 0 else view.rate
        held = max(int(view.held[: view.num_rows].sum()) / view.num_rows, 1.0) if view.num_rows else 1.0
        full = max(min(int(view.num_blocks / held), view.num_rows + view.num_free_rows, self.most_rows), 1)
        full_s = _decoding_s(view, full)
        return np.where(view.rate == inf, 0.0, rates), full / full_s if full_s > 0 else nan

    def _note_load(self, rates: Floats, most_per_s: float) -> None:
        """Eq. 6, with hysteresis, where there is a fallback. What nobody is known to read is 0."""
        wanted_per_s = float(np.fmax(rates, 0.0).sum())
        bound = most_per_s * (RELAXES_AT if self.is_fcfs else 1.0)
        is_over = self._falls_back and wanted_per_s > bound  # False where the bound is not known
        self._events["fcfs_begun"] += is_over and not self.is_fcfs
        self.is_fcfs = is_over

    def _gains(self, view: StepView, step_s: float) -> Gains:
        """Eq. 3 as a gain: v t' + γ (φ(b without) - φ(b with)), φ(b) = exp(-b / (r Δt)); t' in intervals. An
        agent takes all there is, so v is 1, and never runs dry, so that the second term is nothing. Where its
        b would be below 0 it counts on: the reader with least left gains most, also of those who run dry."""
        lead_s = np.where(view.begun, np.fmax(view.lead_s, 0.0), 0.0)
        interval_s, rate, num_rows = self._interval_s, view.rate, view.num_rows
        runs_s = np.full(len(lead_s), interval_s)
        runs_s[num_rows:] -= np.minimum(self._overhead_s(view, step_s), MOST_LOST * interval_s)
        is_agent = rate == inf
        made = runs_s / step_s if step_s > 0 else runs_s * 2 * np.where(np.isfinite(rate), rate, 1.0)
        read_s = made / rate
        read_s[np.isnan(rate)] = interval_s
        worth = np.minimum(np.maximum(2.0 - lead_s / self._value_s, 0.0), 1.0)
        worth[is_agent] = 1.0
        risk = np.exp(1.0 - lead_s / interval_s) * (1.0 - np.exp(-read_s / interval_s))
        gain = worth * runs_s / interval_s + self._gamma * risk
        gain[(view.tier != LATENCY) | (lead_s == inf)] = -1.0
        growth = np.ceil(made / view.block_size).astype(np.int64)
        rows = slice(num_rows)
        blocks = view.needs + growth
        blocks[rows] = view.held[rows] + view.needs[rows] * view.reading[rows] + growth[rows]
        return Gains(gain, blocks)

    def _overhead_s(self, view: StepView, step_s: float) -> Floats:
        """What it takes each request without a row until it can go on: to bring its KV or to compute it, and
        of one that was preempted the look at where that is and the step that is running. [waiting]."""
        looked_s = SOON_S * (self._host is not None) + (step_s if step_s > 0 else 0.0)
        waiting = slice(view.num_rows, None)
        tokens = view.tokens[waiting]
        compute_s = tokens * np.fmax(self.token_s, 0.0)
        back_s = self._back_s(tokens // view.block_size, tokens)
        return np.where(view.begun[waiting], back_s + looked_s, compute_s)

    def _back_s(self, blocks: Ints, tokens: Ints) -> Floats:
        """Until so much KV that left, or has to, is there again: brought or computed, whichever is sooner. As
        far as that is known."""
        compute_s = tokens * self.token_s
        if self._host is None:
            return np.fmax(compute_s, 0.0)
        load_s = self._host.queued_s + blocks * (self._host.back_s + self._host.leave_s)
        return np.where(load_s > 0, np.fmin(load_s, compute_s), np.fmax(compute_s, 0.0))

    def _fixed(self, view: StepView) -> Mask:
        """Rows that keep their place: what could not leave and come back before its reader runs dry, what
        nobody is known to take, and what has shown nothing yet. The admission test of §4.2.1, held against
        the rows that would have to give way: [rows]."""
        rows = slice(view.num_rows)
        away_s = self._back_s(view.held[rows], view.context[rows]) + self._interval_s
        is_ahead = (view.lead_s[rows] >= self._safety * away_s) | (view.rate[rows] == inf)
        is_ahead &= view.begun[rows]
        return ~(is_ahead | (view.tier[rows] != LATENCY))

    def _admitted(self, view: StepView, new: Mask, in_set: Mask, rates: Floats, most_per_s: float) -> Mask:
        """New requests that the working set has room for, the oldest first, agents' last: [n]. in_set: those
        that are in it and that people wait for; best effort gives way to any of them.
        The set is as large as device and host hold, less a share of what does not run, and one more than runs
        at least (eqs. 4 and 5). Without a host what gives way is computed again: memory sets no bound, and
        what a full batch makes does (eq. 6)."""
        admitted = np.zeros(len(new), np.bool_)
        at = new.nonzero()[0]
        if not len(at):
            return admitted
        at = at[np.argsort(view.rate[at] == inf, kind="stable")]
        num_set, num_running = int(np.count_nonzero(in_set)), view.num_rows
        most = inf
        if self._host is not None and self._host.num_blocks:
            held = np.concatenate((view.held[:num_running], view.needs[num_running:]))[in_set]
            each = max(float(held.mean()) if len(held) else float(view.needs[at].mean()), 1.0)
            static = floor((view.num_blocks + self._host.num_blocks) / (self._grows * each))
            most = max(static - self._adjusts * max(static - num_running, 0), num_running + 1)
        wanted_per_s = float(np.fmax(rates[in_set], 0.0).sum()) + np.fmax(rates[at], 0.0).cumsum()
        fits = ~(wanted_per_s > self._load * most_per_s)
        fits &= num_set + 1 + np.arange(len(at)) <= most
        if not num_set:
            fits[0] = True
        self._events["held_at_door"] += int(np.count_nonzero(~fits))
        admitted[at[fits]] = True
        return admitted


def known_s(seconds: float) -> float:
    """0 where nothing is known."""
    return 0.0 if isnan(seconds) else seconds


def _stuck(view: StepView) -> Mask:
    """Rows that have shown nothing and can write no more. Where a stage behind has no row free, those that
    have one there may be among those that gave way to them. [rows]."""
    rows = slice(view.num_rows)
    return ~(view.ready[rows] | view.begun[rows])


def _decoding_s(view: StepView, num: int) -> float:
    """Of a step of so many rows that are as long as those there are; nan: not known."""
    if view.cost is None:
        return nan
    size = max(int(view.context[: view.num_rows].sum()) // view.num_rows, 1) if view.num_rows else 1
    return view.cost.seconds(np.ones(num, np.int64), np.full(num, size, np.int64))


def _prefill_token_s(view: StepView) -> float:
    """To read a token of a prompt, among others; nan: not known."""
    if view.cost is None:
        return nan
    return view.cost.seconds(np.array([PROMPT], np.int64), np.zeros(1, np.int64)) / PROMPT
