"""The executor of a decoder: who failed sits out, whatever was planned for them already."""

from __future__ import annotations

import numpy as np
import torch

from antiphon.core.facts import NO_INTS, NO_TOKENS, StagePrompt, StepDone, StepFailed
from antiphon.core.plans import ArStep, Join, ints
from antiphon.core.sampling import Sampling
from antiphon.engine.ar import ArExecutor

PROMPT = StagePrompt(ints([1, 2]), ints([1, 2]), (), 2, NO_INTS)


class Fragile:
    """Can't run a row that has not joined; draws the row's number."""

    logprobs: None = None

    def __init__(self) -> None:
        self.joined: set[int] = set()
        self.refused: dict[int, str] = {}
        self.failing = {7}

    def apply(self, step: ArStep) -> None:
        self.joined -= set(step.leaves.tolist())

    def join(self, join: Join) -> None:
        if join.request in self.failing:
            raise RuntimeError("no")
        self.joined.add(join.row)

    def run(self, step: ArStep) -> torch.Tensor:
        assert set(step.rows.tolist()) <= self.joined
        return torch.from_numpy(step.rows[step.emits == 1])[:, None]


def step(number: int, joins: dict[int, int], rows: list[int], leaves: list[int]) -> ArStep:
    seats = tuple(Join(row, request, PROMPT, 0, Sampling(), NO_TOKENS) for row, request in joins.items())
    ones = np.ones(len(rows), np.int64)
    empty = (NO_INTS, NO_INTS)
    return ArStep("thinker", number, seats, ints(leaves), (), *empty, ints(rows), ones, ones, ones, "")


def test_a_row_of_a_failed_step_sits_out_until_it_is_handed_out_anew() -> None:
    executor = ArExecutor(Fragile())
    orders = [
        step(0, {0: 7}, [0], []),
        step(1, {1: 8}, [0, 1], []),
        step(2, {0: 9}, [0, 1], [0]),
    ]
    for order in orders:
        executor.submit(order)
    failed, beside, anew = executor.poll()
    assert isinstance(failed, StepFailed)
    assert failed.requests.tolist() == [7]
    assert isinstance(beside, StepDone)
    assert isinstance(anew, StepDone)
    assert (beside.requests.tolist(), beside.tokens.tolist()) == ([8], [[1]])
    assert (anew.requests.tolist(), anew.tokens.tolist()) == ([9, 8], [[0], [1]])


def test_what_a_row_drew_that_cannot_go_on_is_not_told() -> None:
    """The others' is, and the row sits out."""
    runner = Fragile()
    executor = ArExecutor(runner)
    runner.refused = {1: "no token can follow"}
    executor.submit(step(0, {0: 6, 1: 8, 2: 9}, [0, 1, 2], []))
    runner.refused = {}
    executor.submit(step(1, {}, [0, 1, 2], []))
    first, second = executor.poll()
    assert isinstance(first, StepDone)
    assert isinstance(second, StepDone)
    assert (first.requests.tolist(), first.tokens.tolist()) == ([6, 9], [[0], [2]])
    assert first.refused == ((8, "no token can follow"),)
    assert (second.requests.tolist(), second.refused) == ([6, 9], ())
