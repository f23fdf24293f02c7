"""A decoder stage with tiers, driven by hand, and policies that give the answers a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from antiphon.core.config import ArConfig
from antiphon.core.facts import (
    CopyDone,
)
from antiphon.core.graph import KvGroup, Stage, StageKind, Survives
from antiphon.core.plans import CopyBlocks
from antiphon.policy.memory import NOTHING, KvView, Selection
from antiphon.stage.ar import ArScheduler
from stage.test_ar import BASELINE, STOP, done, request, scheduler


@dataclass
class Says:
    """A memory policy that says what a test last told it. What it saw is kept."""

    selection: Selection = NOTHING
    name: str = "says"
    views: list[KvView] = field(default_factory=list)

    def decide(self, view: KvView, now: float) -> Selection:
        self.views.append(view)
        return self.selection


def small(**sizes: Any) -> ArScheduler:
    return scheduler(**{"num_blocks": 6, "host_blocks": 20, "max_rows": 2, "step_tokens": 20, **sizes})


def grouped(**sizes: Any) -> ArScheduler:
    """Two layer groups."""
    stage = Stage("s", StageKind.AR, (KvGroup("kv"),), Survives.ALL, conditioned=False)
    sizes = {"max_rows": 2, "block_size": 2, "num_blocks": 6, "step_tokens": 20, "host_blocks": 20, **sizes}
    layers = (("low", 0, 1), ("high", 1, 2))
    return ArScheduler(stage, ArConfig(**sizes, stop_ids=(STOP,), layer_groups=layers), BASELINE)


def says(stage: ArScheduler, decision: str, selection: Selection = NOTHING) -> Says:
    """From now on this decision is what a test tells."""
    policy = Says(selection)
    stage.tiers.asks.policies = replace(stage.tiers.asks.policies, **{decision: policy})
    stage.reopen()
    return policy


def answered(stage: ArScheduler, now: float = 0.0) -> list[CopyBlocks]:
    """Every copy ordered since the last call is done."""
    stage.tell_time(now)
    copies = [copy for copy in stage.drain() if isinstance(copy, CopyBlocks)]
    for copy in copies:
        stage.copied(CopyDone("s", copy.ticket))
    stage.check_integrity()
    return copies


def run(stage: ArScheduler, step: int, number: int, first: int, length: int = 8) -> int:
    """One request from its joining to its end; copies are done at once. Returns the next step's number."""
    stage.submit(request(number, length, first=first))
    while stage.has_work:
        stage.tell_time(float(step))
        stage.tend(float(step))
        order = stage.plan(step, float(step)) or stage.join_early(step, float(step))
        stage.write()
        stage.check_integrity()
        answered(stage, step + 0.25)
        if order is not None:
            done(stage, order, *[STOP] * int(order.emits.sum()))
        step += 1
        assert step < 100, "it never ends"
    return step


def away(stage: ArScheduler, step: int = 0) -> int:
    """Session 1 was there and all of its KV is on the host. Returns the next step's number."""
    step = run(stage, step, 1, 100)
    stage.tiers.room.make_room(stage.kv.num_blocks)
    answered(stage)
    assert "session-1" in stage.kv.resting.away
    return step


def ordered(stage: ArScheduler, now: float = 0.0) -> list[CopyBlocks]:
    """What `tend` orders."""
    stage.tell_time(now)
    stage.tend(now)
    stage.check_integrity()
    return [copy for copy in stage.drain() if isinstance(copy, CopyBlocks)]


def three_resting(**sizes: Any) -> ArScheduler:
    """Sessions 1, 2 and 3 rest, two blocks each, used in this order."""
    stage, step = small(**sizes), 0
    for number in (1, 2, 3):
        step = run(stage, step, number, 100 * number, length=4)
    assert list(stage.kv.resting.owners) == ["session-1", "session-2", "session-3"]
    return stage
