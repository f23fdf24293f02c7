"""Draws tokens: repetition penalty, suppression, temperature, top-k, top-p, in transformers' order.

One row of state per row of the row table. What a row draws depends on its own logits, parameters, seed and
count of draws, never on its neighbours. Nothing here waits for the device: what is asked about parameters is
asked on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import Ints
from antiphon.core.sampling import Sampling
from antiphon.engine.noise import counter_keys, gumbel

PREDICTOR_TOP_K = 50
PREDICTOR_TOP_P = 0.8
"""transformers' code predictor samples with these, at temperature 1, whenever the talker samples."""


class Sampler:
    """Sampling state of one head over `max_rows` rows. `stage` keeps the noise of heads apart."""

    def __init__(
        self, max_rows: int, vocab: int, stage: int, suppressed: Tensor | None, device: torch.device
    ) -> None:
        self._stage = stage
        self.device = device
        self._suppressed = suppressed
        self._seen = torch.zeros(max_rows, vocab, dtype=torch.bool, device=device)
        self._params: list[Sampling] = [Sampling()] * max_rows
        self._residuals: list[Sampling] = [Sampling()] * max_rows
        self._drawn = np.zeros(max_rows, np.int64)

    def join(
        self,
        row: int,
        sampling: Sampling,
        seen: Tensor | None = None,
        drawn: int = 0,
        residual: Sampling | None = None,
    ) -> None:
        """Begin on a row whose request has drawn `drawn` times.

        seen      int64 [n], ids the penalty counts: those drawn, and the prompt's where the reference does so
        residual  how a token's further columns are drawn; None is what `predictor_sampling` says
        """
        self._params[row] = sampling
        self._residuals[row] = residual or predictor_sampling(sampling)
        self._drawn[row] = drawn
        self._seen[row] = False
        if seen is not None and sampling.repetition_penalty != 1.0:
            self._seen[row, seen.to(self.device)] = True

    def draw(self, logits: Tensor, rows: Ints) -> Tensor:
        """logits fp32 [n, vocab] of `rows` -> ids int64 [n]."""
        params = self.params(rows)
        where = torch.from_numpy(rows).to(self.device)
        penalises = any(param.repetition_penalty != 1.0 for param in params)
        if penalises:
            penalties = torch.tensor([[param.repetition_penalty] for param in params], device=self.device)
            logits = penalise(logits, self._seen[where], penalties)
        if self._suppressed is not None:
            logits = logits.masked_fill(self._suppressed, -torch.inf)
        logits = suppress(logits, params)
        ids = Draw(params, self.drawn(rows), self._stage, self.device)(logits)
        self._drawn[rows] += 1
        if penalises:
            self._seen[where, ids] = True
        return ids

    def params(self, rows: Ints) -> list[Sampling]:
        return [self._params[row] for row in rows.tolist()]

    def residuals(self, rows: Ints) -> list[Sampling]:
        return [self._residuals[row] for row in rows.tolist()]

    def drawn(self, rows: Ints) -> Ints:
        """How often each row has drawn."""
        return self._drawn[rows]


class PredictorSampler:
    """Draws a frame's residual codes, each row by its own parameters.

    Made before the talker draws the frame's first code.
    """

    def __init__(self, talker: Sampler, rows: Ints, stage: int) -> None:
        self.params, self.positions = talker.residuals(rows), talker.drawn(rows)
        self._draw = Draw(self.params, self.positions, stage, talker.device)

    def __call__(self, logits: Tensor, codebook: int) -> Tensor:
        """logits fp32 [r, vocab] -> ids int64 [r]."""
        return self._draw(logits, codebook)


def predictor_sampling(talker: Sampling) -> Sampling:
    """What the code predictor samples with beside a talker that samples so, unless a request says."""
    if talker.temperature == 0:
        return Sampling(seed=talker.seed)
    return Sampling(temperature=1.0, top_k=PREDICTOR_TOP_K, top_p=PREDICTOR_TOP_P, seed=talker.seed)


class Draw:
    """How each row of a step draws: parameters on the device, put there once for all codebooks of a frame.

    positions int64 [n]  how often each row has drawn before
    """

    def __init__(
        self, params: Sequence[Sampling], positions: Ints, stage: int, device: torch.device | str
    ) -> None:
        self._stage = stage
        hot = [i for i, param in enumerate(params) if param.temperature > 0]
        self._all_hot = len(hot) == len(params)
        self._cuts: Cuts | None = None
        if hot:
            chosen = [params[i] for i in hot]
            self._cuts = Cuts(chosen, device)
            self._hot = torch.tensor(hot, device=device)
            self._seeds = torch.tensor([param.seed for param in chosen], dtype=torch.int64, device=device)
            self._positions = torch.from_numpy(positions[hot]).to(device)

    def __call__(self, logits: Tensor, codebook: int = 0) -> Tensor:
        """logits fp32 [n, vocab] -> ids int64 [n]; rows of temperature 0 take the likeliest."""
        if self._cuts is None:
            return logits.argmax(-1)
        kept = self._cuts(logits if self._all_hot else logits[self._hot])
        keys = counter_keys(self._seeds, self._stage, self._positions, codebook)
        drawn = (kept.double() + gumbel(keys, logits.shape[-1])).argmax(-1)
        return drawn if self._all_hot else logits.argmax(-1).index_copy(0, self._hot, drawn)


class Cuts:
    """Temperature, then top-k, then top-p, as transformers' warpers do; what is cut becomes -inf."""

    def __init__(self, params: Sequence[Sampling], device: torch.device | str) -> None:
        def column(values: list[float] | list[int]) -> Tensor:
            return torch.tensor(values, device=device)[:, None]

        self._temperature = column([param.temperature for param in params])
        self._top_k = column([param.top_k for param in params]) if any(p.top_k for p in params) else None
        self._top_p = column([param.top_p for param in params]) if any(p.top_p < 1 for p in params) else None

    def __call__(self, logits: Tensor) -> Tensor:
        """fp32 [n, vocab] of rows that sample -> the same, scaled and cut."""
        logits = logits / self._temperature
        if self._top_k is None and self._top_p is None:
            return logits
        ordered, order = logits.sort(-1, descending=True)
        if self._top_k is not None:
            ordered = ordered.masked_fill(ordered < self._kth(ordered, self._top_k), -torch.inf)
        if self._top_p is not None:
            mass = ordered.softmax(-1)
            before = mass.cumsum(-1) - mass
            # with all of it kept, rounding must not cut the tail
            ordered = ordered.masked_fill((before >= self._top_p) & (self._top_p < 1), -torch.inf)
        return torch.empty_like(logits).scatter_(-1, order, ordered)

    def _kth(self, ordered: Tensor, top_k: Tensor) -> Tensor:
        """Each row's k-th largest, [n, 1]; 0 keeps all, equals of the k-th stay."""
        vocab = ordered.shape[-1]
        last = (top_k.clamp(max=vocab) - 1) % vocab
        return ordered.gather(-1, last)


def penalise(logits: Tensor, seen: Tensor, penalties: Tensor) -> Tensor:
    """Ids seen, bool [n, vocab], become less likely: fp32 [n, vocab] by penalties [n, 1]."""
    scaled = torch.where(logits < 0, logits * penalties, logits / penalties)
    return torch.where(seen, scaled, logits)


def suppress(logits: Tensor, params: Sequence[Sampling]) -> Tensor:
    """What each row's request never wants drawn becomes -inf: fp32 [n, vocab]."""
    pairs = [
        (row, token)
        for row, param in enumerate(params)
        for token in param.suppress
        if token < logits.shape[-1]
    ]
    if not pairs:
        return logits
    rows, tokens = torch.tensor(pairs, device=logits.device).T
    return logits.index_put((rows, tokens), logits.new_tensor(-torch.inf))
