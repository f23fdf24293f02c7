"""Devices of a node, as one process has them: each runs one step at a time, of one of its units there."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from typing import cast

import numpy as np

from antiphon.core.plans import Step
from antiphon.flow.stages import Scheduler, Stages
from antiphon.flow.words import Words
from antiphon.policy.base import PREPARATORY, DevicePolicy, Head, granted, soonest
from antiphon.stage.ar import ArScheduler
from antiphon.stage.policies import Question, to_run

LEFT_S = 0.5
"""Sound that each listener has left, at least, after a step that only shows words so far: the next is made
in that time."""
UNKNOWN_STEP_S = 0.25
"""What such a step is taken to last, as long as none was measured."""
AGAIN_S = 0.05
"""When it is asked again whether there is time for one."""


class UnitHead:
    """Implements `policy.base.Head` for a unit with work: its policies are asked when this is read."""

    def __init__(self, scheduler: Scheduler, place: int, now: float) -> None:
        self.unit = scheduler.name
        self.place = place
        self._scheduler = scheduler
        self._now = now

    @property
    def urgency(self) -> int | None:
        return self._scheduler.choose(self._now)[1].most_urgent

    @property
    def is_preparatory(self) -> bool:
        """Would it run something, and only what is preparatory?"""
        view, choice = self._scheduler.choose(self._now)
        order, _ = to_run(view, choice)
        return len(order) > 0 and bool((view.tier[order] == PREPARATORY).all())

    @property
    def slack_s(self) -> float:
        view, choice = self._scheduler.choose(self._now)
        leads_s = view.lead_s[choice.order]
        return nan if not len(leads_s) or np.isnan(leads_s).all() else float(np.nanmin(leads_s))

    @property
    def step_s(self) -> float:
        view, choice = self._scheduler.choose(self._now)
        if view.cost is None:
            return nan
        counts = view.tokens[choice.order] if choice.counts is None else choice.counts
        contexts = view.context[choice.order]
        given = granted(self._scheduler.spendable(self._now), view.cost, counts, contexts)
        return view.cost.seconds(given[given > 0], contexts[given > 0])


class Device:
    """Owner of which of a process's units on one device steps next. `depth` + 1 of their steps may be in
    flight. If nothing ran when it was asked, nothing does until one of its units has changed, or a policy
    wishes to be asked again."""

    def __init__(
        self,
        stages: Stages,
        units: tuple[str, ...],
        policy: DevicePolicy,
        depth: int,
        words: Words | None = None,
    ) -> None:
        """units: names, in pipeline order; words: which of their work only shows words so far."""
        self._words = words
        self._stages = stages
        self._units = units
        self._policy = policy
        self._depth = depth
        self._last: int | None = None
        self._question = Question()
        self._is_busy = False
        """As many steps are in flight as may be, since it was asked last."""
        self.idle: tuple[Scheduler, ...] = ()
        """Units that were asked for a step in vain the last time that the device was."""
        self.is_running = False
        """A step was in flight then."""
        self.num_asked = 0
        """How often a plan began."""

    @property
    def wake_at(self) -> float | None:
        """When a policy wishes to be asked again, of those asked last."""
        return self._question.wake_at

    def reopen(self) -> None:
        """Ask its policies again, whatever has changed."""
        self._question.reopen()

    def rests(self, now: float) -> bool:
        """Is it left unasked, since nothing has changed?"""
        return not self._question.is_due(self._state([one.state for one in self._schedulers]), now)

    @property
    def _schedulers(self) -> list[Scheduler]:
        """Another one of a unit once that was lost."""
        return [self._stages.find(unit) for unit in self._units]

    def _state(self, of_units: list[tuple[int, int]]) -> object:
        """What policies go by, but for time."""
        return of_units, [one.num_heard for one in self.idle]

    def plan(self, step: int, now: float) -> Step | None:
        """The next step, numbered so: of the unit that the policy prefers, or of the next that can really
        run; if none can, of one whose KV is on its way. None if the device is busy, or nothing can run."""
        schedulers = self._schedulers
        num_in_flight = 0
        for scheduler in schedulers:
            num_in_flight += scheduler.num_in_flight
        is_busy = num_in_flight > self._depth
        if is_busy and self._is_busy:
            return None
        before = [one.state for one in schedulers]
        if not (is_busy or self._is_busy or self._question.is_due(self._state(before), now)):
            return None
        self._is_busy = is_busy
        self.num_asked += 1
        self._question.reopen()
        self._question.wake_at = None
        self.idle, self.is_running = (), False
        if is_busy:
            return None
        heads = [UnitHead(one, place, now) for place, one in enumerate(schedulers) if one.has_work]
        asked: list[int] = []
        aside = self._aside(heads)
        if aside:
            heads = [head for head in heads if head not in aside]
            is_their_turn = self._last not in [head.place for head in aside]
            if heads and is_their_turn and self._has_time(aside, now, False):
                planned = self._first(aside, step, now, asked)
                if planned is not None:
                    return planned
        planned = self._first_of_all(heads, step, now, asked, num_in_flight)
        if planned is not None:
            return planned
        if self._has_time(aside, now, True):
            planned = self._first_of_all(aside, step, now, asked, num_in_flight)
            if planned is not None:
                return planned
        elif aside:
            self._question.wake_at = soonest(self.wake_at, now + AGAIN_S)
        for place in asked:
            scheduler = schedulers[place]
            if isinstance(scheduler, ArScheduler) and not (num_in_flight and scheduler.steps.left_out):
                planned = scheduler.join_early(step, now)
                if planned is not None:
                    self._last = place
                    return planned
        self.idle = tuple(schedulers[place] for place in asked)
        self.is_running = num_in_flight > 0
        self._question.asked(self._state(before), self.wake_at, now)
        return None

    def _first(self, heads: list[UnitHead], step: int, now: float, asked: list[int]) -> Step | None:
        """The step of the first of these units that can run, as the policy orders them. The places of those
        that were asked are added to `asked`."""
        schedulers, heads = self._schedulers, list(heads)
        while heads:
            choice = self._policy.decide(cast(Sequence[Head], tuple(heads)), self._last, now)
            head = heads.pop(choice.index)
            asked.append(head.place)
            planned = schedulers[head.place].plan(step, now)
            wished = (one.wake_at for one in schedulers)
            self._question.wake_at = soonest(self.wake_at, choice.wake_at, *wished)
            if planned is not None:
                self._last = head.place
                return planned
        return None

    def _first_of_all(
        self, heads: list[UnitHead], step: int, now: float, asked: list[int], num_in_flight: int
    ) -> Step | None:
        """The first step that one of these units plans. Where nothing else runs on the device, it may read
        prompts that they left out for the replies beside them."""
        planned = self._first(heads, step, now, asked)
        if planned is not None or num_in_flight:
            return planned
        schedulers = self._schedulers
        tried = (schedulers[head.place] for head in heads)
        leaving = [one for one in tried if isinstance(one, ArScheduler) and one.steps.left_out]
        for one in leaving:
            one.be_alone(True)
        planned = self._first(heads, step, now, []) if leaving else None
        for one in leaving:
            one.be_alone(False)
        return planned

    # -- what shows words so far ---------------------------------------------------------------------

    def _aside(self, heads: list[UnitHead]) -> list[UnitHead]:
        """Units that would run nothing but what shows words so far. Where a turn is read ahead, that comes
        before it."""
        if self._words is None or not self._words.is_writing:
            return []
        return [head for head in heads if not self._stages.is_entry(head.unit) and head.is_preparatory]

    def _has_time(self, aside: list[UnitHead], now: float, is_idle: bool) -> bool:
        """May the device take a step of any of these, and be back before a listener runs dry?"""
        if not aside or self._words is None:
            return False
        steps_s = [UNKNOWN_STEP_S if isnan(head.step_s) else head.step_s for head in aside]
        return self._words.spare_s(now, is_idle) >= max(steps_s) + LEFT_S
