"""Step runner of a decoder that writes text: prompt ids and media features in, text tokens out.

Hidden states of one layer are kept beside the KV, in a group of their own, for the stage that speaks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from antiphon.core.config import ArConfig
from antiphon.core.facts import Ints, Span
from antiphon.core.plans import ArStep, Join
from antiphon.engine.cross import CrossPages
from antiphon.engine.drafts import Drafts, wanted_tokens
from antiphon.engine.family import TextModel
from antiphon.engine.features import Features, FeatureStore
from antiphon.engine.guides import Guides
from antiphon.engine.kv_pool import KvPool
from antiphon.engine.logprobs import Logprobs, StepLog
from antiphon.engine.piggyback import Piggyback
from antiphon.engine.rows import BlockTables, FlatStep, Piece, PromptRows, drawing_tokens
from antiphon.engine.sampler import Sampler
from antiphon.nn.fresh import fresh
from antiphon.nn.step import StepInputs
from antiphon.nn.uploads import upload

STAGE = 0


@dataclass(slots=True)
class _Media:
    """Media tokens of a step: `rows` of the flat batch take embeddings, `visual` rows deepstack as well."""

    embeddings: list[Tensor] = field(default_factory=list[Tensor])
    rows: list[Tensor] = field(default_factory=list[Tensor])
    visual: list[Tensor] = field(default_factory=list[Tensor])
    deepstack: list[tuple[Tensor, ...]] = field(default_factory=list[tuple[Tensor, ...]])


class TextRunner:
    """Implements `engine.ar.ArRunner`. Row state: last token; ids and media to compute, while they are;
    pages of the layers and of "hidden", and of what an encoder made where each layer attends to that."""

    def __init__(
        self,
        model: TextModel,
        config: ArConfig,
        features: FeatureStore,
        cross: CrossPages | None = None,
        guides: Guides | None = None,
    ) -> None:
        """cross: of a decoder whose medium does not stand in its prompt, but beside it. guides: of one that
        may be guided."""
        self._model = model
        self._cross = cross
        self._features = features
        self._device = model.device
        shape = config.num_blocks, config.block_size, model.payload_size
        hidden = fresh(shape, model.dtype, self._device)
        self._hidden = hidden.flatten(0, 1)
        pages = model.new_pages(config.num_blocks, config.block_size)
        self.pool = KvPool(pages, config, {"hidden": hidden})
        self._tables = BlockTables(self.pool.groups, config.max_rows, config.num_blocks, config.block_size)
        self._piggyback = Piggyback(self.pool, self._tables, self._device)
        self._sampler = Sampler(
            config.max_rows, model.vocab_size, STAGE, None, self._device, tuple(config.stop_ids), guides
        )
        self._told = Logprobs(self._device)
        self.logprobs: StepLog | None = None
        self.refused: dict[int, str] = {}
        self._last = torch.zeros(config.max_rows, dtype=torch.int64, device=self._device)
        self._rows = PromptRows(config.max_rows)
        self._drafts = Drafts(
            config.block_size, config.max_context_tokens or config.num_blocks * config.block_size
        )
        self._ids: dict[int, Ints] = {}
        self._spans: dict[int, tuple[Span, ...]] = {}
        self._received: dict[int, Features] = {}

    def receive_media(self, key: int, features: Features) -> None:
        """What an encoder of another process has made."""
        self._received[key] = features

    def drop_media(self, keys: tuple[int, ...]) -> None:
        """Forget what was received under these keys."""
        for key in keys:
            self._received.pop(key, None)

    def apply(self, step: ArStep) -> None:
        self._forget(step.leaves.tolist())
        self._drafts.forget(step.leaves.tolist())
        self._piggyback.forget(step.leaves.tolist())
        self._told.forget(step.leaves.tolist())
        self._sampler.forget(step.leaves.tolist())
        self._tables.apply(step)
        for delta in step.blocks:
            self.pool.reach(delta.blocks)

    def join(self, join: Join) -> None:
        ids = np.concatenate([join.prompt.token_ids, join.generated[:, 0]])
        positions = self._model.positions(join.prompt)
        self._rows.join(join.row, positions, len(join.generated))
        self._drafts.join(join, positions)
        self._ids[join.row] = ids
        if self._cross is None:
            self._spans[join.row] = join.prompt.spans
        else:
            self._spans[join.row] = ()
            self._cross.join(join.row, self._found(join.prompt.spans[0].key).embeddings)
        self._sampler.join(join.row, join.sampling, torch.from_numpy(ids), len(join.generated))
        self._told.join(join)

    def run(self, step: ArStep) -> Tensor:
        """Tokens int64 [emitting rows, 1]."""
        ahead = self._drafts.begin(step)
        if ahead is None:
            return self._run(step)
        drawn = self._run(ahead.step, ahead.extra)[:, 0].tolist() if len(ahead.step.rows) else []
        return self._to_device(ahead.all(drawn))

    def _run(self, step: ArStep, extra: Ints | None = None) -> Tensor:
        """extra: how many of each row's tokens are its draft's; None: none has one."""
        if extra is not None:
            self._show_drafts(step, extra)
        flat = self._rows.flatten(step)
        media, (wanted, drawing) = self._media(flat), drawing_tokens(flat, step, self._device)
        if extra is not None:
            wanted = self._to_device(np.concatenate(wanted_tokens(step.counts, extra, step.emits)))
        read = self._told.prompt_tokens(flat)
        if wanted is not None and len(read):
            wanted = torch.cat((wanted, self._to_device(read)))
        x, kv, transfers = self._piggyback.begin(step, self._embed(flat, media))
        capture = self._model.capture_layer if media.rows or self._model.keeps_all else None
        hidden, captured = self._model.forward(
            StepInputs(
                x,
                upload(self._rows.positions(flat), self._device),
                kv,
                wanted,
                capture=capture,
                deepstack=_stacked(media.deepstack),
                visual=torch.cat(media.visual) if media.visual else None,
                transfers=transfers,
                cross=() if self._cross is None else self._cross.of(step.rows, step.counts),
            )
        )
        self._piggyback.end(step, transfers)
        if (ready := self.pool.ready("hidden", 0, step.tickets)) is not None:
            ready()  # whether or not this step writes there: a hand-off after it may read what came
        if capture is not None and captured is not None:
            slots = self._tables.batch("hidden", step, self._device).slots
            passing = self._piggyback.passing(step, capture)
            if passing is not None:
                slots, captured = slots[passing], captured[passing]
            self._hidden.index_copy_(0, slots, captured)
        self._forget(self._rows.finished(flat))
        if len(read):
            count = len(hidden) - len(read)
            self._told.read(hidden[count:], self._model.logits)
            hidden = hidden[:count]
        return (
            self._draw(hidden, drawing) if extra is None else self._check_drafts(step, extra, hidden, drawing)
        )

    def rehearse(self, num_rows: int) -> None:
        """Run a decode step of so many rows of no request; it writes to the first block only."""
        batches = self._tables.batch_of_no_request(self.pool.layer_groups, num_rows, self._device)
        ids = torch.zeros(num_rows, dtype=torch.int64, device=self._device)
        positions = torch.zeros(3, num_rows, device=self._device)
        kv = self.pool.kv(lambda _, group: batches[group])
        cross = () if self._cross is None else self._cross.of_no_request(num_rows)
        step = StepInputs(self._model.embed(ids), positions, kv, cross=cross)
        self._model.logits(self._model.forward(step)[0])

    def payload(self, row: int, positions: Ints) -> Tensor:
        """Hidden states [m, H] of a row's prompt positions."""
        return self._hidden[self._to_device(self._tables.slots("hidden", row, positions))]

    def _draw(self, hidden: Tensor, rows: Ints) -> Tensor:
        """Final-norm hidden [r, H] of emitting rows -> tokens int64 [r, 1]."""
        self.logprobs, self.refused = None, {}
        if not len(rows):
            return self._last[:0, None]
        return self._draw_of(self._model.logits(hidden), rows)

    def _draw_of(self, logits: Tensor, rows: Ints) -> Tensor:
        scores = self._told.scores(logits, rows)
        ids = self._sampler.draw(logits, rows)
        self.refused = self._sampler.refused
        if scores is not None:
            self.logprobs = self._told.drawn(scores, rows, ids)
        self._last.index_copy_(0, self._to_device(rows), ids)
        return ids[:, None]

    def _show_drafts(self, step: ArStep, extra: Ints) -> None:
        """Rows are prompts up to the end of their drafts."""
        columns = step.rows.tolist(), (step.starts + step.counts).tolist(), extra.tolist()
        for row, end, count in zip(*columns, strict=True):
            drafted = self._drafts.of(row)
            if drafted is not None and count:
                self._ids[row] = drafted.ids[:end]
                self._spans.setdefault(row, ())
                self._rows.join(row, drafted.positions, end - drafted.num_prompt)

    def _check_drafts(self, step: ArStep, extra: Ints, hidden: Tensor, rows: Ints) -> Tensor:
        """Final-norm hidden of the tokens that rows draw after, and then of those of their drafts -> what the
        rows draw, as `_draw`."""
        self.logprobs = None
        if not len(rows):
            return self._last[:0, None]
        logits = self._model.logits(hidden)
        drawn = self._draw_of(logits[: len(rows)], rows)
        likeliest = iter(logits[len(rows) :].argmax(-1).tolist())
        first = dict(zip(rows.tolist(), drawn[:, 0].tolist(), strict=True))
        columns = step.rows.tolist(), (step.starts + step.counts - extra).tolist(), extra.tolist()
        for row, end, count in zip(*columns, strict=True):
            if row in first and self._drafts.of(row) is not None:
                tokens = [first[row], *(next(likeliest) for _ in range(count))]
                self._last[row] = self._drafts.found(row, end, tokens)
                self._rows.shorten(row, end)
        return drawn

    def _embed(self, flat: FlatStep, media: _Media) -> Tensor:
        """The step's inputs [n, H]: embedded ids, and encoder outputs where media stand."""
        if flat.is_decode:
            return self._model.embed(self._last.index_select(0, self._to_device(flat.decoding)))
        known = np.zeros(flat.size, np.int64)
        for piece in flat.pieces:
            known[piece.flat] = self._ids[piece.row][piece.prompt]
        ids = self._to_device(known)
        if len(flat.decoding):
            ids[self._to_device(flat.decoding_at)] = self._last[self._to_device(flat.decoding)]
        x = self._model.embed(ids)
        if media.rows:
            x = x.index_copy(0, torch.cat(media.rows), torch.cat(media.embeddings).to(x.dtype))
        return x

    def _media(self, flat: FlatStep) -> _Media:
        media = _Media()
        for piece in flat.pieces:
            self._collect_media(piece, media)
        return media

    def _collect_media(self, piece: Piece, media: _Media) -> None:
        """The parts of media spans that lie in this piece of a prompt."""
        for span in self._spans[piece.row]:
            low = max(span.start, piece.start)
            high = min(span.start + span.length, piece.start + piece.count)
            if low >= high:
                continue
            features = self._found(span.key)
            part = slice(low - span.start, high - span.start)
            shift = piece.first - piece.start
            rows = torch.arange(low + shift, high + shift, device=self._device)
            media.rows.append(rows)
            media.embeddings.append(features.embeddings[part].to(self._device))
            if features.deepstack:
                media.visual.append(rows)
                media.deepstack.append(tuple(layer[part].to(self._device) for layer in features.deepstack))

    def _found(self, key: int) -> Features:
        return self._received.get(key) or self._features.get(key)

    def _forget(self, rows: list[int]) -> None:
        self._rows.forget(rows)
        for row in rows:
            self._ids.pop(row, None)
            self._spans.pop(row, None)

    def _to_device(self, column: Ints) -> Tensor:
        return upload(column, self._device)


def _stacked(parts: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """Deepstack rows of all parts, layer by layer."""
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]
