"""A codec frame as one captured graph: all passes of the code predictor, with the draws between them.

How a row draws is data here, a column each, and every row of a graph is drawn in the one way that serves all:
what a parameter leaves out is cut nowhere, and one that takes the likeliest drops what was drawn. So a row's
codes are those it has without graphs, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from antiphon.core.facts import Ints
from antiphon.core.sampling import Sampling
from antiphon.engine.family import SpeechModel
from antiphon.engine.sampler import Cuts, PredictorSampler
from antiphon.engine.speech import PREDICTOR_STAGE
from antiphon.nn.graphs import Bucketed, Capture, Outputs
from antiphon.nn.noise import counter_keys, gumbel
from antiphon.nn.uploads import upload


class FrameGraphs:
    """A model that speaks, its frames captured per bucket of rows; all else is the model's own.

    Implements `engine.family.SpeechModel`.
    """

    def __init__(self, model: SpeechModel, capture: Capture) -> None:
        self._model = model
        self._greedy = Bucketed(self._likeliest, capture)
        self._sampled = Bucketed(self._drawn, capture)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def frame(self, hidden: Tensor, c0: Tensor, pick: PredictorSampler) -> Tensor:
        """hidden [r, H] and code 0 int64 [r] -> frames int64 [r, num_codebooks]."""
        if all(param.temperature == 0 for param in pick.params):
            (frames,) = self._greedy(hidden, c0)
        else:
            (frames,) = self._sampled(hidden, c0, *columns(pick.params, pick.positions, hidden.device))
        return frames.clone()

    def _likeliest(self, hidden: Tensor, c0: Tensor) -> Outputs:
        return (self._model.frame(hidden, c0, lambda logits, codebook: logits.argmax(-1)),)

    def _drawn(self, hidden: Tensor, c0: Tensor, counts: Tensor, shares: Tensor) -> Outputs:
        return (self._model.frame(hidden, c0, ColumnDraw(counts, shares)),)


class ColumnDraw:
    """Draws by columns, as `engine.sampler.Draw` does by parameters; asks the host for nothing."""

    def __init__(self, counts: Tensor, shares: Tensor) -> None:
        self._seeds, self._positions, top_k, samples = counts.unbind(1)
        self._samples = samples.bool()
        self._cuts = ColumnCuts(shares[:, :1], top_k[:, None], shares[:, 1:])

    def __call__(self, logits: Tensor, codebook: int) -> Tensor:
        """logits fp32 [r, vocab] -> ids int64 [r]."""
        keys = counter_keys(self._seeds, PREDICTOR_STAGE, self._positions, codebook)
        drawn = (self._cuts(logits).double() + gumbel(keys, logits.shape[-1])).argmax(-1)
        return torch.where(self._samples, drawn, logits.argmax(-1))


class ColumnCuts(Cuts):
    """Cuts whose parameters are on the device already, [r, 1] each."""

    def __init__(self, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> None:
        self._temperature, self._top_k, self._top_p = temperature, top_k, top_p


def columns(params: Sequence[Sampling], positions: Ints, device: torch.device) -> tuple[Tensor, Tensor]:
    """int64 [r, 4] (seed, draws before, top k, whether it samples) and fp32 [r, 2] (temperature, top p)."""
    counts = [
        (param.seed, position, param.top_k, int(param.temperature > 0))
        for param, position in zip(params, positions.tolist(), strict=True)
    ]
    shares = [(param.temperature or 1.0, param.top_p) for param in params]
    return upload(counts, device), upload(shares, device)
