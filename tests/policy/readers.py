"""Readers in a stage and their KV, as a test writes them down, and what `TokenBuffer` says of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import Any, cast

import numpy as np

from antiphon.policy.base import Budget, StepChoice, StepView
from antiphon.policy.memory import KvState, KvView, LaneState
from antiphon.policy.token_buffer import TokenBuffer
from policy.views import stage

NOW = 10.0
LANE = LaneState(0, 0.0, 0.001)


def told(policy: TokenBuffer, view: StepView, now: float = NOW) -> StepChoice:
    """What it says of the stage, as it is asked: pace first."""
    hold = policy.decide_pace(view, now)
    if hold.held is not None:
        cast("Any", view).ready = view.ready & ~hold.held
    return policy.decide_step(view, Budget(64, 64), now)


def crowded(**others: Any) -> StepView:
    """Two rows hold 16 of 20 blocks; one reader has 9 s left to read, the other 0.2 s. A third waits for the
    first word."""
    columns = {
        "lead_s": [9.0, 0.2, nan],
        "begun": [True, True, False],
        "rate": [10.0] * 3,
        "held": [8, 8, 0],
        "needs": [0, 0, 6],
        "age_s": [9.0, 8.0, 1.0],
        "num_blocks": 20,
        "num_free": 4,
    }
    return stage(2, 3, **{**columns, **others})


class Takes:
    """A step takes a millisecond for each row and 10 ms besides."""

    def __init__(self, once_s: float = 0.01) -> None:
        self.once_s = once_s

    def seconds(self, counts: Any, contexts: Any) -> float:
        return self.once_s + 0.001 * float(np.sum(counts))


@dataclass
class Kv:
    """A device of 64 blocks and a host with room; a block takes a millisecond over the link."""

    requests: dict[str, int] = field(default_factory=dict[str, int])
    order: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    away: dict[str, int] = field(default_factory=dict[str, int])
    states: dict[str, KvState] = field(default_factory=dict[str, KvState])
    tier: str = "device"
    num_wanted: int = 0
    num_free: int = 64
    num_below: int = 100
    size_below: int = 200
    num_blocks: int = 64
    back: LaneState = LANE
    out: LaneState = LANE
    step_s: float = nan

    @property
    def view(self) -> KvView:
        return cast("KvView", self)

    def oldest(self) -> object:
        return iter(self.order)

    dirty = oldest

    def waiting(self) -> object:
        return iter(self.waits)

    def num_away(self, owner: str) -> int:
        return self.away.get(owner, 0)

    def state(self, owner: str) -> KvState | None:
        return self.states.get(owner)
