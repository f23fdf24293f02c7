"""Draws tokens: repetition penalty, suppression, temperature, top-k, top-p, in transformers' order.

One row of state per row of the row table. What a row draws depends on its own logits, parameters, seed and
count of draws, never on its neighbours. What is asked about parameters is asked on the host: nothing here
waits for the device, but for what rows that follow a guide have drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import Ints
from antiphon.core.sampling import Sampling
from antiphon.engine.guides import Bools, Guides, GuideState
from antiphon.nn.cpu import compiled_draw
from antiphon.nn.noise import counter_keys, gumbel
from antiphon.nn.uploads import upload

if TYPE_CHECKING:
    from antiphon.nn.cpu import CompiledDraw

PREDICTOR_TOP_K = 50
PREDICTOR_TOP_P = 0.8
"""transformers' code predictor samples with these, at temperature 1, whenever the talker samples."""


@dataclass(frozen=True, slots=True)
class Drawers:
    """Rows that draw together, and all that does not change while they do.

    where      int64 [n], the rows on the device
    penalties  fp32 [n, 1]; None where no row has any
    unwanted   (places among them, ids), int64 [m] each: what their requests never want drawn, or None
    biases     (places among them, ids, what is added), [m] each, or None
    least      int64 [n], tokens that each draws before one that ends its reply may be; None where any may
    guided     places among them of those that follow a guide
    """

    rows: Ints
    params: list[Sampling]
    where: Tensor
    draw: Draw
    penalties: Tensor | None
    unwanted: tuple[Tensor, Tensor] | None
    biases: tuple[Tensor, Tensor, Tensor] | None
    least: Ints | None
    guided: tuple[int, ...]


class Sampler:
    """Sampling state of one head over `max_rows` rows. `stage` keeps the noise of heads apart."""

    def __init__(
        self,
        max_rows: int,
        vocab: int,
        stage: int,
        suppressed: Tensor | None,
        device: torch.device,
        stop_ids: tuple[int, ...] = (),
        guides: Guides | None = None,
    ) -> None:
        """stop_ids: those that end a reply, which `min_tokens` puts off. guides: None where a head has none,
        and a request that wants one is refused."""
        self._guides = guides
        self._guided: dict[int, GuideState] = {}
        self.refused: dict[int, str] = {}
        """Rows of the last draw that cannot go on in their guide, and why: what they drew means nothing."""
        self._stage = stage
        self._stops = np.array([one for one in stop_ids if one < vocab], np.int64)
        self._stop_ids = torch.from_numpy(self._stops).to(device)
        self.device = device
        self._vocab = vocab
        self._suppressed = suppressed
        self._never = torch.tensor(-torch.inf, device=device)
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}
        """By row, on the device: ids, and what is added to each."""
        self._seen = torch.zeros(max_rows, vocab, dtype=torch.bool, device=device)
        self._params: list[Sampling] = [Sampling()] * max_rows
        self._residuals: list[Sampling] = [Sampling()] * max_rows
        self._drawn = np.zeros(max_rows, np.int64)
        self._drawers: Drawers | None = None
        """Those of the last draw: mostly those of the next one too."""
        self._residual_draw: tuple[Ints, int, list[Sampling], Draw] | None = None
        Draw([Sampling(temperature=1.0)], stage, device)  # what is compiled for it is, before the first reply

    def join(
        self,
        row: int,
        sampling: Sampling,
        seen: Tensor | None = None,
        drawn: int = 0,
        residual: Sampling | None = None,
    ) -> None:
        """Begin on a row whose request has drawn `drawn` times.

        seen      int64 [n], ids the penalty counts: those drawn, last, and the prompt's where the reference
                  does so
        residual  how a token's further columns are drawn; None is what `predictor_sampling` says
        """
        self._params[row] = sampling
        self._residuals[row] = residual or predictor_sampling(sampling)
        self._drawn[row] = drawn
        self._drawers = self._residual_draw = None
        self._biases.pop(row, None)
        if any(token < self._vocab for token, _ in sampling.bias):
            self._biases[row] = biases(sampling, self._vocab, self.device)
        self._guided.pop(row, None)
        if sampling.guide is not None and self._guides is not None:
            own = [] if seen is None or not drawn else seen[-drawn:].tolist()
            self._guided[row] = self._guides.begin(sampling.guide, own)
        if sampling.repetition_penalty != 1.0:
            self._seen[row] = False
            if seen is not None:
                self._seen[row, seen.to(self.device)] = True

    def draw(self, logits: Tensor, rows: Ints) -> Tensor:
        """logits fp32 [n, vocab] of `rows`, which are used up -> ids int64 [n]."""
        drawers = self._drawers_of(rows)
        self.refused = {}
        allowed = self._allowed(drawers)
        if drawers.biases is not None:
            *where, values = drawers.biases
            logits = logits.index_put_(tuple(where), values.to(logits.dtype), accumulate=True)
        if drawers.penalties is not None:
            logits = penalise(logits, self._seen[drawers.where], drawers.penalties)
        if self._suppressed is not None:
            logits = logits.masked_fill_(self._suppressed, -torch.inf)
        if drawers.unwanted is not None:
            logits = logits.index_put_(drawers.unwanted, self._never)
        if drawers.least is not None:
            early = (self._drawn[rows] < drawers.least).nonzero()[0]
            early = early[[place not in allowed or self._goes_on(allowed[place]) for place in early.tolist()]]
            if len(early):
                logits = logits.index_put_((upload(early, self.device)[:, None], self._stop_ids), self._never)
        for place, mask in allowed.items():
            logits[place].masked_fill_(upload(~mask, self.device), -torch.inf)
        ids = drawers.draw.at(self._drawn[rows])(logits)
        self._drawn[rows] += 1
        if allowed:
            places = list(allowed)
            for place, token in zip(places, ids[places].tolist(), strict=True):
                self._guided[int(rows[place])].take(token)
        if drawers.penalties is not None:
            self._seen[drawers.where, ids] = True
        return ids

    def _allowed(self, drawers: Drawers) -> dict[int, Bools]:
        """What those among the drawers may draw that follow a guide, by their places."""
        allowed: dict[int, Bools] = {}
        for place in drawers.guided:
            row = int(drawers.rows[place])
            state = self._guided.get(row)
            mask = None if state is None else state.allowed()
            if mask is None:
                self.refused[row] = "this stage follows no guides" if state is None else state.error
            else:
                allowed[place] = mask
        return allowed

    def _goes_on(self, mask: Bools) -> bool:
        """May the text go on? Where its guide ends it, it ends, however short it is."""
        return bool(mask.sum() > mask[self._stops].sum())

    def forget(self, rows: Iterable[int]) -> None:
        """They are given up."""
        for row in rows:
            self._guided.pop(row, None)

    def residual_draw(self, rows: Ints, stage: int) -> tuple[list[Sampling], Draw]:
        """How each row's residual codes are drawn."""
        known = self._residual_draw
        if known is None or known[1] != stage or not np.array_equal(known[0], rows):
            params = [self._residuals[row] for row in rows.tolist()]
            known = self._residual_draw = rows, stage, params, Draw(params, stage, self.device)
        return known[2], known[3]

    def drawn(self, rows: Ints) -> Ints:
        """How often each row has drawn."""
        return self._drawn[rows]

    def _drawers_of(self, rows: Ints) -> Drawers:
        known = self._drawers
        if known is None or not np.array_equal(known.rows, rows):
            known = self._drawers = self._found(rows)
        return known

    def _found(self, rows: Ints) -> Drawers:
        params = [self._params[row] for row in rows.tolist()]
        values = [[param.repetition_penalty] for param in params]
        return Drawers(
            rows,
            params,
            upload(rows, self.device),
            Draw(params, self._stage, self.device),
            upload(values, self.device) if values != [[1.0]] * len(values) else None,
            unwanted(params, self._vocab, self.device),
            self._biased(rows),
            _least(params) if len(self._stop_ids) else None,
            tuple(place for place, param in enumerate(params) if param.guide is not None),
        )

    def _biased(self, rows: Ints) -> tuple[Tensor, Tensor, Tensor] | None:
        """Of these rows what each added when its request joined; nothing is made anew but their places."""
        found = [(place, self._biases[row]) for place, row in enumerate(rows.tolist()) if row in self._biases]
        if not found:
            return None
        counts = upload([len(tokens) for _, (tokens, _) in found], self.device)
        places = upload([place for place, _ in found], self.device).repeat_interleave(
            counts, output_size=sum(len(tokens) for _, (tokens, _) in found)
        )
        return places, torch.cat([one[0] for _, one in found]), torch.cat([one[1] for _, one in found])


class PredictorSampler:
    """Draws a frame's residual codes, each row by its own parameters.

    Made before the talker draws the frame's first code.
    """

    def __init__(self, talker: Sampler, rows: Ints, stage: int) -> None:
        self.params, draw = talker.residual_draw(rows, stage)
        self.positions = talker.drawn(rows)
        self._draw = draw.at(self.positions)

    def __call__(self, logits: Tensor, codebook: int) -> Tensor:
        """logits fp32 [r, vocab] -> ids int64 [r]."""
        return self._draw(logits, codebook)


def predictor_sampling(talker: Sampling) -> Sampling:
    """What the code predictor samples with beside a talker that samples so, unless a request says."""
    if talker.temperature == 0:
        return Sampling(seed=talker.seed)
    return Sampling(temperature=1.0, top_k=PREDICTOR_TOP_K, top_p=PREDICTOR_TOP_P, seed=talker.seed)


class Draw:
    """How rows draw: parameters on the device, put there once for all that the same rows draw. On a CPU it is
    one compiled loop over the rows; operators do the same elsewhere."""

    def __init__(self, params: Sequence[Sampling], stage: int, device: torch.device | str) -> None:
        self._stage = stage
        self._device = torch.device(device)
        self._hot = np.array([i for i, param in enumerate(params) if param.temperature > 0], np.int64)
        self._cuts: Cuts | None = None
        self._compiled: CompiledDraw | None = None
        if not len(self._hot):
            return
        if self._device.type == "cpu":
            self._compiled = compiled_draw(
                np.array([param.temperature for param in params], np.float32),
                np.array([param.top_k for param in params], np.int64),
                np.array([param.top_p for param in params], np.float32),
                np.array([param.seed for param in params], np.int64),
                stage,
            )
        if self._compiled is None:
            chosen = [params[i] for i in self._hot]
            self._cuts = Cuts(chosen, device)
            self._seeds = upload(np.array([param.seed for param in chosen], np.int64), device)
            self._places = None if len(chosen) == len(params) else upload(self._hot, device)

    def at(self, positions: Ints) -> Callable[..., Tensor]:
        """The draw of rows that have drawn `positions` int64 [n] times before: logits fp32 [n, vocab] (and a
        codebook, 0 if not given) -> ids int64 [n]. Rows of temperature 0 take the likeliest.
        """
        if self._compiled is not None:
            return partial(self._compiled, positions)
        if self._cuts is None:
            return _likeliest
        return partial(self._drawn, upload(positions[self._hot], self._device))

    def _drawn(self, positions: Tensor, logits: Tensor, codebook: int = 0) -> Tensor:
        assert self._cuts is not None
        places = self._places
        kept = self._cuts(logits if places is None else logits[places])
        keys = counter_keys(self._seeds, self._stage, positions, codebook)
        drawn = (kept.double() + gumbel(keys, logits.shape[-1])).argmax(-1)
        return drawn if places is None else logits.argmax(-1).index_copy(0, places, drawn)


def _likeliest(logits: Tensor, codebook: int = 0) -> Tensor:
    return logits.argmax(-1)


class Cuts:
    """Temperature, then top-k, then top-p, as transformers' warpers do; what is cut becomes -inf."""

    def __init__(self, params: Sequence[Sampling], device: torch.device | str) -> None:
        def column(values: list[float] | list[int]) -> Tensor:
            return upload(values, device)[:, None]

        self._temperature = column([param.temperature for param in params])
        self._top_k = column([param.top_k for param in params]) if any(p.top_k for p in params) else None
        self._top_p = column([param.top_p for param in params]) if any(p.top_p < 1 for p in params) else None

    def __call__(self, logits: Tensor) -> Tensor:
        """fp32 [n, vocab] of rows that sample -> the same, scaled and cut."""
        logits = logits / self._temperature
        if self._top_k is None and self._top_p is None:
            return logits
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
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


def biases(param: Sampling, vocab: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids that a request makes likelier or less likely, and what is added to each, [m]."""
    tokens, values = zip(*(pair for pair in param.bias if pair[0] < vocab), strict=True)
    return upload(list(tokens), device), upload(list(values), device)


def _least(params: Sequence[Sampling]) -> Ints | None:
    least = np.array([param.min_tokens for param in params], np.int64)
    return least if least.any() else None


def unwanted(
    params: Sequence[Sampling], vocab: int, device: torch.device | str
) -> tuple[Tensor, Tensor] | None:
    """What each row's request never wants drawn: (places, ids), int64 [m] each; None for nothing."""
    pairs = [(row, token) for row, param in enumerate(params) for token in param.suppress if token < vocab]
    if not pairs:
        return None
    rows, tokens = upload(pairs, device).T
    return rows, tokens
