"""Rows that wait outside the batch while their attention is computed elsewhere, and the step's index tensors
by which they leave and enter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.facts import Ints
from antiphon.core.plans import ArStep
from antiphon.engine.kv_pool import KvPool
from antiphon.engine.rows import BlockTables
from antiphon.nn.attention import LayerKv, PagedBatch, paged_attention
from antiphon.nn.transfers import Exchange, LayerExchanges, Left
from antiphon.nn.uploads import upload

Mask = NDArray[np.bool_]


class ParkedRows:
    """What is kept of each parked row: the layer at whose attention it stopped, residual, q, k and v."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Left]] = {}

    def park(self, row: int, layer: int, left: Left) -> None:
        """`left` holds this row alone, [1, ...] each."""
        assert row not in self._rows, "the row is parked already"
        self._rows[row] = layer, left

    def take(self, rows: list[int], layer: int) -> Left:
        """The rows enter at this layer: what was kept of them, in their order, [rows, ...] each."""
        taken = [self._rows.pop(row) for row in rows]
        assert all(at == layer for at, _ in taken), "a row enters where it left"
        parts = [(left.residual, left.q, left.k, left.v) for _, left in taken]
        return Left(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def forget(self, rows: Iterable[int]) -> None:
        """These rows are given up."""
        for row in rows:
            self._rows.pop(row, None)

    def __contains__(self, row: int) -> bool:
        return row in self._rows


def attend_parked(left: Left, kv: LayerKv) -> Tensor:
    """The attention [rows, H, d] of parked rows of one token each, from what was kept of them and the pages;
    their keys and values are written first. `kv.batch` describes these rows.
    """
    return kv.attend(left.q, left.k, left.v, paged_attention)


class Piggyback:
    """Makes a step's batches, with those of its rows that leave or enter between layers."""

    def __init__(self, pool: KvPool, tables: BlockTables, device: torch.device) -> None:
        self.parked = ParkedRows()
        self._pool = pool
        self._tables = tables
        self._device = device

    def forget(self, rows: Iterable[int]) -> None:
        self.parked.forget(rows)

    def begin(self, step: ArStep, x: Tensor) -> tuple[Tensor, list[LayerKv], LayerExchanges | None]:
        """The step's inputs [n, hidden] with the residuals of rows that enter, what each layer reads and
        writes, and which rows move (None: none does).
        """
        if len(step.leaves_at[0]) or len(step.enters_at[0]):
            return self._begin(_Stay(step, self._pool.num_layers), step, x)
        columns = step.rows, step.starts, step.counts
        batches = self._tables.batches(self._pool.layer_groups, columns, self._device)
        return x, self._pool.kv(lambda _, group: batches[group], step.tickets), None

    def passing(self, step: ArStep, layer: int) -> Tensor | None:
        """Tokens of the step that have a residual before `layer` in it; None: all."""
        if not (len(step.leaves_at[0]) or len(step.enters_at[0])):
            return None
        stay = _Stay(step, self._pool.num_layers)
        return upload(stay.tokens((stay.enter <= layer) & (layer <= stay.leave)), self._device)

    def end(self, step: ArStep, transfers: LayerExchanges | None) -> None:
        """Park what left in the step that has run."""
        if transfers is None:
            return
        rows, layers = step.leaves_at
        for layer, left in transfers.left.items():
            # the batch is in the order of the step's rows, not in that of the column
            mine = step.rows[np.isin(step.rows, rows[layers == layer])]
            for i, row in enumerate(mine.tolist()):
                part = slice(i, i + 1)
                columns = (left.residual, left.q, left.k, left.v)
                self.parked.park(row, layer, Left(*(column[part].clone() for column in columns)))

    def _begin(
        self, stay: _Stay, step: ArStep, x: Tensor
    ) -> tuple[Tensor, list[LayerKv], LayerExchanges | None]:
        assert not any(row in self.parked for row in step.rows[stay.enter < 0].tolist()), "a parked row runs"
        exchanges = [self._exchange(stay, layer) for layer in range(self._pool.num_layers)]
        kv = self._pool.kv(self._batches(step, stay.staying), step.tickets)
        at_entry = self._pool.kv(self._batches(step, stay.entering), step.tickets)
        for layer, exchange in enumerate(exchanges):
            if len(exchange.entering):
                left = self.parked.take(step.rows[stay.entering(layer)].tolist(), layer)
                x = x.index_copy(0, exchange.entering, left.residual)
                exchange.attention = attend_parked(left, at_entry[layer])
        return x, kv, LayerExchanges(exchanges)

    def _exchange(self, stay: _Stay, layer: int) -> Exchange:
        before = stay.before(layer)
        places = [
            stay.tokens(before),
            stay.tokens(stay.leaving(layer)[before], before),
            stay.tokens(stay.staying(layer)[before], before),
            stay.tokens(stay.entering(layer)),
        ]
        return Exchange(*(upload(place, self._device) for place in places))

    def _batches(self, step: ArStep, rows_at: Callable[[int], Mask]) -> Callable[[int, str], PagedBatch]:
        """Batches by (layer, group) of the rows that `rows_at(layer)` marks; equal ones are made once."""

        @cache
        def batch(rows: bytes, group: str) -> PagedBatch:
            mask = np.frombuffer(rows, np.bool_)
            columns = step.rows[mask], step.starts[mask], step.counts[mask]
            return self._tables.batches((group,), columns, self._device)[group]

        return lambda layer, group: batch(rows_at(layer).tobytes(), group)


class _Stay:
    """Which of a step's rows are in which of its layers: masks over rows.

    A row comes in at the attention of layer `enter` (-1: it begins the step) and goes out at that of layer
    `leave` (the number of layers: it goes through).
    """

    def __init__(self, step: ArStep, num_layers: int) -> None:
        self._counts = step.counts
        self.enter = _by_row(step.rows, step.enters_at, -1)
        self.leave = _by_row(step.rows, step.leaves_at, num_layers)
        moves = (self.enter >= 0) | (self.leave < num_layers)
        assert (step.counts[moves] == 1).all(), "only rows of one token leave and enter"
        assert (self.enter < self.leave).all(), "a row leaves after it entered"
        assert not step.emits[self.leave < num_layers].any(), "a row that leaves has nothing to emit"

    def before(self, layer: int) -> Mask:
        return (self.enter < layer) & (layer <= self.leave)

    def leaving(self, layer: int) -> Mask:
        return self.before(layer) & (layer == self.leave)

    def staying(self, layer: int) -> Mask:
        return (self.enter < layer) & (layer < self.leave)

    def entering(self, layer: int) -> Mask:
        return self.enter == layer

    def tokens(self, rows: Mask, among: Mask | None = None) -> Ints:
        """Places of these rows' tokens, among the tokens of the rows `among` (all of the step's)."""
        counts = self._counts if among is None else self._counts[among]
        return np.flatnonzero(np.repeat(rows, counts))


def _by_row(rows: Ints, moves: tuple[Ints, Ints], otherwise: int) -> Ints:
    """The layer at which each of `rows` moves."""
    layer_of = dict(zip(moves[0].tolist(), moves[1].tolist(), strict=True))
    assert layer_of.keys() <= set(rows.tolist()), "only rows of the step move in it"
    return np.array([layer_of.get(row, otherwise) for row in rows.tolist()], np.int64)
