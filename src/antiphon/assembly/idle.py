"""A bound on how long policies may leave a device idle while a person waits for what it could run.

A policy that holds all requests, or orders nothing, may say `wake_at` as far off as it likes; nothing else
would ever end that. To hold a reply that is ahead of its listener is what pacing is for, and has no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import inf
from typing import cast

import numpy as np

from antiphon.assembly.devices import Device
from antiphon.assembly.guard import Guard
from antiphon.core.facts import NO_INTS, Ints
from antiphon.core.plans import Step
from antiphon.policy.base import LATENCY, ROUNDING_S, StepChoice, StepView, heard_leads_s, soonest
from antiphon.stage.candidates import Candidates

MOST_IDLE_S = 2.0
LATE_S = 0.25
"""A node that is asked so much later than its policies wished was itself held up: the rest of that time is
not theirs."""


class Patience:
    """Owner of since when each request has been held up on an idle device."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._since: dict[str, dict[int, float]] = {}
        """By unit and request."""
        self._lost: set[str] = set()
        """Units that were overruled, and whose policies have run nothing since: there is no patience left."""
        self._ends: dict[Device, list[float]] = {}
        """When patience ends with units of a device, as of when it was asked last."""
        self._num_asked: dict[Device, int] = {}
        """How often each device had been asked by then."""
        self._due_at = inf
        """When policies wished the node to be asked, or when it was, if that is later; inf: they did not."""
        self._now = -inf

    def begin(self, now: float) -> None:
        """Before devices are asked: those with which patience is over are asked in any case."""
        late_s = now - self._due_at - LATE_S
        self._now = now
        if late_s > 0:
            self._put_off(late_s)
        for device, ends in self._ends.items():
            if ends and min(ends) <= now:
                device.reopen()

    def wake_at(self, wished: float | None) -> float | None:
        """When the node is to be asked again: as policies wish, or when patience ends."""
        self._due_at = inf if wished is None else max(wished, self._now)
        return soonest(wished, *chain.from_iterable(self._ends.values()))

    def steps(self, devices: Sequence[Device], ordered: Sequence[Step], step: int, now: float) -> list[Step]:
        """As the baseline chooses them, numbered from `step` on, of devices idle for too long, after
        every device was asked."""
        for one in ordered:
            self._since.pop(one.stage, None)
            self._lost.discard(one.stage)
        steps: list[Step] = []
        for device in devices:
            if self._num_asked.get(device) == device.num_asked:
                continue
            self._num_asked[device] = device.num_asked
            asked = self._asked(device)
            if not asked:
                self._ends.pop(device, None)
                continue
            ends = {name: self._end(name, device, now) for name in asked}
            overdue = [name for name, end in ends.items() if end <= now]
            why = f"left the device idle for {MOST_IDLE_S:g} s while a person waited"
            planned = None
            at_fault = [name for name in overdue if self._guard.stalled(name, why)]
            if at_fault:
                device.reopen()
                planned = device.plan(step + len(steps), now)
                self._guard.go_on()
                device.reopen()
                self._ends.pop(device, None)
            if planned is not None:
                steps.append(planned)
                self._lost.update(overdue)
                continue
            for name in overdue:
                self._since[name] = dict.fromkeys(self._since[name], now)
                self._lost.discard(name)
                ends[name] = now + MOST_IDLE_S
            self._ends[device] = [end for end in ends.values() if end < inf]
        return steps

    def _put_off(self, seconds: float) -> None:
        """No policy was asked for so long."""
        for since in self._since.values():
            since.update({request: at + seconds for request, at in since.items()})
        self._ends = {device: [end + seconds for end in ends] for device, ends in self._ends.items()}

    def _asked(self, device: Device) -> list[str]:
        idle = () if device.is_running else device.idle
        return [one.name for one in idle if self._guard.may_hold_up(one.name)]

    def _end(self, name: str, device: Device, now: float) -> float:
        """When patience with this unit ends; inf: it holds no request up."""
        seen = next(one.seen for one in device.idle if one.name == name)
        held: list[int] = [] if seen is None else held_up(*seen).tolist()
        was = self._since.pop(name, {})
        if not held:
            return inf
        since = self._since[name] = {request: was.get(request, now) for request in held}
        return min(since.values()) + (0.0 if name in self._lost else MOST_IDLE_S)


def held_up(view: Candidates, choice: StepChoice) -> Ints:
    """Requests of people that could run, have room, and were not chosen, but for replies of which their
    people have sound, or text, to go on with: what lies between the stage and them may be less than the next
    one takes up at a time."""
    chosen = np.zeros(len(view), np.bool_)
    chosen[choice.order] = True
    held = view.could_run & (view.tier == LATENCY) & ~(chosen & view.ready)
    if view.num_blocks and held.any():
        room = view.num_free + view.num_evictable - view.num_promised
        held &= view.needs <= room
        held[view.num_rows :] &= view.num_free_rows > 0
    if not held.any():
        return NO_INTS
    is_heard = view.begun & (heard_leads_s(cast(StepView, view)) > ROUNDING_S)
    return view.request[held & ~is_heard]
