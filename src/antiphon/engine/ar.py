"""The executor of an autoregressive stage: applies a step's delta to the row table, runs it, reports it."""

from __future__ import annotations

import logging
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import NO_INTS, NO_TOKENS, Fact, Ints, StepDone, StepFailed
from antiphon.core.plans import ArStep, Join, Step

log = logging.getLogger(__name__)


class ArRunner(Protocol):
    """What a model family gives: how a row begins, what a step feeds in, what it draws."""

    def join(self, join: Join) -> None:
        """A request takes a row."""
        ...

    def leave(self, row: int) -> None:
        """The row's request is gone; whatever is kept for it may be dropped."""
        ...

    def run(self, step: ArStep) -> Tensor:
        """Run the step; returns tokens int64 [number of emitting rows, width], in row order."""
        ...


class ArExecutor:
    """Runs steps when they are submitted (depth 0). Implements `core.ports.Executor`."""

    depth = 0

    def __init__(self, runner: ArRunner) -> None:
        self.runner = runner
        self._requests: dict[int, int] = {}
        self._done: list[Fact] = []

    def submit(self, step: Step) -> None:
        assert isinstance(step, ArStep)
        for row in step.leaves.tolist():
            self._requests.pop(row, None)
            self.runner.leave(row)
        for join in step.joins:
            self._requests[join.row] = join.request
        requests = np.array([self._requests[row] for row in step.rows.tolist()], np.int64)
        try:
            self._done.append(self._run(step, requests))
        except Exception as error:
            log.exception("a step of stage %s failed", step.stage)
            named = np.array(sorted({*requests.tolist(), *(join.request for join in step.joins)}), np.int64)
            message = f"{type(error).__name__}: {error}"
            self._done.append(StepFailed(step.stage, step.step, named, NO_INTS, message))

    def poll(self) -> list[Fact]:
        done, self._done = self._done, []
        return done

    @torch.inference_mode()
    def _run(self, step: ArStep, requests: Ints) -> StepDone:
        for join in step.joins:
            self.runner.join(join)
        if not len(step.rows):
            return StepDone(step.stage, step.step, NO_INTS, NO_TOKENS, NO_INTS, NO_INTS)
        tokens = self.runner.run(step).cpu().numpy()
        return StepDone(step.stage, step.step, requests[step.emits == 1], tokens, NO_INTS, NO_INTS)
