"""The effects of a policy's answer: two policies that are asked the same are compared by them."""

from __future__ import annotations

from itertools import islice
from typing import Any

from antiphon.policy.base import Budget, DeviceChoice, Head, Hold, Refuse, StepChoice, StepView, granted
from antiphon.policy.memory import KvView, Selection

MOST_OWNERS = 8
"""An answer about KV is compared by its first owners, at most so many."""

Effects = dict[tuple[str, int | str], None]
"""Actions and their targets, in order: run, preempt, hold (a request); refuse (""); step (a unit); serve (a
replica's index); evict, write, fetch (an owner of KV)."""


class ObservedHead:
    """Implements `policy.base.Head` with the urgency of the unit's observed step policy."""

    def __init__(self, head: Head, urgency: dict[str, int | None]) -> None:
        self.unit, self.place = head.unit, head.place
        self._head, self._urgency = head, urgency

    @property
    def urgency(self) -> int | None:
        own = self._head.urgency  # asks the step policy
        return self._urgency.get(self.unit, own)

    @property
    def slack_s(self) -> float:
        return self._head.slack_s

    @property
    def step_s(self) -> float:
        return self._head.step_s


def effects(decision: str, view: Any, answer: Any, *more: Any) -> Effects:
    """The effects of one answer, as far as the view tells: a step runs what its budget of tokens and rows has
    room for; KV moves as far as its first owners have blocks, whether or not those have copies. Empty where
    nothing is done, or where there is only one possible answer."""
    match answer:
        case StepChoice():
            return _of_step(view, answer, more[0])
        case Hold():
            return _of_hold(view, answer)
        case Refuse():
            return {("refuse", ""): None}
        case DeviceChoice():
            return {("step", view[answer.index].unit): None} if len(view) > 1 else {}
        case Selection():
            return _of_selection(decision, view, answer)
        case int():
            return {("serve", answer): None} if len(view.loads) > 1 else {}
        case _:
            return {}  # a request is taken


def _of_step(view: StepView, choice: StepChoice, budget: Budget) -> Effects:
    order = choice.order
    chosen = view.ready[order]
    order = order[chosen]
    tokens = view.tokens[order] if choice.counts is None else choice.counts[chosen]
    runs = granted(budget, view.cost, tokens, view.context[order]) > 0
    done: Effects = {("run", request): None for request in view.request[order[runs]].tolist()}
    return done | {("preempt", request): None for request in view.request[choice.preempt].tolist()}


def _of_hold(view: StepView, hold: Hold) -> Effects:
    held: list[int] = [] if hold.held is None else view.request[hold.held & view.ready].tolist()
    return {("hold", request): None for request in held}


def _of_selection(decision: str, view: KvView, selection: Selection) -> Effects:
    done: Effects = {}
    left = min(selection.count, view.num_below) if decision == "write" else selection.count
    for owner in islice(selection.owners, MOST_OWNERS) if left else ():
        blocks = _num_blocks(decision, view, owner)
        if blocks:
            done[decision, owner] = None
            left -= blocks
        if left <= 0:
            break
    return done


def _num_blocks(decision: str, view: KvView, owner: str) -> int:
    """Blocks of the owner that could move."""
    if view.state(owner) is None:
        return 0
    if decision == "fetch":
        return view.num_away(owner)
    return view.device(owner) if view.tier == "device" else view.on_host(owner)
