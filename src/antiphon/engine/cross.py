"""What a decoder behind an encoder attends to: each row's keys and values of an encoder's output, in pages.

A row's are made once, when it joins, and are as long in every row. Where a model has a tail that stands
behind every shorter output (a window of silence), rows share its pages.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import Ints
from antiphon.engine.family import CrossModel
from antiphon.nn.attention import LayerKv, PagedBatch
from antiphon.nn.uploads import upload


class CrossPages:
    """The group "cross" of one stage: the tail's blocks, then `width` blocks of each row."""

    def __init__(self, model: CrossModel, max_rows: int, block_size: int) -> None:
        self._model = model
        self._size, self._length = block_size, model.cross_length
        self._width = -(-self._length // block_size)
        self._pages = model.new_pages((max_rows + 1) * self._width, block_size)
        self._own = np.arange((max_rows + 1) * self._width).reshape(max_rows + 1, self._width)
        self._tables = np.broadcast_to(self._own[0], (max_rows, self._width)).copy()
        self._tail: list[tuple[Tensor, Tensor]] = []
        if model.tail is not None:
            self._tail = model.cross_kv(model.tail)
            self._write(self._own[0], self._tail)

    def join(self, row: int, states: Tensor) -> None:
        """A row attends to an encoder's output [n, hidden], and behind it to the tail. Raises ValueError for
        one that is too long, or short where there is no tail."""
        own = self._model.cross_kv(states.to(self._pages[0][0]))
        n = len(states)
        if n > self._length or (n < self._length and not self._tail):
            raise ValueError(f"{n} positions of an encoder, where its decoder attends to {self._length}")
        count = -(-n // self._size)
        end = min(count * self._size, self._length)
        if n < end:  # the last of its blocks begins the tail
            own = [
                (torch.cat((k, tail_k[n:end])), torch.cat((v, tail_v[n:end])))
                for (k, v), (tail_k, tail_v) in zip(own, self._tail, strict=True)
            ]
        blocks = self._own[row + 1]
        self._write(blocks[:count], own)
        self._tables[row] = np.concatenate((blocks[:count], self._own[0][count:]))

    def of(self, rows: Ints, counts: Ints) -> list[LayerKv]:
        """Every layer's pages for a step in which so many tokens of each row run: each of them sees all that
        its row attends to, whatever its place."""
        device = self._pages[0][0].device
        tables = self._tables[np.repeat(rows, counts)]
        n = len(tables)
        batch = PagedBatch(
            upload(np.arange(n + 1), device),
            upload(np.full(n, self._length - 1, np.int64), device),
            upload(np.ascontiguousarray(tables), device),
            upload(np.zeros(n, np.int64), device),
            self._size,
            (1,) * n,
            (self._length - 1,) * n,
        )
        return [LayerKv(k_pages, v_pages, batch) for k_pages, v_pages in self._pages]

    def of_no_request(self, num_rows: int) -> list[LayerKv]:
        """The pages of rows of one token that belong to no request."""
        return self.of(np.zeros(num_rows, np.int64), np.ones(num_rows, np.int64))

    def _write(self, blocks: Ints, kv: list[tuple[Tensor, Tensor]]) -> None:
        """Keys and values [m, heads, d] of every layer to blocks, the last of which may stay open."""
        for pages, made in zip(self._pages, kv, strict=True):
            for page, part in zip(pages, made, strict=True):
                flat = page[upload(blocks, page.device)].flatten(0, 1)
                flat[: len(part)] = part
                page[upload(blocks, page.device)] = flat.view(len(blocks), *page.shape[1:])
