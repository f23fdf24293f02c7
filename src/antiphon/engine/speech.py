"""Step runner of a decoder that speaks: text tokens in beside its own frames, codec frames out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from antiphon.core.config import ArConfig
from antiphon.core.facts import Ints
from antiphon.core.plans import ArStep, Join
from antiphon.core.sampling import Sampling
from antiphon.engine.family import SpeechModel
from antiphon.engine.kv_pool import KvPool
from antiphon.engine.rows import BlockTables, FlatStep, PromptRows, drawing_tokens
from antiphon.engine.sampler import PredictorSampler, Sampler
from antiphon.nn.step import StepInputs
from antiphon.nn.uploads import upload

STAGE = 1
PREDICTOR_STAGE = 2


class SpeechRunner:
    """A step runs the backbone, draws codebook 0 and completes the frame: frames leave once they are known.

    Implements `engine.ar.ArRunner`. Row state: the last frame, the upstream text received, the prompt.
    """

    logprobs: None = None

    @property
    def refused(self) -> dict[int, str]:
        return self._sampler.refused

    def __init__(self, model: SpeechModel, config: ArConfig) -> None:
        self._model = model
        self._device = model.device
        self.pool = KvPool(model.new_pages(config.num_blocks, config.block_size), config)
        self._tables = BlockTables(self.pool.groups, config.max_rows, config.num_blocks, config.block_size)
        self._sampler = Sampler(config.max_rows, model.vocab_size, STAGE, model.suppressed, self._device)
        shape = config.max_rows, model.num_codebooks
        self._frames = torch.zeros(shape, dtype=torch.int64, device=self._device)
        self._rows = PromptRows(config.max_rows)
        self._text: list[list[int]] = [[] for _ in range(config.max_rows)]
        self._prompts: dict[int, Tensor] = {}
        self._payloads: dict[int, list[Tensor]] = {}
        self._requests: dict[int, int] = {}

    def receive(self, request: int, hidden: Tensor) -> None:
        """First the thinker's hidden states [m, H] that this request's prompt shows; over an edge that
        streams, then one [1, H] for each further token of the text, in order.

        Kept until it is dropped, on this stage's device: a request that was preempted joins, and may need it,
        again.
        """
        self._payloads.setdefault(request, []).append(hidden.to(self._device))

    def drop(self, request: int) -> None:
        """The request is over."""
        self._payloads.pop(request, None)

    def apply(self, step: ArStep) -> None:
        for row in (*step.leaves.tolist(), *(join.row for join in step.joins)):
            self._forget([row])
            self._text[row] = []
        for row, token in zip(step.inputs_rows.tolist(), step.inputs_tokens.tolist(), strict=True):
            self._text[row].append(token)
        self._tables.apply(step)
        for delta in step.blocks:
            self.pool.reach(delta.blocks)

    def join(self, join: Join) -> None:
        assert join.first_input is not None, "a row that speaks starts on the reply's first token"
        hidden = next(iter(self._payloads.get(join.request, [])), None)
        x = self._model.prompt_inputs(join.prompt, hidden, join.first_input, join.voice)
        self._requests[join.row] = join.request
        drawn = len(join.generated)
        if drawn:
            frames = self._to_device(join.generated)
            x = torch.cat([x, self._shown(frames, [(join.row, step) for step in range(drawn)])])
        self._prompts[join.row] = x
        self._rows.join(join.row, self._model.positions(join.prompt), drawn)
        seen = torch.cat([self._model.prompt_codes.cpu(), torch.from_numpy(join.generated[:, 0])])
        self._sampler.join(join.row, join.sampling, seen, drawn, join.residual)

    def run(self, step: ArStep) -> Tensor:
        """Frames int64 [emitting rows, codebooks]. A frame whose code 0 is the end of speech is none."""
        assert not len(step.leaves_at[0]) + len(step.enters_at[0]), "rows that speak are not parked"
        batches = self._tables.batches(
            self.pool.layer_groups, (step.rows, step.starts, step.counts), self._device
        )
        kv = self.pool.kv(lambda _, group: batches[group], step.tickets)
        flat = self._rows.flatten(step)
        positions = upload(self._rows.positions(flat), self._device)
        wanted, drawing = drawing_tokens(flat, step, self._device)
        hidden, _ = self._model.forward(StepInputs(self._inputs(flat), positions, kv, wanted))
        self._forget(self._rows.finished(flat))
        return self._draw(hidden, drawing)

    def rehearse(self, num_rows: int) -> None:
        """Run a decode step of so many rows of no request; it writes to the first block only. Frames
        are drawn in both ways: the likeliest, and by chance.
        """
        batches = self._tables.batch_of_no_request(self.pool.layer_groups, num_rows, self._device)
        rows, positions = np.zeros(num_rows, np.int64), torch.zeros(3, num_rows, device=self._device)
        on_device = self._to_device(rows)
        x = self._model.step_inputs(self._frames[on_device], on_device + self._model.pad_id)
        kv = self.pool.kv(lambda _, group: batches[group])
        hidden, _ = self._model.forward(StepInputs(x, positions, kv))
        self._model.logits(hidden)
        for temperature in (1.0, 0.0):
            self._sampler.join(0, Sampling(temperature=temperature))
            self._model.frame(hidden, on_device, PredictorSampler(self._sampler, rows, PREDICTOR_STAGE))

    def _draw(self, hidden: Tensor, rows: Ints) -> Tensor:
        """Final-norm hidden [r, Ht] of emitting rows -> frames int64 [r, codebooks]."""
        if not len(rows):
            return self._frames[:0]
        pick = PredictorSampler(self._sampler, rows, PREDICTOR_STAGE)
        c0 = self._sampler.draw(self._model.logits(hidden), rows)
        frames = self._model.frame(hidden, c0, pick)
        self._frames[self._to_device(rows)] = frames
        return frames

    def _inputs(self, flat: FlatStep) -> Tensor:
        """Flat inputs [n, Ht]: prompt slices where rows prefill, else the last frame with its text."""
        ahead = self._step_inputs(flat) if len(flat.decoding) else None
        if not flat.pieces:
            assert ahead is not None, "a step has rows"
            return ahead
        x = self._prompts[flat.pieces[0].row].new_empty(flat.size, self._model.hidden_size)
        if ahead is not None:
            x[self._to_device(flat.decoding_at)] = ahead
        for piece in flat.pieces:
            x[piece.flat] = self._prompts[piece.row][piece.prompt]
        return x

    def _step_inputs(self, flat: FlatStep) -> Tensor:
        """The k-th step of a row shows its k-th text token, or padding once the text is over."""
        steps = (flat.starts - self._rows.lengths[flat.decoding]).tolist()
        frames = self._frames[self._to_device(flat.decoding)]
        return self._shown(frames, list(zip(flat.decoding.tolist(), steps, strict=True)))

    def _shown(self, frames: Tensor, places: list[tuple[int, int]]) -> Tensor:
        """Inputs [r, Ht] of frames [r, codebooks], each beside the text of its place (row, step)."""
        text = upload([self._text_at(row, step) for row, step in places], self._device)
        size = self._model.streamed_size
        if not size:
            return self._model.step_inputs(frames, text)
        over = torch.zeros(1, size, dtype=self._model.dtype, device=self._device)
        states = [self._state_at(row, step) for row, step in places]
        return self._model.step_inputs(frames, text, torch.cat([over if s is None else s for s in states]))

    def _state_at(self, row: int, step: int) -> Tensor | None:
        """[1, H]; None once the text is over. What came first are the prompt's, and the first token's."""
        states = self._payloads.get(self._requests[row], [])
        return states[step + 1] if step + 1 < len(states) else None

    def _text_at(self, row: int, step: int) -> int:
        text = self._text[row]
        return text[step] if step < len(text) else self._model.pad_id

    def _forget(self, rows: list[int]) -> None:
        """The prompt's inputs are large: kept only while they run."""
        self._rows.forget(rows)
        for row in rows:
            self._prompts.pop(row, None)

    def _to_device(self, column: Ints) -> Tensor:
        return upload(column, self._device)
