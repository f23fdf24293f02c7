"""What requests are told of their tokens: log-probabilities as the model gives them, before anything shapes a
draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.facts import Ints
from antiphon.core.logprobs import PAIR
from antiphon.core.plans import Join
from antiphon.engine.rows import FlatStep
from antiphon.nn.uploads import upload

TOKENS_AT_ONCE = 64
"""Of a prompt, whose scores over the whole vocabulary are held at once."""
MOST_KEPT_BYTES = 64 << 20
"""Told of prompts whose requests have no row, or have drawn; the oldest are forgotten."""

Pairs = NDArray[np.void]


class PromptLog:
    """A prompt, and what is told of each of its tokens: [n, 1 + number of others]."""

    def __init__(self, ids: Ints, num_top: int) -> None:
        self.ids = ids
        self.num_top = num_top
        self.pairs: Pairs = np.zeros((len(ids), 1 + num_top), PAIR)
        self.pairs["token"][:, 0] = ids
        self.pairs["logprob"] = np.nan


@dataclass(frozen=True, slots=True)
class StepLog:
    """What a step tells, on its way to the host: of the rows at `places` among those that drew.

    prompts  by place, of those that drew their first token
    """

    num_rows: int
    places: list[int]
    num_tops: list[int]
    tokens: Tensor
    values: Tensor
    prompts: dict[int, PromptLog]

    def landed(self) -> tuple[bytes, ...]:
        """Of each row that drew. The device must be done with the step."""
        told = [b""] * self.num_rows
        pairs = _pairs(self.tokens, self.values)
        for at, (place, num_top) in enumerate(zip(self.places, self.num_tops, strict=True)):
            before = self.prompts.get(place)
            told[place] = (b"" if before is None else before.pairs.tobytes()) + pairs[
                at, : 1 + num_top
            ].tobytes()
        return tuple(told)


class Logprobs:
    """Of the rows of a decoder, those whose requests want to be told."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._num_top: dict[int, int] = {}
        """By row."""
        self._reading: dict[int, tuple[int, PromptLog]] = {}
        """By row, until its first token is drawn: its request, and its prompt."""
        self._kept: dict[int, PromptLog] = {}
        """By request. One that is preempted goes on with what it was told, and tells it again if its first
        token was lost with its row."""
        self._kept_bytes = 0
        self._pieces: list[tuple[PromptLog, int, int]] = []

    def join(self, join: Join) -> None:
        """A request takes a row."""
        self.forget([join.row])
        num_top = join.sampling.logprobs
        if num_top is None:
            return
        self._num_top[join.row] = num_top
        if join.sampling.prompt_logprobs and not len(join.generated):
            known = self._kept.pop(join.request, None)
            if known is None:
                known = PromptLog(join.prompt.token_ids, num_top)
            else:
                self._kept_bytes -= known.pairs.nbytes
            self._reading[join.row] = join.request, known

    def forget(self, rows: Iterable[int]) -> None:
        """These rows are given up."""
        for row in rows:
            self._num_top.pop(row, None)
            if row in self._reading:
                self._keep(*self._reading.pop(row))

    def _keep(self, request: int, prompt: PromptLog) -> None:
        self._kept[request] = prompt
        self._kept_bytes += prompt.pairs.nbytes
        while self._kept_bytes > MOST_KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.pop(next(iter(self._kept))).pairs.nbytes

    def prompt_tokens(self, flat: FlatStep) -> Ints:
        """Tokens of the flat batch whose next one is a prompt's and is to be told, int64 [m]."""
        self._pieces = []
        found: list[Ints] = []
        for piece in flat.pieces if self._reading else ():
            _, prompt = self._reading.get(piece.row, (0, None))
            count = 0 if prompt is None else min(piece.count, len(prompt.ids) - 1 - piece.start)
            if prompt is not None and count > 0:
                self._pieces.append((prompt, piece.start, count))
                found.append(np.arange(piece.first, piece.first + count))
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def read(self, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Hidden states of the `prompt_tokens` of this step."""
        at = 0
        for prompt, start, count in self._pieces:
            for first in range(0, count, TOKENS_AT_ONCE):
                num = min(TOKENS_AT_ONCE, count - first)
                scores = logits(hidden[at : at + num]).log_softmax(-1)
                told = slice(start + first + 1, start + first + 1 + num)
                tokens, values = _told(scores, upload(prompt.ids[told], self._device), prompt.num_top)
                prompt.pairs[told] = _pairs(tokens.cpu(), values.cpu())
                at += num

    def scores(self, logits: Tensor, rows: Ints) -> tuple[list[int], Tensor] | None:
        """Before a draw: which of these rows are told, and their log-probabilities."""
        if not self._num_top:
            return None
        places = [at for at, row in enumerate(rows.tolist()) if row in self._num_top]
        return (places, logits[places].log_softmax(-1)) if places else None

    def drawn(self, scores: tuple[list[int], Tensor], rows: Ints, ids: Tensor) -> StepLog:
        """After the draw: ids int64 [len(rows)]."""
        places, values = scores
        told = [int(rows[place]) for place in places]
        num_tops = [self._num_top[row] for row in told]
        tokens, values = _told(values, ids[places], max(num_tops))
        prompts: dict[int, PromptLog] = {}
        for place, row in zip(places, told, strict=True):
            if row in self._reading:
                request, prompts[place] = self._reading.pop(row)
                self._keep(request, prompts[place])
        tokens, values = (part.to("cpu", non_blocking=True) for part in (tokens, values))
        return StepLog(len(rows), places, num_tops, tokens, values, prompts)


def _told(scores: Tensor, ids: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """scores [n, vocab] and the ids int64 [n] that came -> tokens and values [n, 1 + num_top]."""
    own = ids[:, None]
    values, tokens = scores.topk(num_top, -1)
    return torch.cat((own, tokens), 1), torch.cat((scores.gather(-1, own), values), 1)


def _pairs(tokens: Tensor, values: Tensor) -> Pairs:
    pairs: Pairs = np.empty(tuple(tokens.shape), PAIR)
    pairs["token"], pairs["logprob"] = tokens.numpy(), values.numpy()
    return pairs
