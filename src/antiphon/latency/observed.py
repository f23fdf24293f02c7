"""How long steps and copies take by what was reported of them: moving models, where no profile says it.

What a model says depends on the reports alone, not on when it is asked, so that records replay. It is fitted
when it is asked, and at most once in `EVERY` reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isnan, nan
from operator import mul
from statistics import median
from typing import NamedTuple

import numpy as np

from antiphon.core.facts import NO_INTS, Floats, Ints, Mask
from antiphon.core.plans import ArStep, Budget, CodecStep, EncodeStep, Step
from antiphon.latency.cutting import LEAST_TOKENS, within
from antiphon.latency.features import ArFeatures, row_features
from antiphon.latency.fit import nnls

WINDOW = 64
"""Reports of each kind that count: many steps of one kind do not push out those of the other."""
FEWEST = 8
"""Reports of a kind before anything is said of it."""
EVERY = 16
HALF_LIFE = 16
"""A report counts half as much for each so many that came after it."""
OUTLIER = 4.0
"""Reports that are off by so many times the median error are left out."""
FIRST_TOKENS = 128
"""Of prompts in a step beside others, at most, until more were reported: nothing says what these take."""
GROWTH = 2
"""A step has at most so many times the most tokens of prompts that one had before: a fit of steps that are
alike does not tell a token's time from the step's, and grants any number."""
SURPRISE = 1.5
"""A step with prompts that took so many times what is said of it tells how long the next ones take."""
SLACK = 1.5
"""A step takes at most so many times the quickest of the reported ones that had as much to do."""
NUM_COLUMNS, TOKENS = 6, 1
"""Of a decoder's figures; the one of a token."""
COPY_WINDOW = 16
FEWEST_COPIES = 2

Columns = tuple[float, ...]


@dataclass(slots=True)
class _Report:
    """A step that was reported. Its columns are worked out once they are needed. told: tokens of prompts;
    prompt_tokens: of rows of more than one, and those that are told once more."""

    index: int
    counts: Ints
    contexts: Ints
    seconds: float
    told: int
    prompt_tokens: int
    columns: Columns | None = None


class _Prompts(NamedTuple):
    """What reports say of prompts, as of the last one.

    most        tokens of prompts in a step, at most
    quickest_s  a token's share of the step in which that was least
    newest_s    a token's share while there is no fit
    surprise_s  how much longer each token took in the newest step with prompts than the fit says; 0: about as
                long, or there is no fit
    """

    most: int
    quickest_s: float
    newest_s: float
    surprise_s: float


class _Work:
    """What steps that were reported had to do, and how long it took: the newest of each kind."""

    def __init__(self) -> None:
        self._table = np.full((2, WINDOW + EVERY, 4), inf)
        """By kind: seconds, rows, tokens, and what the rows read of the KV, themselves included."""
        self._counts = [0, 0]

    def add(self, kind: bool, counts: Ints, contexts: Ints, seconds: float) -> None:
        at = self._counts[kind] % self._table.shape[1]
        self._table[int(kind), at] = seconds, *_amounts(counts, contexts)
        self._counts[kind] += 1

    def most_s(self, counts: Ints, contexts: Ints) -> float:
        """What a step takes at most by what one took that had as much to do: more rows, tokens, or KV to read
        take at most that many times longer. Steps without a prompt tell nothing of one with. inf: none was
        reported."""
        table = self._table[int(counts.max() > 1) :]
        seconds, done = table[..., 0], table[..., 1:]
        times = np.maximum((np.array(_amounts(counts, contexts)) / done).max(-1), 1.0)
        return float((seconds * times).min())


class ObservedSteps:
    """A moving linear model of one unit's steps, none of its figures below zero.

    Implements `policy.base.StepCost`. Steps that waited for copies are not counted, nor those with rows that
    leave or enter between layers.
    """

    def __init__(self, is_decoder: bool) -> None:
        self._is_decoder = is_decoder
        self._under_way: dict[int, tuple[Step, int]] = {}
        """With how many tokens of prompts it tells."""
        self._telling: dict[int, int] = {}
        """Rows that are told of their prompts, and before which position."""
        self._reports: dict[bool, deque[_Report]] = {
            is_prefill: deque(maxlen=WINDOW + EVERY) for is_prefill in (False, True)
        }
        """By whether a row of a decoder runs more than one token."""
        self._num_reports = 0
        self._end: int = 0
        """The last fit knew so many reports."""
        self._known: frozenset[bool] = frozenset()
        """Kinds of which the last fit had enough."""
        self._figures: Sequence[float] = ()
        self._work = _Work()
        self._newest: _Report | None = None
        """Of steps with prompts; its counts and contexts stay."""
        self._prompts: _Prompts | None = None
        """Worked out when it is asked for, once a report."""

    def ordered(self, step: Step) -> None:
        self._under_way[step.step] = step, self._told(step) if isinstance(step, ArStep) else 0

    def reported(self, number: int, seconds: float) -> None:
        """nan seconds: the step failed, or nothing says how long it took."""
        step, told = self._under_way.pop(number, (None, 0))
        if step is None or not seconds > 0:
            return
        counts, contexts = _rows(step)
        if not len(counts):
            return
        is_prefill = self._is_prefill(counts)
        tokens = told + (int(counts[counts > 1].sum()) if is_prefill else 0)
        report = _Report(self._num_reports, counts, contexts, seconds, told, tokens)
        if is_prefill:
            self._newest = replace(report)
        self._reports[is_prefill].append(report)
        self._work.add(is_prefill, counts, contexts, seconds)
        self._num_reports += 1
        self._prompts = None

    def seconds(self, counts: Ints, contexts: Ints) -> float:
        if not len(counts):
            return 0.0
        self._fit()
        if self._is_prefill(counts) not in self._known:
            return nan
        return self._said(self._columns(counts, contexts))

    def within(self, budget: Budget, counts: Ints, contexts: Ints, told: Mask | None = None) -> Ints | None:
        """As the fit says; until there is one, a token of a prompt takes as long as in the newest step that
        had many, half of the most at least, or in one since that had fewer and took less for each. Whatever
        either says, prompts grow by `GROWTH` from what was reported, and no token of theirs takes less than
        its share of the quickest step that was. Rows alone, or with the least of a prompt, take no longer
        than reported steps bound: a fit of rows that were all alike cannot tell what they read from what a
        step costs, and would let prompts take as long. Where the newest step with prompts took longer than is
        said by then, a token of theirs takes so much more."""
        if not self._is_decoder or not (counts > 1).any():
            return counts
        self._fit()
        if self._prompts is None:
            self._prompts = self._of_prompts()
        most, quickest_s, newest_s, surprise_s = self._prompts
        excess_s = self._excess_s(_alone(counts), contexts), self._excess_s(_least(counts), contexts)

        def step_s(one: ArFeatures) -> float:
            tokens = one.num_tokens - one.decode_rows + _num_told(one)
            if tokens > most:
                return inf
            fitted_s = self._decoder_s(one)
            if isnan(fitted_s):
                return tokens * newest_s
            fitted_s += surprise_s * max(tokens - LEAST_TOKENS, 0) - excess_s[one.prefill_rows > 0]
            return max(fitted_s, tokens * quickest_s)

        return within(step_s, budget, counts, contexts, told)

    def _of_prompts(self) -> _Prompts:
        reports = self._reports[True]
        longest = max((one.prompt_tokens for one in reports), default=0)
        quickest_s, newest_s = inf if reports else 0.0, 0.0
        for one in reports:
            each_s = one.seconds / one.prompt_tokens
            quickest_s = min(quickest_s, each_s)
            newest_s = each_s if 2 * one.prompt_tokens >= longest else min(newest_s, each_s)
        return _Prompts(max(FIRST_TOKENS, GROWTH * longest), quickest_s, newest_s, self._surprise_s())

    def _excess_s(self, counts: Ints, contexts: Ints) -> float:
        """How much longer the fit has a step take than what was reported of others allows."""
        runs = counts > 0
        counts, contexts = counts[runs], contexts[runs]
        if not len(counts) or not self._figures:
            return 0.0
        said_s = self._said(_decoder(row_features(counts, contexts)))
        return max(said_s - SLACK * self._work.most_s(counts, contexts), 0.0)

    def _surprise_s(self) -> float:
        newest = self._newest
        if newest is None or True not in self._known:
            return 0.0
        counts, contexts = newest.counts, newest.contexts
        said_s = self._said(_decoder(row_features(counts, contexts))) + newest.told * self._told_s
        said_s -= self._excess_s(_least(counts), contexts)
        is_surprise = newest.seconds > SURPRISE * said_s
        return (newest.seconds - said_s) / newest.prompt_tokens if is_surprise else 0.0

    def _decoder_s(self, features: ArFeatures) -> float:
        if (features.prefill_rows > 0) not in self._known:
            return nan
        told = _num_told(features)
        return self._said(_decoder(features)) + (told * self._told_s if told else 0.0)

    def _said(self, columns: Columns) -> float:
        return sum(map(mul, self._figures, columns))

    @property
    def _told_s(self) -> float:
        """Of a prompt's token that is told, beside its way through the layers: as long as that while no such
        step was reported."""
        return self._figures[NUM_COLUMNS] if len(self._figures) > NUM_COLUMNS else self._figures[TOKENS]

    def _told(self, step: ArStep) -> int:
        """Tokens of prompts that a step tells of."""
        if self._telling:
            for row in (*step.leaves.tolist(), *(join.row for join in step.joins)):
                self._telling.pop(row, None)
        for join in step.joins:
            if join.sampling.prompt_logprobs and not len(join.generated):
                self._telling[join.row] = len(join.prompt.token_ids) - 1
        if not self._telling:
            return 0
        columns = zip(step.rows.tolist(), step.starts.tolist(), step.counts.tolist(), strict=True)
        return sum(min(count, max(self._telling.get(row, 0) - start, 0)) for row, start, count in columns)

    def _is_prefill(self, counts: Ints) -> bool:
        return self._is_decoder and int(counts.max()) > 1

    def _columns(self, counts: Ints, contexts: Ints) -> Columns:
        """What the figures are multiplied with: once a step, and by tokens, rows and what they attend to."""
        if not self._is_decoder:
            return 1.0, float(len(counts)), float(counts.sum())
        return _decoder(row_features(counts, contexts))

    def _used(self, is_prefill: bool) -> list[_Report]:
        """The newest of those that a fit may know of."""
        return [one for one in self._reports[is_prefill] if one.index < self._end][-WINDOW:]

    def _fit(self) -> None:
        end = self._num_reports - self._num_reports % EVERY
        if end == self._end:
            return
        self._end = end
        kinds = {is_prefill: self._used(is_prefill) for is_prefill in self._reports}
        self._known = frozenset(kind for kind, reports in kinds.items() if len(reports) >= FEWEST)
        used = [one for reports in kinds.values() for one in reports]
        for one in used:
            if one.columns is None:
                one.columns = self._columns(one.counts, one.contexts)
                one.counts = one.contexts = NO_INTS
        seconds = np.array([one.seconds for one in used])
        ages = end - np.array([one.index for one in used])
        weights = 0.5 ** (0.5 * ages / HALF_LIFE)  # squared by the fit
        columns = np.array([one.columns for one in used])
        if any(one.told for one in used):
            columns = np.column_stack((columns, [one.told for one in used]))
        matrix = columns * (weights / seconds)[:, None]
        figures = _solved(matrix, weights)
        errors = np.abs(matrix @ figures / weights - 1.0)
        kept = errors <= OUTLIER * max(float(np.median(errors)), 1e-9)
        self._figures = (figures if kept.all() else _solved(matrix[kept], weights[kept])).tolist()


class ObservedCopies:
    """A moving rate of the copies of one device, of each unit, KV group and direction by itself."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str, str], deque[float]] = {}

    def reported(self, unit: str, group: str, to: str, num_blocks: int, seconds: float) -> None:
        """nan seconds: it failed, or nothing says how long it took."""
        if seconds > 0 and num_blocks:
            window = self._seconds.setdefault((unit, group, to), deque(maxlen=COPY_WINDOW))
            window.append(seconds / num_blocks)

    def seconds(self, unit: str, group: str, to: str, num_blocks: int) -> float:
        """Of a copy of so many blocks; nan: not known yet."""
        window = self._seconds.get((unit, group, to), ())
        return median(window) * num_blocks if len(window) >= FEWEST_COPIES else nan


def _alone(counts: Ints) -> Ints:
    """Of a step the rows without a prompt."""
    return np.where(counts == 1, counts, 0)


def _least(counts: Ints) -> Ints:
    """The rows without a prompt, and the least piece of the first prompt."""
    least, first = _alone(counts), int((counts > 1).argmax())
    least[first] = min(int(counts[first]), LEAST_TOKENS)
    return least


def _amounts(counts: Ints, contexts: Ints) -> tuple[int, int, int]:
    """Rows, tokens, and what the rows read of the KV, themselves included."""
    tokens = int(counts.sum())
    return len(counts), tokens, tokens + int(contexts.sum())


def _decoder(one: ArFeatures) -> Columns:
    rows = one.decode_rows, one.prefill_rows
    return 1.0, one.num_tokens, *rows, one.decode_load, one.prefill_load


def _num_told(one: ArFeatures) -> float:
    """Tokens of prompts that are told."""
    return one.emits - one.decode_rows - one.prefill_rows


def _solved(matrix: Floats, target: Floats) -> Floats:
    """`nnls` of many rows, brought to as many as there are columns."""
    q, r = np.linalg.qr(matrix)
    return nnls(r, q.T @ target)


def _rows(step: Step) -> tuple[Ints, Ints]:
    """How much runs of each row, after how much; none of a step that tells nothing about others."""
    match step:
        case ArStep():
            is_alike = not (len(step.waits[0]) or len(step.leaves_at[0]) or len(step.enters_at[0]))
            return (step.counts, step.starts) if is_alike else (NO_INTS, NO_INTS)
        case CodecStep():
            return step.counts, NO_INTS
        case EncodeStep():
            return np.ones(len(step.media), np.int64), NO_INTS
