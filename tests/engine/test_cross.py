"""What a decoder behind an encoder attends to: pages of its own, those of the tail shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.core.plans import ints
from antiphon.engine.cross import CrossPages
from antiphon.nn.backends import BACKENDS
from antiphon.nn.cpu import paged

HEADS, DIM, LAYERS, LENGTH, BLOCK = 2, 8, 2, 21, 4


class Model:
    """Keys and values of each layer are two products of an encoder's states."""

    def __init__(self, tail: Tensor | None, dtype: torch.dtype) -> None:
        self.tail, self.cross_length, self.dtype = tail, LENGTH, dtype
        generator = torch.Generator().manual_seed(1)
        shape = LAYERS, 2, HEADS * DIM, 6
        self.weights = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def new_pages(self, num_blocks: int, block_size: int) -> list[tuple[Tensor, Tensor]]:
        shape = num_blocks, block_size, HEADS, DIM
        pages = torch.zeros(LAYERS, 2, *shape, dtype=self.dtype)
        return [(layer[0], layer[1]) for layer in pages]

    def cross_kv(self, states: Tensor) -> list[tuple[Tensor, Tensor]]:
        made = [[F.linear(states, weight).view(-1, HEADS, DIM) for weight in layer] for layer in self.weights]
        return [(k, v) for k, v in made]


def states(count: int, seed: int, dtype: torch.dtype) -> Tensor:
    made = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype)


def attended(model: Model, q: Tensor, shown: Tensor, layer: int) -> Tensor:
    """q [n, H, d] over all of what is shown."""
    k, v = model.cross_kv(shown)[layer]
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


@pytest.mark.parametrize(("backend", "dtype"), [("reference", torch.float64), ("cpu", torch.float32)])
@pytest.mark.parametrize("has_tail", [True, False])
def test_every_token_sees_all_that_its_row_was_given(backend: str, dtype: torch.dtype, has_tail: bool):
    tail = states(LENGTH, 0, dtype) if has_tail else None
    model: Any = Model(tail, dtype)
    pages, attention = CrossPages(model, 3, BLOCK), BACKENDS[backend].create()
    shown: dict[int, Tensor] = {}
    for row, count in ((0, LENGTH), (1, 5), (2, 8), (1, 20), (2, 1)):  # rows are given out anew
        own = states(count if has_tail else LENGTH, row + 10 * count, dtype)
        pages.join(row, own)
        shown[row] = own if tail is None else torch.cat((own, tail[len(own) :]))
    rows, counts = ints([2, 0, 1]), ints([1, 3, 2])
    q = torch.randn(6, HEADS, DIM, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)
    for layer, kv in enumerate(pages.of(rows, counts)):
        found = attention(q, kv.k_pages, kv.v_pages, kv.batch)
        parts = [
            attended(model, part, shown[row], layer)
            for row, part in zip(rows.tolist(), q.split(counts.tolist()), strict=True)
        ]
        torch.testing.assert_close(found, torch.cat(parts), atol=1e-5, rtol=1e-5)


def test_the_tail_is_kept_once():
    model: Any = Model(states(LENGTH, 0, torch.float64), torch.float64)
    pages = CrossPages(model, 3, BLOCK)
    for row in range(3):
        pages.join(row, states(5, row, torch.float64))
    tables = pages.of(ints([0, 1, 2]), ints([1, 1, 1]))[0].batch.tables.numpy()
    assert len(np.unique(tables[:, :2])) == 6, "own blocks"
    assert all(len(set(column)) == 1 for column in tables[:, 2:].T), "blocks of silence"


def test_rows_of_no_request_see_the_tail_alone():
    model: Any = Model(states(LENGTH, 0, torch.float64), torch.float64)
    pages = CrossPages(model, 2, BLOCK)
    pages.join(0, states(LENGTH, 1, torch.float64))
    kv = pages.of_no_request(2)[1]
    q = torch.ones(2, HEADS, DIM, dtype=torch.float64)
    found = BACKENDS["reference"].create()(q, kv.k_pages, kv.v_pages, kv.batch)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize(("count", "has_tail"), [(LENGTH + 1, True), (LENGTH - 1, False)])
def test_an_output_of_another_length_is_refused(count: int, has_tail: bool):
    model: Any = Model(states(LENGTH, 0, torch.float64) if has_tail else None, torch.float64)
    with pytest.raises(ValueError, match=f"{count} positions of an encoder, where its decoder attends to 21"):
        CrossPages(model, 1, BLOCK).join(0, states(count, 1, torch.float64))


def test_tokens_of_a_row_read_what_it_attends_to_once(monkeypatch: pytest.MonkeyPatch):
    """Long rows are read where they lie; those of other rows, and between them, are read for themselves."""
    monkeypatch.setattr(paged, "LONG_ROW_TOKENS", LENGTH)
    monkeypatch.setattr(paged, "VIEWED_TOKENS", BLOCK)
    model: Any = Model(states(LENGTH, 0, torch.float32), torch.float32)
    pages, attention, tail = CrossPages(model, 3, BLOCK), BACKENDS["cpu"].create(), model.tail
    shown = {row: states(count, row, torch.float32) for row, count in enumerate((8, LENGTH, 8))}
    for row, own in shown.items():
        pages.join(row, own)
    rows, counts = ints([2, 0, 1]), ints([3, 1, 4])
    q = torch.randn(8, HEADS, DIM, generator=torch.Generator().manual_seed(5))
    for layer, kv in enumerate(pages.of(rows, counts)):
        found = attention(q, kv.k_pages, kv.v_pages, kv.batch)
        cuts = kv.batch.prepared.cuts
        assert [(cut.tokens.start, cut.tokens.stop) for cut in cuts] == [(0, 3), (3, 4), (4, 8)]
        assert not kv.batch.prepared.groups
        parts = [
            attended(model, part, torch.cat((shown[row], tail[len(shown[row]) :])), layer)
            for row, part in zip(rows.tolist(), q.split(counts.tolist()), strict=True)
        ]
        torch.testing.assert_close(found, torch.cat(parts), atol=1e-5, rtol=1e-5)
