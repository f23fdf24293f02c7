"""Draws tokens: repetition penalty, suppression, temperature, top-k, top-p, in transformers' order.

One row of state per row of the row table. What a row draws depends on its own logits, parameters, seed and
count of draws, never on its neighbours.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from antiphon.core.sampling import Sampling
from antiphon.engine.noise import counter_keys, gumbel

PREDICTOR_TOP_K = 50
PREDICTOR_TOP_P = 0.8
"""transformers' code predictor samples with these, at temperature 1, whenever the talker samples."""


class Sampler:
    """Sampling state of one head over `max_rows` rows. `stage` keeps the noise of heads apart."""

    def __init__(
        self, max_rows: int, vocab: int, stage: int, suppressed: Tensor | None, device: torch.device
    ):
        self._stage = stage
        self._device = device
        self._suppressed = suppressed
        self._seen = torch.zeros(max_rows, vocab, dtype=torch.bool, device=device)
        self._params: list[Sampling] = [Sampling()] * max_rows
        self._drawn = np.zeros(max_rows, np.int64)

    def join(self, row: int, sampling: Sampling, prompt_ids: Tensor | None = None) -> None:
        """Begin anew on a row. The penalty counts `prompt_ids` where the reference counts them."""
        self._params[row] = sampling
        self._drawn[row] = 0
        self._seen[row] = False
        if prompt_ids is not None and sampling.repetition_penalty != 1.0:
            self._seen[row, prompt_ids] = True

    def draw(self, logits: Tensor, rows: list[int]) -> Tensor:
        """logits fp32 [n, vocab] of `rows` -> ids int64 [n]."""
        params = self.params(rows)
        logits = self._penalise(logits, rows, params)
        if self._suppressed is not None:
            logits = logits.masked_fill(self._suppressed, -torch.inf)
        ids = choose(logits, params, self._stage, self.positions(rows), 0)
        self._drawn[rows] += 1
        if any(param.repetition_penalty != 1.0 for param in params):
            self._seen[rows, ids] = True
        return ids

    def params(self, rows: list[int]) -> list[Sampling]:
        return [self._params[row] for row in rows]

    def positions(self, rows: list[int]) -> Tensor:
        """int64 [n]: how often each row has drawn."""
        return torch.from_numpy(self._drawn[rows]).to(self._device)

    def _penalise(self, logits: Tensor, rows: list[int], params: list[Sampling]) -> Tensor:
        if all(param.repetition_penalty == 1.0 for param in params):
            return logits
        penalty = torch.tensor([[param.repetition_penalty] for param in params], device=logits.device)
        scaled = torch.where(logits < 0, logits * penalty, logits / penalty)
        return torch.where(self._seen[rows], scaled, logits)


class PredictorSampler:
    """Draws a frame's residual codes: greedy or not as the talker's rows, with the predictor's own cuts."""

    def __init__(self, talker: Sampler, rows: list[int], stage: int) -> None:
        self._params = [predictor_sampling(param) for param in talker.params(rows)]
        self._greedy = all(param.temperature == 0 for param in self._params)
        self._positions = talker.positions(rows)
        self._stage = stage

    def __call__(self, logits: Tensor, codebook: int) -> Tensor:
        """logits fp32 [r, vocab] -> ids int64 [r]."""
        if self._greedy:
            return logits.argmax(-1)
        return choose(logits, self._params, self._stage, self._positions, codebook)


def predictor_sampling(talker: Sampling) -> Sampling:
    """What the code predictor samples with beside a talker that samples so."""
    if talker.temperature == 0:
        return Sampling(seed=talker.seed)
    return Sampling(temperature=1.0, top_k=PREDICTOR_TOP_K, top_p=PREDICTOR_TOP_P, seed=talker.seed)


def choose(logits: Tensor, params: list[Sampling], stage: int, positions: Tensor, codebook: int) -> Tensor:
    """logits fp32 [n, vocab] -> ids int64 [n]; `positions` int64 [n] count each row's draws."""
    greedy = logits.argmax(-1)
    hot = [i for i, param in enumerate(params) if param.temperature > 0]
    if not hot:
        return greedy
    chosen = [params[i] for i in hot]
    kept = restrict(logits[hot], chosen)
    seeds = torch.tensor([param.seed for param in chosen], dtype=torch.int64, device=logits.device)
    keys = counter_keys(seeds, stage, positions[hot], codebook)
    greedy[hot] = (kept.double() + gumbel(keys, logits.shape[-1])).argmax(-1)
    return greedy


def restrict(logits: Tensor, params: list[Sampling]) -> Tensor:
    """Temperature, then top-k, then top-p, as transformers' warpers do; what is cut becomes -inf."""
    device = logits.device
    logits = logits / torch.tensor([[param.temperature] for param in params], device=device)
    vocab = logits.shape[-1]
    top_k = torch.tensor([[min(param.top_k or vocab, vocab)] for param in params], device=device)
    top_p = torch.tensor([[param.top_p] for param in params], device=device)
    if bool((top_k == vocab).all()) and bool((top_p == 1.0).all()):
        return logits
    ordered, order = logits.sort(-1, descending=True)
    kth = ordered.gather(-1, top_k - 1)
    ordered = ordered.masked_fill(ordered < kth, -torch.inf)
    mass = ordered.softmax(-1)
    before = mass.cumsum(-1) - mass
    ordered = ordered.masked_fill(before >= top_p, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)
