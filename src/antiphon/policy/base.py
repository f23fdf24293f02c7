"""Protocols of the decisions taken so far: who runs in the next step, which stage steps next, and which of a
stage's replicas serves a turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from antiphon.core.facts import NO_INTS, Ints


@dataclass(frozen=True, slots=True)
class Budget:
    """What one step may spend. Policies consume it in the order they choose."""

    tokens: int
    rows: int


class StageView(Protocol):
    """What a step policy may read of an AR stage. Columns are aligned; rows are row-table indices."""

    @property
    def prefilling(self) -> Ints:
        """Rows whose prompt is not wholly computed or planned, oldest first."""
        ...

    @property
    def decoding(self) -> Ints:
        """Rows that could sample their next token now, oldest first."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests without a row, first come first."""
        ...

    @property
    def best_effort(self) -> Ints:
        """Per row of the row table, 1: all others go first. Such rows count as younger than all others."""
        ...

    @property
    def running(self) -> Ints:
        """All rows in use, oldest first. A request keeps its age when it is preempted."""
        ...

    @property
    def starved(self) -> bool:
        """Some row cannot get the block that its next token needs, not even when steps in flight are done."""
        ...

    @property
    def crowded(self) -> bool:
        """Somebody could join if the best-effort rows, of which there are some, made room."""
        ...


@dataclass(frozen=True, slots=True)
class StepChoice:
    """Who takes from the step's budget, in order.

    admit     how many of the waiting get a row, as far as rows and memory allow
    rows      priority order of the rows that run
    admit_at  where among `rows` the admitted come
    preempt   rows that are given up first; their requests wait in front of all others, and compute again what
              was lost. A step that preempts admits nobody.
    """

    admit: int
    rows: Ints
    admit_at: int
    reason: str
    preempt: Ints = field(default_factory=lambda: NO_INTS)


class StepPolicy(Protocol):
    """Decides who runs in the next step of a stage.

    If nobody can run after a preemption it is asked again at once. Who is starved and preempts nobody may
    come to rest with work left: a policy has to make room, and may do it as `last_come` does.
    """

    name: str

    def decide(self, view: StageView, budget: Budget, now: float) -> StepChoice: ...


def last_come(view: StageView) -> Ints:
    """The youngest row, if blocks are short or best-effort work is in somebody's way. The oldest is never
    alone and starved, so it always gets on."""
    return view.running[-1:] if view.starved or view.crowded else NO_INTS


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A stage's units that could serve a turn; lists are aligned and never empty.

    loads     requests that a unit has, waiting and running
    sessions  conversations whose last turn it served
    home      the unit that served this conversation's last turn, if it is among them
    """

    loads: Sequence[int]
    sessions: Sequence[int]
    home: int | None


def least_loaded(view: ReplicaView) -> int:
    """The unit with the fewest requests; among equals, the one with the fewest conversations."""
    return min(range(len(view.loads)), key=lambda unit: (view.loads[unit], view.sessions[unit]))


class ReplicaPolicy(Protocol):
    """Decides which replica of a stage serves a turn."""

    name: str

    def decide(self, view: ReplicaView, now: float) -> int:
        """Index of a unit in the view."""
        ...


class DevicePolicy(Protocol):
    """Decides which of the stages that share a device steps next."""

    name: str

    def decide(self, ready: Sequence[int], last: int | None, now: float) -> int:
        """`ready`: indices of stages with work, in pipeline order, never empty; `last`: who stepped last."""
        ...
