"""Step runner of a talker: text tokens in beside its own frames, codec frames out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from antiphon.core.config import ArConfig
from antiphon.core.facts import StagePrompt
from antiphon.core.plans import ArStep, Join
from antiphon.engine.rows import BlockTables
from antiphon.engine.sampler import PredictorSampler, Sampler
from antiphon.models.qwen3_omni.positions import Span, mrope_positions
from antiphon.models.qwen3_omni.talker import Talker
from antiphon.models.qwen3_omni.talker_prompt import TalkerPrompt

STAGE = 1
PREDICTOR_STAGE = 2


class TalkerRunner:
    """A step runs the backbone, draws codebook 0 and completes the frame: frames leave once they are known.

    Row state: the last frame, the upstream text received, and the position offset.
    """

    def __init__(self, model: Talker, config: ArConfig, pad_id: int, default_voice: str) -> None:
        self._model = model
        self._device = model.head.device
        self._pad_id = pad_id
        self._default_voice = default_voice
        self._pages = model.decoder.new_pages(config.num_blocks, config.block_size)
        self._tables = BlockTables(("kv",), config.max_rows, config.num_blocks, config.block_size)
        vocab = model.config.talker_vocab
        self._sampler = Sampler(config.max_rows, vocab, STAGE, model.suppressed, self._device)
        self._frames = torch.zeros(
            config.max_rows, model.config.num_codebooks, dtype=torch.int64, device=self._device
        )
        self._offset = np.zeros(config.max_rows, np.float32)
        self._prompt_length = np.zeros(config.max_rows, np.int64)
        self._text: list[list[int]] = [[] for _ in range(config.max_rows)]
        self._prompts: dict[int, tuple[Tensor, Tensor]] = {}
        self._payloads: dict[int, Tensor] = {}

    def receive(self, request: int, hidden: Tensor) -> None:
        """The thinker's hidden states [m, H] at the media positions that this request's prompt shows."""
        self._payloads[request] = hidden

    def join(self, join: Join) -> None:
        prompt = join.prompt
        assert join.first_input is not None, "a talker starts on the reply's first token"
        speakers = self._model.config.speakers
        voice = (join.voice or "").lower()
        speaker = speakers[voice if voice in speakers else self._default_voice]
        hidden = self._payloads.pop(join.request, None)
        x = self._model.prompt_inputs(_talker_prompt(prompt), hidden, join.first_input, speaker)
        spans = [Span(span.start, span.grid) for span in prompt.spans if span.grid is not None]
        positions, following = mrope_positions(len(prompt.token_ids), spans)
        self._prompts[join.row] = (x, torch.from_numpy(positions).to(self._device))
        self._offset[join.row] = following - len(prompt.token_ids)
        self._prompt_length[join.row] = len(prompt.token_ids)
        self._text[join.row] = []
        self._sampler.join(join.row, join.sampling)

    def leave(self, row: int) -> None:
        self._prompts.pop(row, None)

    def run(self, step: ArStep) -> Tensor:
        """Frames int64 [emitting rows, codebooks]. A frame whose code 0 is the end of speech is none."""
        for row, token in zip(step.inputs_rows.tolist(), step.inputs_tokens.tolist(), strict=True):
            self._text[row].append(token)
        self._tables.apply(step)
        batch = self._tables.batch("kv", step, self._device)
        x, positions = self._inputs(step)
        hidden = self._model.forward(x, positions, batch, self._pages)
        emits = torch.from_numpy(np.flatnonzero(step.emits)).to(self._device)
        rows = step.rows[step.emits == 1].tolist()
        if not rows:
            return self._frames[:0]
        hidden = hidden[batch.last_tokens[emits]]
        c0 = self._sampler.draw(self._model.logits(hidden), rows)
        pick = PredictorSampler(self._sampler, rows, PREDICTOR_STAGE)
        frames = self._model.predictor.frame(hidden, c0, pick)
        self._frames[rows] = frames
        return frames

    def _inputs(self, step: ArStep) -> tuple[Tensor, Tensor]:
        """Flat inputs [n, Ht] and positions [3, n]: prompt slices where rows prefill, else one token."""
        decoding = step.starts >= self._prompt_length[step.rows]
        ahead = self._step_inputs(step.rows[decoding], step.starts[decoding]) if decoding.any() else None
        if decoding.all():
            assert ahead is not None
            return ahead
        xs, positions, taken = [], [], 0
        for row, start, count, decodes in zip(
            step.rows.tolist(), step.starts.tolist(), step.counts.tolist(), decoding.tolist(), strict=True
        ):
            if decodes:
                assert ahead is not None
                xs.append(ahead[0][taken : taken + 1])
                positions.append(ahead[1][:, taken : taken + 1])
                taken += 1
            else:
                x, where = self._prompts[row]
                xs.append(x[start : start + count])
                positions.append(where[:, start : start + count])
        return torch.cat(xs), torch.cat(positions, 1)

    def _step_inputs(self, rows: np.ndarray, starts: np.ndarray) -> tuple[Tensor, Tensor]:
        """The k-th step of a row shows its k-th text token, or padding once the text is over."""
        steps = starts - self._prompt_length[rows]
        text = [self._text_at(row, k) for row, k in zip(rows.tolist(), steps.tolist(), strict=True)]
        x = self._model.step_inputs(self._frames[rows], torch.tensor(text, device=self._device))
        positions = torch.from_numpy(starts.astype(np.float32) + self._offset[rows]).to(self._device)
        return x, positions.expand(3, -1)

    def _text_at(self, row: int, step: int) -> int:
        text = self._text[row]
        return text[step] if step < len(text) else self._pad_id


def _talker_prompt(prompt: StagePrompt) -> TalkerPrompt:
    """The prompt as the model takes it: media positions are those of the spans."""
    media = [np.arange(span.start, span.start + span.length) for span in prompt.spans]
    positions = np.concatenate(media) if media else np.zeros(0, np.int64)
    return TalkerPrompt(prompt.token_ids, positions, prompt.gather, ())
