"""Tokens that rows are expected to draw: several of them are computed in one step.

A step that runs a row up to its last known token runs the draft behind it as well, as far as the row's blocks
go. The likeliest token after each of these is what the row draws there, as long as the draft was right so
far. What was found so is given step by step, and nothing is computed for it. A row draws what it would draw
without a draft, and schedulers know nothing of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from antiphon.core.facts import NO_INTS, Ints
from antiphon.core.plans import ArStep, Join
from antiphon.core.sampling import Sampling

Positions = tuple[NDArray[np.float32], float]
"""Of a prompt, as `PromptRows.join` takes them."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """A row with a draft.

    positions  of its prompt
    ids        the prompt, and behind it all that the row is expected to draw
    """

    positions: Positions
    ids: Ints

    @property
    def num_prompt(self) -> int:
        return self.positions[0].shape[1]


@dataclass(frozen=True, slots=True)
class Ahead:
    """What of a step has to be computed, and what is known.

    step   rows that have to be computed, the tokens of their drafts counted
    extra  int64, how many of each row's tokens are its draft's
    known  what all other rows draw, by row
    rows   int64, rows of the whole step that draw, in its order
    """

    step: ArStep
    extra: Ints
    known: dict[int, int]
    rows: Ints

    def all(self, drawn: Sequence[int]) -> Ints:
        """What every row draws [rows, 1], given what those draw that were computed."""
        computed = iter(drawn)
        tokens = [self.known[row] if row in self.known else next(computed) for row in self.rows.tolist()]
        return np.array(tokens, np.int64).reshape(-1, 1)


class Drafts:
    """Owner of the rows' drafts, and of what they have brought."""

    def __init__(self, block_size: int, max_tokens: int) -> None:
        """max_tokens: of a row, its prompt included."""
        self._block_size, self._max_tokens = block_size, max_tokens
        self._drafted: dict[int, Drafted] = {}
        self._found: dict[int, deque[int]] = {}
        """By row, what it draws next."""

    def join(self, join: Join, positions: Positions) -> None:
        """A request takes a row. Only one that draws the likeliest tokens has its draft computed."""
        self.forget([join.row])
        drawn = join.generated[:, 0]
        is_right = len(join.draft) > len(drawn) and np.array_equal(drawn, join.draft[: len(drawn)])
        if is_right and _is_plain(join.sampling):
            ids = np.concatenate((join.prompt.token_ids, join.draft))[: self._max_tokens]
            self._drafted[join.row] = Drafted(positions, ids)

    def forget(self, rows: Iterable[int]) -> None:
        """These rows are given up."""
        for row in rows:
            self._drafted.pop(row, None)
            self._found.pop(row, None)

    def begin(self, step: ArStep) -> Ahead | None:
        """None: no row of the step has a draft."""
        rows = step.rows.tolist()
        if not any(row in self._drafted or row in self._found for row in rows):
            return None
        known = {row: self._next(row) for row in rows if row in self._found}
        runs = np.array([row not in known for row in rows], np.bool_)
        columns = {name: getattr(step, name)[runs] for name in ("rows", "starts", "counts", "emits")}
        ends = zip(columns["rows"], columns["starts"] + columns["counts"], columns["emits"], strict=True)
        extra = np.array(
            [self._room(int(row), int(end)) if emits else 0 for row, end, emits in ends], np.int64
        )
        columns["counts"] = columns["counts"] + extra
        return Ahead(msgspec.structs.replace(step, **columns), extra, known, step.rows[step.emits == 1])

    def of(self, row: int) -> Drafted | None:
        return self._drafted.get(row)

    def found(self, row: int, end: int, tokens: list[int]) -> int:
        """A row that was known up to `end` draws the first of these tokens, and after each token of its draft
        that is right the next. Returns the last of them, behind which it goes on."""
        expected = self._drafted[row].ids[end:].tolist()
        right = 0
        while right + 1 < len(tokens) and tokens[right] == expected[right]:
            right += 1
        if right:
            self._found[row] = deque(tokens[1 : right + 1])
        if right == len(expected) or tokens[right] != expected[right]:
            del self._drafted[row]
        return tokens[right]

    def _next(self, row: int) -> int:
        token = self._found[row].popleft()
        if not self._found[row]:
            del self._found[row]
        return token

    def _room(self, row: int, end: int) -> int:
        """Tokens of a row's draft that its blocks hold behind `end`."""
        drafted = self._drafted.get(row)
        return 0 if drafted is None else max(0, min(-end % self._block_size, len(drafted.ids) - end))


def _is_plain(sampling: Sampling) -> bool:
    """Does it draw the likeliest tokens, and nothing else is told or asked of them?"""
    told = sampling.logprobs is not None or sampling.prompt_logprobs
    shaped = sampling.suppress or sampling.bias or sampling.min_tokens or sampling.repetition_penalty != 1.0
    return sampling.temperature == 0 and not told and not shaped


def wanted_tokens(counts: Ints, extra: Ints, emits: Ints) -> tuple[Ints, Ints]:
    """Of a flat batch of so many tokens a row: the tokens that rows draw after, and those of their drafts."""
    last = counts.cumsum() - 1
    drawing = (last - extra)[emits == 1]
    of_drafts = [np.arange(end - count + 1, end + 1) for end, count in zip(last, extra, strict=True)]
    return drawing, np.concatenate(of_drafts) if of_drafts else NO_INTS
