"""The executor of an autoregressive stage: applies a step's delta to the row table, runs it, reports it."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import NO_INTS, NO_TOKENS, Ints, StepDone
from antiphon.core.plans import ArStep, Join, Step
from antiphon.engine.lanes import Begun, InlineExecutor, Landing
from antiphon.engine.logprobs import StepLog

HOST = torch.device("cpu")
"""Where a step without rows is done: no device has to be waited for."""


class ArRunner(Protocol):
    """What a model family gives: how a row begins, what a step feeds in, what it draws."""

    @property
    def logprobs(self) -> StepLog | None:
        """What the last step's rows are told of what they drew, where any is."""
        ...

    @property
    def refused(self) -> dict[int, str]:
        """Rows of the last step that cannot go on in their guide, and why."""
        ...

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
        return self.launched(step, lambda: self._run(step, requests), lambda: self._lost(step, requests))

    def _seat(self, step: ArStep) -> None:
        """Which request has which row from this step on."""
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

    def _lost(self, step: ArStep, requests: Ints) -> tuple[Ints, Ints]:
        """Of a step that failed; its rows are broken from now on."""
        self._broken |= {*step.rows.tolist(), *(join.row for join in step.joins)}
        return np.union1d(requests, np.array([join.request for join in step.joins], np.int64)), NO_INTS

    def _run(self, step: ArStep, requests: Ints) -> Begun:
        self.runner.apply(step)
        for join in step.joins:
            self.runner.join(join)
        if not len(step.rows):
            return HOST, lambda: StepDone(step.stage, step.step, NO_INTS, NO_TOKENS, NO_INTS, NO_INTS)
        drawn = self.runner.run(step)
        tokens, emitting = drawn.to("cpu", non_blocking=True), requests[step.emits == 1]
        told, refused = self.runner.logprobs, self.runner.refused
        self._broken |= refused.keys()

        def report() -> StepDone:
            logs = () if told is None else told.landed()
            done = StepDone(step.stage, step.step, emitting, tokens.numpy(), NO_INTS, NO_INTS, logprobs=logs)
            return _without(done, step.rows[step.emits == 1], refused) if refused else done

        return drawn.device, report


def _without(done: StepDone, rows: Ints, refused: dict[int, str]) -> StepDone:
    """What a step brings, without what rows drew that cannot go on; `rows` are those that drew."""
    stays = ~np.isin(rows, list(refused))
    named = zip(rows.tolist(), done.requests.tolist(), strict=True)
    return msgspec.structs.replace(
        done,
        requests=done.requests[stays],
        tokens=done.tokens[stays],
        logprobs=tuple(log for log, stay in zip(done.logprobs, stays.tolist(), strict=False) if stay),
        refused=tuple((request, refused[row]) for row, request in named if row in refused),
    )
