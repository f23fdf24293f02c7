"""Protocols of the decisions taken so far: who runs in the next step, and which stage steps next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.core.facts import Ints


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


@dataclass(frozen=True, slots=True)
class StepChoice:
    """Who takes from the step's budget, in order.

    admit     how many of the waiting get a row, as far as rows and memory allow
    rows      priority order of the rows that run
    admit_at  where among `rows` the admitted come
    """

    admit: int
    rows: Ints
    admit_at: int
    reason: str


class StepPolicy(Protocol):
    """Decides who runs in the next step of a stage."""

    name: str

    def decide(self, view: StageView, budget: Budget, now: float) -> StepChoice: ...


class DevicePolicy(Protocol):
    """Decides which of the stages that share a device steps next."""

    name: str

    def decide(self, ready: Sequence[int], last: int | None, now: float) -> int:
        """`ready`: indices of stages with work, in pipeline order, never empty; `last`: who stepped last."""
        ...
