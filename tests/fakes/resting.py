"""What a node leaves unasked would have had nothing to say: asked all the same, a copy of it does nothing."""

from __future__ import annotations

from copy import deepcopy

from antiphon.assembly.node import Node
from antiphon.stage.policies import MOST_SILENT_S, Question

NO_STEP = 1 << 40


def _asked_at(question: Question, now: float) -> float:
    """When it was asked, unless a policy wished to be asked again sooner than in any case."""
    is_usual = question.wake_at is None or question.wake_at > question._due_at
    return question._due_at - MOST_SILENT_S if is_usual else now


def check_resting(node: Node, now: float) -> None:
    """After a call at `now`: no device would step, and no KV would move, that the next call at this time
    passes over. Time itself may change what a policy says of KV, as it looks again at what it remembers: for
    that it is asked every `MOST_SILENT_S`. Raises AssertionError otherwise."""
    is_left_alone = any(not ar._tending._kept.is_due(ar.state, now) for ar in node.stages.ar.values())
    if not is_left_alone and not any(device.rests(now) for device in node._devices):
        return
    sessions = node._orchestrator._sessions._sessions.values()
    items = [item for session in sessions for item in session.record._items]  # never changed, and many
    shared = node.config, node.graph, *node.stages.units.values(), *items
    twin = deepcopy(node, {id(one): one for one in shared})
    twin._times.tell_time(now)
    for scheduler in twin.stages.all:
        scheduler.tell_time(now)
    for device in twin._devices:
        if device.rests(now):
            device.reopen()
            assert device.plan(NO_STEP, now) is None, "it was not asked, and would have stepped"
    for ar in twin.stages.ar.values():
        if not ar._tending._kept.is_due(ar.state, now):
            asked_at = _asked_at(ar._tending._kept, now)
            twin._times.tell_time(asked_at)
            ar.tell_time(asked_at)
            before = ar.state
            ar._tending._tended(asked_at)
            assert ar.state == before, "its KV was left alone, and would have moved"
