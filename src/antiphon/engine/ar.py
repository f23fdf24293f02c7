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

    def apply(self, step: ArStep) -> None:
        """Take over the step's block tables and inputs, and forget the rows it gives up or hands out anew.

        Done before anything that may fail: a delta is never ordered twice.
        """
        ...

    def join(self, join: Join) -> None:
        """A request takes a row."""
        ...

    def run(self, step: ArStep) -> Tensor:
        """Run the step's rows; returns tokens int64 [number of emitting rows, width], in row order."""
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
        requests = self._seat(step)
        try:
            self._done.append(self._run(step, requests))
        except Exception as error:
            log.exception("step %d of stage %s failed", step.step, step.stage)
            named = np.union1d(requests, np.array([join.request for join in step.joins], np.int64))
            message = f"{type(error).__name__}: {error}"
            self._done.append(StepFailed(step.stage, step.step, named, NO_INTS, message))

    def poll(self) -> list[Fact]:
        done, self._done = self._done, []
        return done

    def _seat(self, step: ArStep) -> Ints:
        """Who sits where from this step on; returns the requests of the step's rows."""
        for row in step.leaves.tolist():
            del self._requests[row]
        for join in step.joins:
            self._requests[join.row] = join.request
        return np.array([self._requests[row] for row in step.rows.tolist()], np.int64)

    @torch.inference_mode()
    def _run(self, step: ArStep, requests: Ints) -> StepDone:
        self.runner.apply(step)
        for join in step.joins:
            self.runner.join(join)
        if not len(step.rows):
            return StepDone(step.stage, step.step, NO_INTS, NO_TOKENS, NO_INTS, NO_INTS)
        tokens = self.runner.run(step).cpu().numpy()
        return StepDone(step.stage, step.step, requests[step.emits == 1], tokens, NO_INTS, NO_INTS)
