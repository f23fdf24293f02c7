"""LiveServe's scheduling (§4): first replies about to run dry, then those that wait for the first sound, then
the rest, by the KV that they hold and by how far they are ahead of what is heard."""

from __future__ import annotations

import numpy as np

from antiphon.core.errors import ConfigError
from antiphon.core.facts import NO_INTS, Floats, Ints, Mask
from antiphon.core.playback import Source
from antiphon.policy.base import (
    BEHIND,
    BUFFERED,
    FIRST_SOUND,
    LATENCY,
    NO_HOLD,
    ROUNDING_S,
    RUNS_DRY,
    SHORTER,
    URGENCIES,
    Budget,
    Hold,
    StepChoice,
    StepView,
    Told,
    granted,
    heard_leads_s,
    is_crowded,
    is_starved,
)

LABELS = "U0", "U1", "U2", ""
"""As §4.1 names the classes."""
MOST_GAPS = 3
"""More of them widen a lead no further."""
LISTENS_S = 0.25
"""Of sound that a client has and is still to play: with less, the reply is not held. What lies between the
stage and the client may be less than a chunk, or a phrase, and then waits for more."""
AFTER_ALL_S = 1e9
"""Among those that wait for the first sound, a request that nobody listens to counts as so much younger."""
ACKED = int(Source.ACKED)
"""As a plain number, like a tier."""


class Urgency:
    """Decides which requests run (Algorithm 1) and which are held back.

    alpha      weight of what a barge-in would throw away (eq. 1)
    beta       weight of the KV that a request holds while the stage is full (eq. 1)
    safe_s     seconds of lead below which a reply may run dry (P_safe): at least a chunk of sound, a step and
               the way to the client
    brink_s    lead below which a reply is at the brink: what is well buffered then stays out of its steps, if
               they are shorter for it by a tenth, and out of those that make a first sound; where the stage's
               times are not known, it does not. 0: nothing is left out
    ahead_s    seconds beyond what eq. 1 is worth that a reply may get while others run beside it, so that
               held replies go on together and not one by one
    unsure     by what the lead at which a reply is held is multiplied where its client reports no playback
    after_gap  the same for each gap that was heard in it, up to three
    holds_to   share of the stage's blocks in use up to which anything is held: beyond it, what is over sooner
               frees its KV sooner
    rows_to    the same for its rows, and those of the stages behind it: a held reply keeps its own in each.
               Beyond it nothing is left out either: steps of fewer rows make less in a second, and where the
               stage has all that it can do, that is what everybody lacks
    patient    keep prompts out of a step that would outlast the least lead in it, for a step that does not
    literal    Algorithm 1 to the letter: the first candidate that does not fit ends the step, and not only
               the admissions; nothing is `patient`, or at the brink

    Where a lead is not known the request goes by its age among those that wait for the first sound, and is
    not held (§6); what nobody listens to goes behind them: its prompts may be many, and long. So does what an
    agent reads, which takes all that there is and never runs dry. One whose client has stopped playing it
    goes after all that are listened to, and is not held either: it ends sooner.
    """

    name = "urgency"

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 1.0,
        safe_s: float = 1.0,
        brink_s: float = 0.0,
        ahead_s: float = 1.0,
        unsure: float = 1.5,
        after_gap: float = 1.5,
        holds_to: float = 1.0,
        rows_to: float = 1.0,
        patient: bool = True,
        literal: bool = False,
    ) -> None:
        for name, value in (("alpha", alpha), ("safe_s", safe_s)):
            if not 0 < value < np.inf:
                raise ConfigError(f"{name} is {value}; it must be above 0")
        least = {
            "beta": beta,
            "ahead_s": ahead_s,
            "brink_s": brink_s,
            "holds_to": holds_to,
            "rows_to": rows_to,
        }
        for name, value in least.items():
            if not 0 <= value < np.inf:
                raise ConfigError(f"{name} is {value}; it must be 0 or above")
        for name, value in (("unsure", unsure), ("after_gap", after_gap)):
            if not 1 <= value < np.inf:
                raise ConfigError(f"{name} is {value}; it must be 1 or above")
        self.safe_s = float(safe_s)
        """The node compares it with the stage's chunks."""
        self._alpha, self._beta, self._ahead_s = alpha, beta, ahead_s
        self._brink_s = 0.0 if literal else brink_s
        self._listens_s = min(LISTENS_S, safe_s)
        self._unsure = np.where(np.arange(len(Source)) == ACKED, 1.0, unsure)
        """By source."""
        self._after_gaps: Floats = np.power(after_gap, np.arange(MOST_GAPS + 1), dtype=np.float64)
        """By their number."""
        self._holds_to, self._rows_to = holds_to, rows_to
        self._patient, self._literal = patient and not literal, literal
        unknown = "lead_unknown", "times_unknown"
        counted = "first_sound_waits", "prompt_spared", "left_out", "held"
        self.events = dict.fromkeys((*unknown, *counted), 0)
        self._held = frozenset[int]()
        """Requests that were held by the last answer."""
        self._last_classes, self._last_limits_s = NO_INTS, np.zeros(0)
        """Of the candidates about which it decided last: what is told of them."""

    def decide_step(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        """Algorithm 1; what is preempted is the least urgent row, which keeps its KV to go on from."""
        urgency, within = self._ranked(view)
        self._last_classes = urgency
        able, preempt = view.ready, self._given_up(view, urgency, within)
        if len(preempt):
            able = able & (view.row >= 0)
            able[preempt] = False
        order = able.nonzero()[0]
        order = order[np.lexsort((within[order], urgency[order]))]
        if self._patient and not len(preempt):
            order = self._spared(view, budget, order, urgency)
        order = self._hurried(view, budget, order, urgency)
        self._count(view, budget, order, urgency)
        reason = URGENCIES[int(urgency[order[0]])] if len(order) else "nothing can run"
        return StepChoice(
            order,
            "the least urgent gives way" if len(preempt) else reason,
            urgency=urgency[order],
            preempt=preempt,
            keeps=np.ones(len(preempt), np.bool_),
            stops=self._literal,
        )

    def decide_pace(self, view: StepView, now: float) -> Hold:
        """Holds replies for which eq. 1 is below nothing, while sound of them is to be heard. Those that are
        not far beyond go along with a step that runs anyway."""
        hold = self._hold(view, now)
        held = frozenset[int](() if hold.held is None else view.request[hold.held & view.ready].tolist())
        self.events["held"] += len(held - self._held)
        self._held = held
        return hold

    def _hold(self, view: StepView, now: float) -> Hold:
        lead_s = view.lead_s
        self._count_unknown(view)
        heard_s = heard_leads_s(view)
        can_hold = view.begun & (lead_s > self.safe_s) & (lead_s < np.inf) & (heard_s > self._listens_s)
        can_hold &= (view.tier == LATENCY) & ~view.reading & (view.rate != np.inf)
        if not can_hold.any():
            return NO_HOLD
        limits_s = self._last_limits_s = self._limits_s(view)
        beyond_s = np.where(can_hold, lead_s - limits_s, -np.inf)
        ready = view.ready
        least_s = self._ahead_s / 2
        runs_anyway = bool((self._can_run(view) & (beyond_s <= least_s)).any())
        held = beyond_s > (self._ahead_s if runs_anyway else least_s)
        stopped = held & ready
        if not stopped.any():
            return NO_HOLD
        goes_on = self._must_go_on(view)
        if goes_on:
            return Hold(None, goes_on, spared=stopped)
        until_s = np.minimum(beyond_s - least_s, heard_s - self._listens_s)
        wake_at = now + float(until_s[stopped].min()) + ROUNDING_S
        return Hold(held, "far enough ahead of what is heard", wake_at)

    def tell_step(self, view: StepView, at: int, now: float) -> Told:
        """Its class, and by which lead or age."""
        urgency = int(self._last_classes[at])
        why = (
            f"at most {self.safe_s:g} s ahead",
            f"asked for {view.age_s[at]:.1f} s ago{', lead not known' if view.begun[at] else ''}",
            "nobody listens any more" if view.lead_s[at] == np.inf else f"more than {self.safe_s:g} s ahead",
            "it gives way to all others",
        )
        return Told(LABELS[urgency], f"{URGENCIES[urgency]}: {why[urgency]}")

    def tell_pace(self, view: StepView, at: int, now: float) -> Told:
        """Of one that is held: how far it is ahead, and until when."""
        lead_s, limit_s = float(view.lead_s[at]), float(self._last_limits_s[at])
        heard_s = float(heard_leads_s(view)[at])
        until = now + min(lead_s - limit_s - self._ahead_s / 2, heard_s - self._listens_s)
        why = f"{lead_s:.1f} s ahead of the listener, over {limit_s:.1f} s"
        return Told("", why, until)

    def _must_go_on(self, view: StepView) -> str:
        """Why no reply is held though one is far enough ahead; "": there is no reason."""
        if self._occupied(view) > self._holds_to:
            return f"not held: over {self._holds_to:.0%} of the blocks are in use"
        if self._is_full(view):
            return f"not held: over {self._rows_to:.0%} of the rows are in use"
        if view.rows_behind > self._rows_to:
            return f"not held: over {self._rows_to:.0%} of the rows of a later stage are in use"
        return "not held: a request waits for a row, or for KV" if self._is_in_the_way(view) else ""

    def _is_full(self, view: StepView) -> bool:
        return view.num_rows > self._rows_to * (view.num_rows + view.num_free_rows + view.num_pending_rows)

    def _is_in_the_way(self, view: StepView) -> bool:
        """The request that waits longest lacks a row, or KV, that a held reply would keep: what runs is over
        sooner. Others behind it may fit, and do not join before it."""
        waits = (view.ready & (view.tier == LATENCY) & (view.row < 0)).nonzero()[0]
        if not len(waits):
            return False
        longest = waits[np.fmax(view.age_s[waits], 0.0).argmax()]
        return not self._can_run(view)[longest]

    def _can_run(self, view: StepView) -> Mask:
        """Ready, and has a row or could get one, and its KV: [n]."""
        spare = view.num_free + view.num_evictable - view.num_promised
        can_join = (view.needs <= spare) if view.num_free_rows else np.False_
        return view.ready & ((view.row >= 0) | can_join)

    # -- the paper's quantities ----------------------------------------------------------------------

    def _occupied(self, view: StepView) -> float:
        """R_occ of eq. 3: of the stage's blocks, those that requests hold, each once however many do, or are
        promised. What merely rests makes room when it is asked to."""
        num_to_be_had = view.num_free + view.num_pending_free + view.num_evictable
        num_occupied = view.num_blocks - num_to_be_had + view.num_promised
        return num_occupied / view.num_blocks if view.num_blocks else 0.0

    def _relief(self, view: StepView) -> Floats:
        """U_kv (eq. 3), with the KV as a share of the stage's: [n]."""
        return np.multiply(view.held, self._occupied(view) / max(view.num_blocks, 1), dtype=np.float64)

    def _limits_s(self, view: StepView) -> Floats:
        """Leads at which eq. 1 is zero, wider where less is known of what is heard: [n]."""
        limits_s: Floats = self.safe_s * (1 + self._beta / self._alpha * self._relief(view))
        gaps = np.minimum(view.num_gaps, MOST_GAPS)
        return limits_s * self._unsure[view.source] * self._after_gaps[gaps]

    def _classes(self, view: StepView) -> Ints:
        """U0, U1, U2, or what no person waits for: [n]."""
        lead_s = view.lead_s
        is_known = (view.begun & ~np.isnan(lead_s) & (view.rate != np.inf)) | (lead_s == np.inf)
        dry = np.where(lead_s <= self.safe_s, RUNS_DRY, BUFFERED)
        return np.where(view.tier != LATENCY, BEHIND, np.where(is_known, dry, FIRST_SOUND))

    def _ranked(self, view: StepView) -> tuple[Ints, Floats]:
        """Class, and rank within it, the lower the sooner: [n] each."""
        lead_s, age_s = view.lead_s, np.fmax(view.age_s, 0.0)  # of nan and 0 the 0
        exposure = np.maximum(lead_s - self.safe_s, 0) / self.safe_s  # eq. 2
        utility = self._beta * self._relief(view) - self._alpha * exposure  # eq. 1
        urgency = self._classes(view)
        unheard_s = np.where(np.isfinite(view.rate), 0.0, AFTER_ALL_S)
        within = np.choose(urgency, (lead_s, unheard_s - age_s, -utility, -age_s))
        self._count_unknown(view)
        return urgency, within

    def _count_unknown(self, view: StepView) -> None:
        """Replies that have begun, and of which it is not known how far they are ahead."""
        unknown = view.begun & np.isnan(view.lead_s)
        if unknown.any():
            unknown &= ~np.isnan(view.rate) & view.ready & (view.tier == LATENCY)
            self.events["lead_unknown"] += int(np.count_nonzero(unknown))

    def _spared(self, view: StepView, budget: Budget, order: Ints, urgency: Ints) -> Ints:
        """Without prompts, where they would make a reply beside them run dry, or one that would as soon as
        its first sound is out. Not in the paper: its steps are about as long with a prompt as without."""
        prompts = view.reading[order] & (urgency[order] != RUNS_DRY)
        dry = order[(urgency[order] <= FIRST_SOUND) & ~prompts & np.isfinite(view.rate[order])]
        if not len(dry) or not prompts.any():
            return order
        leads_s = np.where(view.begun[dry], view.lead_s[dry], view.ahead_s[dry])
        least_s = float(np.nanmin(leads_s, initial=np.inf))
        heard_s = float(np.nanmin(leads_s[view.begun[dry]], initial=np.inf))
        with_s, without_s = (self._step_s(view, budget, one) for one in (order, order[~prompts]))
        self.events["times_unknown"] += bool(np.isnan(with_s + without_s))
        if not with_s > least_s or not without_s <= heard_s:  # nobody runs dry by it, or somebody does anyway
            return order
        self.events["prompt_spared"] += 1
        return order[~prompts]

    def _hurried(self, view: StepView, budget: Budget, order: Ints, urgency: Ints) -> Ints:
        """Without what is well buffered, while a reply is at the brink or a first sound is made, and the step
        is shorter for it. Not in the paper: it counts where a step takes longer for each row."""
        if not self._brink_s or self._is_full(view):
            return order
        at_brink = (urgency == RUNS_DRY) & (view.lead_s < self._brink_s)
        first_sound = (urgency == FIRST_SOUND) & ~view.begun & np.isfinite(view.rate)
        if not ((at_brink | first_sound) & self._can_run(view))[order].any():
            return order
        hurried = order[urgency[order] <= FIRST_SOUND]
        if len(hurried) == len(order):
            return order
        with_s, without_s = (self._step_s(view, budget, one) for one in (order, hurried))
        self.events["times_unknown"] += bool(np.isnan(with_s + without_s))
        if not without_s <= SHORTER * with_s:
            return order
        self.events["left_out"] += len(order) - len(hurried)
        return hurried

    def _step_s(self, view: StepView, budget: Budget, order: Ints) -> float:
        """Of a step that runs these, as far as there is room in it; nan: not known."""
        if view.cost is None:
            return np.nan
        contexts = view.context[order]
        counts = granted(budget, view.cost, view.tokens[order], contexts)
        runs = counts > 0
        return view.cost.seconds(counts[runs], contexts[runs])

    def _given_up(self, view: StepView, urgency: Ints, within: Floats) -> Ints:
        """The least urgent row, if blocks are short or best-effort work is in the way."""
        if not (view.num_blocks and view.num_rows) or not (is_starved(view) or is_crowded(view)):
            return NO_INTS
        rows = np.arange(view.num_rows)
        return np.lexsort((within[rows], urgency[rows]))[-1:]

    def _count(self, view: StepView, budget: Budget, order: Ints, urgency: Ints) -> None:
        """First sounds for which a step has no room: no row, no KV, or none among its tokens or its rows."""
        num_first = int(np.count_nonzero(urgency[order] == FIRST_SOUND))
        if not num_first:
            return
        has_rows = view.num_rows or view.num_free_rows or view.num_pending_rows  # an encoder has none
        joins = (order >= view.num_rows).nonzero()[0] if has_rows else NO_INTS
        if len(joins):
            spare = view.num_free + view.num_evictable - view.num_promised
            num_fitting = int(view.needs[order[joins]].cumsum().searchsorted(spare, "right"))
            if len(left := joins[min(num_fitting, view.num_free_rows) :]):
                seated = np.ones(len(order), np.bool_)
                seated[left] = False
                order = order[seated]
        tokens = view.tokens[order].cumsum()
        num_running = min(int(tokens.searchsorted(budget.tokens)) + 1, budget.rows)
        num_first -= int(np.count_nonzero(urgency[order[:num_running]] == FIRST_SOUND))
        self.events["first_sound_waits"] += num_first
