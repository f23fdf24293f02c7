"""Step runner of a thinker: prompt ids and media features in, text tokens out.

Hidden states of one layer are kept beside the KV, in a group of their own, for the talker's prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.config import ArConfig
from antiphon.core.facts import Ints, StagePrompt
from antiphon.core.plans import ArStep, Join
from antiphon.engine.features import FeatureStore
from antiphon.engine.rows import BlockTables
from antiphon.engine.sampler import Sampler
from antiphon.models.qwen3_omni.positions import Span, mrope_positions
from antiphon.models.qwen3_omni.thinker import Thinker

STAGE = 0


@dataclass(slots=True)
class _Prompt:
    """A row's prompt while it runs: positions fp32 [3, n]."""

    prompt: StagePrompt
    positions: NDArray[np.float32]


@dataclass(slots=True)
class _Media:
    """Media tokens of a step: `rows` of the flat batch take embeddings, `visual` rows deepstack as well."""

    embeddings: list[Tensor]
    rows: list[Tensor]
    visual: list[Tensor]
    deepstack: list[tuple[Tensor, ...]]


class ThinkerRunner:
    """Row state on the device: last token, position offset; pages of the groups "kv" and "hidden"."""

    def __init__(self, model: Thinker, config: ArConfig, features: FeatureStore) -> None:
        self._model = model
        self._features = features
        self._device = model.head.device
        self._pages = model.decoder.new_pages(config.num_blocks, config.block_size)
        self._tables = BlockTables(("kv", "hidden"), config.max_rows, config.num_blocks, config.block_size)
        width = model.decoder.config.hidden_size if model.capture_layer is not None else 0
        self._hidden = model.head.new_zeros(config.num_blocks * config.block_size, width)
        self._sampler = Sampler(config.max_rows, model.head.shape[0], STAGE, None, self._device)
        self._last = torch.zeros(config.max_rows, dtype=torch.int64, device=self._device)
        self._offset = np.zeros(config.max_rows, np.float32)
        self._prompts: dict[int, _Prompt] = {}

    def join(self, join: Join) -> None:
        prompt = join.prompt
        spans = [Span(span.start, span.grid) for span in prompt.spans if span.grid is not None]
        positions, following = mrope_positions(len(prompt.token_ids), spans)
        self._prompts[join.row] = _Prompt(prompt, positions)
        self._offset[join.row] = following - len(prompt.token_ids)
        self._sampler.join(join.row, join.sampling, torch.from_numpy(prompt.token_ids))

    def leave(self, row: int) -> None:
        self._prompts.pop(row, None)

    def run(self, step: ArStep) -> Tensor:
        """Tokens int64 [emitting rows, 1]."""
        self._tables.apply(step)
        batch = self._tables.batch("kv", step, self._device)
        x, positions, media = self._inputs(step)
        hidden, captured = self._model.forward(
            x,
            positions,
            batch,
            self._pages,
            capture=bool(media.rows),
            deepstack=_stacked(media.deepstack),
            visual=torch.cat(media.visual) if media.visual else None,
        )
        if captured is not None:
            slots = self._tables.batch("hidden", step, self._device).slots
            self._hidden.index_copy_(0, slots, captured)
        emits = torch.from_numpy(np.flatnonzero(step.emits)).to(self._device)
        rows = step.rows[step.emits == 1]
        if not len(rows):
            return self._last[:0, None]
        ids = self._sampler.draw(self._model.logits(hidden[batch.last_tokens[emits]]), rows.tolist())
        self._last[torch.from_numpy(rows).to(self._device)] = ids
        return ids[:, None]

    def payload(self, row: int, positions: Ints) -> Tensor:
        """Hidden states [m, H] of a row's prompt positions."""
        slots = self._tables.slots("hidden", row, positions)
        return self._hidden[torch.from_numpy(slots).to(self._device)]

    def _inputs(self, step: ArStep) -> tuple[Tensor, Tensor, _Media]:
        """Flat embeddings [n, H], positions [3, n], and the media rows among them."""
        ids, positions, media = [], [], _Media([], [], [], [])
        first = 0
        for row, start, count in zip(
            step.rows.tolist(), step.starts.tolist(), step.counts.tolist(), strict=True
        ):
            state = self._prompts[row]
            if start < len(state.prompt.token_ids):
                ids.append(torch.from_numpy(state.prompt.token_ids[start : start + count]).to(self._device))
                positions.append(state.positions[:, start : start + count])
                self._media(state.prompt, start, count, first, media)
            else:
                ids.append(self._last[row : row + 1])
                positions.append(np.full((3, 1), start + self._offset[row], np.float32))
            first += count
        x = self._model.embed(torch.cat(ids))
        if media.rows:
            x = x.index_copy(0, torch.cat(media.rows), torch.cat(media.embeddings).to(x.dtype))
        return x, torch.from_numpy(np.concatenate(positions, 1)).to(self._device), media

    def _media(self, prompt: StagePrompt, start: int, count: int, first: int, media: _Media) -> None:
        """The parts of media spans that lie in [start, start + count), which begins at flat token `first`."""
        for span in prompt.spans:
            low, high = max(span.start, start), min(span.start + span.length, start + count)
            if low >= high:
                continue
            features = self._features.get(span.key)
            part = slice(low - span.start, high - span.start)
            rows = torch.arange(low - start + first, high - start + first, device=self._device)
            media.rows.append(rows)
            media.embeddings.append(features.embeddings[part])
            if features.deepstack:
                media.visual.append(rows)
                media.deepstack.append(tuple(layer[part] for layer in features.deepstack))


def _stacked(parts: list[tuple[Tensor, ...]]) -> list[Tensor] | None:
    """Deepstack rows of all parts, layer by layer."""
    return [torch.cat(layer) for layer in zip(*parts, strict=True)] if parts else None
