"""Protocols of the decisions about requests: which may run ahead, which run in the next step and which give
way, which are let in, and, of stages and replicas, which steps next and which serves a turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf, nan
from typing import NamedTuple, Protocol

import numpy as np

from antiphon.core.facts import NO_INTS, Floats, Ints, Mask
from antiphon.core.plans import Budget


class Tier(IntEnum):
    """Of a request. A lower number goes first."""

    LATENCY = 0
    """A person waits for it."""
    BEST_EFFORT = 1
    PREPARATORY = 2
    """It prepares what will be wanted soon; it delays nothing else."""


LATENCY, BEST_EFFORT, PREPARATORY = (int(tier) for tier in Tier)
"""As plain numbers, with which a column is compared in a tenth of the time."""


class Told(NamedTuple):
    """What a policy says of one candidate, or of one owner of KV, to people who look.

    label  its class, in a word or two; "" where there is none
    why    what the policy goes by, in words and numbers
    until  when that ends if nothing happens, seconds of the node's clock; None: not known

    Policies that say so have a method `tell` (or `tell_step`, `tell_pace`, `tell_fetch`, …), called
    with the view, an index (of KV: an owner) and `now` after they decided. Nothing may be changed by it.
    """

    label: str
    why: str
    until: float | None = None


def soonest(*wishes: float | None) -> float | None:
    """Of the times at which policies wish to be asked again; None: none of them wishes it."""
    first = None
    for at in wishes:
        if at is not None and (first is None or at < first):
            first = at
    return first


class Place(IntEnum):
    """Where the KV lies that a request begins with."""

    DEVICE = 0
    HOST = 1
    """Some of it only on the host, from where it may be brought."""
    COMING = 2
    """It is being brought."""


ROUNDING_S = 1e-6
"""A shorter lead counts as none: a reply that is held until its lead is gone is asked about again this much
later."""
SHORTER = 0.9
"""A step counts as shorter without some of its rows if it takes at most this share of the time."""
RUNS_DRY, FIRST_SOUND, BUFFERED, BEHIND, IDLE = range(5)
"""Urgencies (LiveServe §4.1): U0, U1 and U2, what no person waits for, and nothing to run."""
URGENCIES = "runs dry", "first sound", "well buffered", "no person waits", "nothing to run"
"""In words."""


class StepCost(Protocol):
    """How long a step of this stage takes, by its profile or by what was observed."""

    def seconds(self, counts: Ints, contexts: Ints) -> float:
        """Of a step of rows that run `counts` tokens after `contexts` others, int64 [n] each. nan: not known
        yet."""
        ...

    def within(self, budget: Budget, counts: Ints, contexts: Ints, told: Mask | None = None) -> Ints | None:
        """The tokens that rows, in this order, run in a step of at most the budget's `seconds`, int64 [n]; at
        most `counts` each. `told`: rows that are told of each token of their prompt (None: no row). Only
        rows of several tokens are cut, the last ones first.

        A piece of a prompt that is worth its fixed cost may take longer than `seconds`. Without `unread_s`
        the first prompt runs two tokens at least, and all prompts get a fifth of the step at least. With it
        they get a fifth of the time: a prompt waits until the unit has read none for five times as long as
        such a piece takes. None: not known yet."""
        ...


def granted(
    budget: Budget, cost: StepCost | None, counts: Ints, contexts: Ints, told: Mask | None = None
) -> Ints:
    """The tokens that rows, in this order, get of the budget, int64 [n]; at most `counts` each. `told` as for
    `StepCost.within`. Where times are not known, `seconds` bounds nothing."""
    if len(counts) > budget.rows:
        counts = np.where(np.arange(len(counts)) < budget.rows, counts, 0)
    if budget.seconds < inf and cost is not None:
        timely = cost.within(budget, np.minimum(counts, budget.tokens), contexts, told)
        counts = counts if timely is None else timely
    through = counts.cumsum()
    if not len(counts) or through[-1] <= budget.tokens:
        return counts
    return np.maximum(np.minimum(counts, budget.tokens - through + counts), 0)


class StepView(Protocol):
    """What a policy may read of a stage: its candidates, requests that have a row and then those that wait,
    each oldest first. Columns have an entry for each, [n], and are computed when they are read.

    A codec's candidates are its streams, an encoder's its media: neither reads prompts or holds KV.
    """

    unit: str
    """The replica's name."""
    num_rows: int
    """How many of the candidates, the first ones, have a row."""
    row: Ints
    """-1: it waits."""
    request: Ints
    tier: Ints
    """`Tier`."""
    age_s: Floats
    """Since the person's turn was complete, the same in every stage."""
    ttft_s: Floats
    """Bound on the time to its first token; inf: none."""
    tpot_s: Floats
    """Bound on the time per token after the first; inf: none."""
    context: Ints
    """Tokens before those that it runs next. Of one that waits, as of the last look at the cache."""
    tokens: Ints
    """Tokens (frames of a codec) that it could run next: the rest of its prompt, or one."""
    reading: Mask
    """Its prompt is not wholly computed or planned."""
    ready: Mask
    """It could run now: payload, inputs, credit and KV are there, and no pace policy holds it. Media are
    looked at when a waiting request is about to join."""
    held: Ints
    """Blocks that it holds on the device."""
    needs: Ints
    """Blocks that it lacks for all that it runs next. Of one that waits: blocks that must be free for it to
    join, exact for the first one that waits."""
    place: Ints
    """`Place`."""
    reload_s: Floats
    """Until its KV is there if it is brought, what is queued before it included; nan: not known. For policies
    of one's own: those that ship do not read it."""
    lead_s: Floats
    """Seconds until its consumer runs dry: what this stage and those behind it have made and the person
    has not heard (or read); inf: the client has stopped playing it; nan: not known."""
    begun: Mask
    """The person has the first of its audio, or of its text where that is read."""
    ahead_s: Floats
    """The part of the lead that is not sound yet. It is known before the first audio too."""
    source: Ints
    """How its person's playback is known (`core.playback.Source`)."""
    num_gaps: Ints
    """How often its person ran dry."""
    rate: Floats
    """Units of this stage that its consumer takes in a second; inf: an agent takes all there is; nan: not
    known, or nothing is spoken."""
    block_size: int
    num_blocks: int
    """Of the device, per KV group."""
    num_free: int
    num_pending_free: int
    """Blocks that come back by themselves once steps and copies under way are done."""
    num_evictable: int
    """Blocks that resting KV holds."""
    num_promised: int
    """Blocks that rows were admitted for and do not hold yet."""
    num_free_rows: int
    num_pending_rows: int
    """Rows that come back by themselves once steps in flight are done."""
    rows_behind: float
    """The greatest share of rows in use, 0 to 1, of the stages behind this one; 0: no stage is behind it."""
    cost: StepCost | None
    """None: nothing is known of this stage's times."""


@dataclass(frozen=True, slots=True)
class StepChoice:
    """Which candidates run in the next step. All columns name candidates by their index in the view.

    order    in the order in which they take from the budget. A waiting candidate that is reached gets a row,
             if one is free and its KV fits; the first that does not fit ends the admissions of this step.
             Where rows are few, waiting candidates have their KV brought in this order too, if one of them is
             not ready
    counts   tokens for each of `order`; None: as many as it can take
    urgency  of each of `order`, smaller is more urgent, for the device policy; None: all alike
    preempt  candidates that give up their rows first, and wait again; of a decoder only
    keeps    of each of `preempt`: its KV is kept, to go on from; otherwise what it drew is computed again.
             None: no KV is kept
    stops    the step ends at the first candidate that does not fit (LiveServe Algorithm 1), not only
             the admissions
    wake_at  when to be asked again although nothing happens
    moves    this choice changes what the policy says of KV: it is asked of KV once more
    """

    order: Ints
    reason: str
    counts: Ints | None = None
    urgency: Ints | None = None
    preempt: Ints = field(default_factory=lambda: NO_INTS)
    keeps: Mask | None = None
    stops: bool = False
    wake_at: float | None = None
    moves: bool = False

    @property
    def most_urgent(self) -> int | None:
        """The least of `urgency`; None: the policy gives none."""
        if self.urgency is None:
            return None
        if len(self.urgency):
            return int(self.urgency.min())
        return RUNS_DRY if len(self.preempt) else IDLE


class StepPolicy(Protocol):
    """Decides which candidates run in the next step of a stage.

    If nothing can run after a preemption it is asked again at once. If rows are starved, `preempt` must be
    non-empty, or the stage can stall (see `last_come`). If something is ready and it runs nothing of that, it
    must say until when (`wake_at`).
    """

    name: str

    def decide(self, view: StepView, budget: Budget, now: float) -> StepChoice: ...


def is_short(view: StepView) -> Mask:
    """Of each candidate with a row that is ready: its next token needs another block."""
    return view.ready & (view.row >= 0) & (view.context >= view.held * view.block_size)


def heard_leads_s(view: StepView) -> Floats:
    """Seconds of sound, or of text to read, that each candidate's person still has, without what the stages
    have made ahead of it. [n]."""
    return view.lead_s - view.ahead_s


def is_starved(view: StepView) -> bool:
    """True if a row cannot get the block that its next token needs, even when steps in flight are done."""
    spare = view.num_free + view.num_pending_free + view.num_evictable
    if spare >= view.num_rows:
        return False
    return int(np.count_nonzero(is_short(view))) > spare


def is_crowded(view: StepView) -> bool:
    """True if the first waiting request that a person waits for could join if best-effort rows made room.
    What is pending free comes by itself."""
    num_rows, tier = view.num_rows, view.tier
    if num_rows == len(tier):
        return False
    waiting = (tier[num_rows:] == LATENCY).nonzero()[0]
    if not len(waiting) or not (tier[:num_rows] != LATENCY).any():
        return False
    first = num_rows + int(waiting[0])
    if view.num_pending_free or view.num_pending_rows:
        return False
    apart = view.num_promised + int(np.count_nonzero(is_short(view)))
    fits = view.num_free_rows > 0 and view.needs[first] <= view.num_free + view.num_evictable - apart
    return not fits and bool(view.ready[first])


def last_come(view: StepView) -> Ints:
    """The youngest row, best effort before all else, if blocks are short or best-effort work is in the way of
    a waiting request. The oldest row is never starved alone, so it always goes on. A stage without KV
    preempts nothing."""
    if not (view.num_blocks and view.num_rows) or not (is_starved(view) or is_crowded(view)):
        return NO_INTS
    late = (view.tier[: view.num_rows] != LATENCY).nonzero()[0]
    return np.array([late[-1] if len(late) else view.num_rows - 1], np.int64)


def ready_beside(view: StepView, preempt: Ints) -> Ints:
    """Candidates that are ready, by index; of a step that preempts, only the rows that it leaves."""
    ready = view.ready.nonzero()[0]
    return ready[(ready < view.num_rows) & (ready != preempt[0])] if len(preempt) else ready


def prompts_first(view: StepView) -> StepChoice:
    """Prompts before replies, and what is best effort after both; what came last is preempted."""
    preempt, first = last_come(view), view.num_rows
    ready = ready_beside(view, preempt)
    reading, late = view.reading[ready], view.tier[ready] != LATENCY
    if np.count_nonzero(reading) or np.count_nonzero(late):
        # prompts, then those that wait, then replies; of best effort, those that wait come last
        turn = np.where(reading, np.where(ready >= first, np.where(late, 3, 1), 0), 2)
        ready = ready[np.lexsort((turn, late))]
    return StepChoice(ready, "prompts first", preempt=preempt)


@dataclass(frozen=True, slots=True)
class Hold:
    """Candidates that are held back, [n], and when to ask again although nothing happens.

    spared  for people who look: candidates that would be held without the reason given, [n]
    """

    held: Mask | None
    reason: str
    wake_at: float | None = None
    spared: Mask | None = None


NO_HOLD = Hold(None, "nothing is held back")


class PacePolicy(Protocol):
    """Decides how far a request may run ahead of its consumer: a candidate that is held is not ready.

    If it holds all that could run it must say until when (`wake_at`): nothing else may ever happen.
    """

    name: str

    def decide(self, view: StepView, now: float) -> Hold: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request at the door of the stage that writes it.

    tokens       of its prompt; cached of them need not be computed
    tier, ttft_s, tpot_s  as in StepView
    """

    tokens: int
    cached: int
    tier: Tier
    ttft_s: float = inf
    tpot_s: float = inf


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is not taken: its client is told to come back.

    predicted_s  what it would have waited for its first token; nan: not known
    retry_s      after how long to try again
    """

    reason: str
    predicted_s: float = nan
    retry_s: float = 1.0


class AdmissionPolicy(Protocol):
    """Decides which requests a stage takes; None takes it."""

    name: str

    def decide(self, view: StepView, candidate: Candidate, now: float) -> Refuse | None: ...


class Head(Protocol):
    """A stage of a device that has work. Its step policy is asked when a field of its choice is read."""

    unit: str
    place: int
    """Among the units of the device, in pipeline order."""
    urgency: int | None
    """Of its choice (`StepChoice.most_urgent`)."""
    slack_s: float
    """The least lead of what its choice runs; nan: not known, or nothing runs."""
    step_s: float
    """What the chosen step would take; nan: not known."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Which head steps next, by index, and for people who look why it goes before the others."""

    index: int
    wake_at: float | None = None
    reason: str = ""


class DevicePolicy(Protocol):
    """Decides which of the stages that share a device steps next."""

    name: str

    def decide(self, heads: Sequence[Head], last: int | None, now: float) -> DeviceChoice:
        """`heads`: units with work, in pipeline order, never empty; `last`: the place of the one that stepped
        last. Asked again for the others where the chosen one turns out to have nothing that can run."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A stage's replicas that could serve a turn; lists are aligned and never empty.

    loads     requests that a replica has, waiting and running
    sessions  conversations whose last turn it served
    home      the replica that served this conversation's last turn, if it is among them
    """

    loads: Sequence[int]
    sessions: Sequence[int]
    home: int | None


def least_loaded(view: ReplicaView) -> int:
    """The replica with the fewest requests; among equals, the one with the fewest conversations."""
    return min(range(len(view.loads)), key=lambda unit: (view.loads[unit], view.sessions[unit]))


class ReplicaPolicy(Protocol):
    """Decides which replica of a stage serves a turn."""

    name: str

    def decide(self, view: ReplicaView, now: float) -> int:
        """Index of a replica in the view."""
        ...
