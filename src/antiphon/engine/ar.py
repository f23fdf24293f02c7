"""The executor of an autoregressive stage: applies a step's delta to the row table, runs it, reports it."""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import NO_INTS, NO_TOKENS, Ints, StepDone, StepFailed
from antiphon.core.plans import ArStep, Join, Step
from antiphon.engine.lanes import InlineExecutor, Landing, landing, mark

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


class ArExecutor(InlineExecutor):
    """Runs the steps of a decoder.

    A row of a failed step sits out every later step, until it is given up or handed out anew: what was
    planned before the failure was known must not run on its half-done state, nor fail with it.
    """

    def __init__(self, runner: ArRunner) -> None:
        super().__init__()
        self.runner = runner
        self._requests: dict[int, int] = {}
        self._broken: set[int] = set()

    def launch(self, step: Step) -> Landing:
        assert isinstance(step, ArStep)
        self._seat(step)
        step = self._healthy(step)
        requests = self._requests_of(step.rows.tolist())
        return landing(lambda: self._run(step, requests), lambda error: self._failed(step, requests, error))

    def _seat(self, step: ArStep) -> None:
        """Who sits where from this step on."""
        if not len(step.leaves) and not step.joins:
            return
        for row in step.leaves.tolist():
            del self._requests[row]
        for join in step.joins:
            self._requests[join.row] = join.request
        self._broken -= {*step.leaves.tolist(), *(join.row for join in step.joins)}

    def _healthy(self, step: ArStep) -> ArStep:
        """The step without rows of failed steps; its delta stays whole."""
        if not self._broken:
            return step
        runs = ~np.isin(step.rows, list(self._broken))
        columns = {name: getattr(step, name)[runs] for name in ("rows", "starts", "counts", "emits")}
        return msgspec.structs.replace(step, **columns)

    def _requests_of(self, rows: list[int]) -> Ints:
        return np.array([self._requests[row] for row in rows], np.int64)

    def _failed(self, step: ArStep, requests: Ints, error: Exception) -> StepFailed:
        log.exception("step %d of stage %s failed", step.step, step.stage)
        self._broken |= {*step.rows.tolist(), *(join.row for join in step.joins)}
        named = np.union1d(requests, np.array([join.request for join in step.joins], np.int64))
        return StepFailed(step.stage, step.step, named, NO_INTS, f"{type(error).__name__}: {error}")

    @torch.inference_mode()
    def _run(self, step: ArStep, requests: Ints) -> Landing:
        self.runner.apply(step)
        for join in step.joins:
            self.runner.join(join)
        if not len(step.rows):
            return lambda: StepDone(step.stage, step.step, NO_INTS, NO_TOKENS, NO_INTS, NO_INTS)
        drawn = self.runner.run(step)
        tokens = drawn.to("cpu", non_blocking=True)
        wait, emitting = mark(drawn.device), requests[step.emits == 1]

        def land() -> StepDone:
            wait()
            return StepDone(step.stage, step.step, emitting, tokens.numpy(), NO_INTS, NO_INTS)

        return land
