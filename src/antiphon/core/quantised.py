"""A weight in quantised blocks, as model files hold it: whole numbers, and scales that neighbours share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PANEL = 16
"""Outputs of a weight that stays in its blocks come in groups of so many on a CPU."""


class Super(NamedTuple):
    """What Q4_K makes its scales of: `d * steps`, and of its lowest numbers, `-(least * bases)`.

    d, least      fp16 [rows, n / 8]
    steps, bases  uint8 [rows, n]
    """

    d: NDArray[np.float16]
    least: NDArray[np.float16]
    steps: NDArray[np.uint8]
    bases: NDArray[np.uint8]


class Groups(NamedTuple):
    """Rows of a weight taken apart, each n groups of g inputs. A number is `scales * quants + lowest`, fp32.

    scales, lowest  fp32 [rows, n]
    quants          int8 [rows, n, g]
    parts           of Q4_K alone
    """

    scales: NDArray[np.float32]
    lowest: NDArray[np.float32]
    quants: NDArray[np.int8]
    parts: Super | None = None

    def numbers(self) -> NDArray[np.float32]:
        """fp32 [rows, n * g]."""
        with np.errstate(all="ignore"):  # a damaged scale may be infinite
            whole = self.scales[..., None] * self.quants + self.lowest[..., None]
        return whole.reshape(len(whole), -1)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A weight [out, in] whose bytes lie in a file or in memory; nothing of it is fp32.

    encoding  llama.cpp's name of the blocks; "I8": `eight_bits`
    group     inputs that share scales
    inputs    of a row
    data      uint8 [out, bytes of a row]
    split     uint8 [rows, bytes of a row] -> those rows taken apart
    """

    encoding: str
    group: int
    inputs: int
    data: NDArray[np.uint8]
    split: Callable[[NDArray[np.uint8]], Groups]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.data), self.inputs

    def rows(self, chosen: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """These rows dequantised, fp32 [n, in]."""
        return self.split(self.data[chosen]).numbers()

    def reordered(self, order: NDArray[np.int64]) -> Quantised:
        """A weight with these rows: row i is row `order[i]` of this one."""
        return replace(self, data=self.data[order])


def joined(parts: list[Quantised]) -> Quantised:
    """The rows of all, one behind the other. Of several encodings they are kept in `eight_bits`."""
    if len({(part.encoding, part.group) for part in parts}) > 1:
        parts = [eight_bits(part.split(part.data), 16) for part in parts]
    return replace(parts[0], data=np.concatenate([part.data for part in parts]))


def eight_bits(groups: Groups, most: int) -> Quantised:
    """A weight of these numbers, a byte each, with scales and lowest numbers in fp32 for every `most` inputs
    or fewer."""
    rows, count, size = groups.quants.shape
    times = -(-size // most)
    heads = np.stack([np.repeat(part, times, 1) for part in (groups.scales, groups.lowest)], 2)
    quants = groups.quants.reshape(rows, count * times, size // times)
    heads = np.ascontiguousarray(heads, "<f4").view(np.uint8).reshape(rows, count * times, 8)
    data = np.concatenate([heads, quants.view(np.uint8)], 2).reshape(rows, -1)
    return Quantised("I8", size // times, count * size, data, SplitBytes(size // times))


@dataclass(frozen=True, slots=True)
class SplitBytes:
    """Takes rows of `eight_bits` apart."""

    group: int

    def __call__(self, rows: NDArray[np.uint8]) -> Groups:
        blocks = rows.reshape(len(rows), -1, 8 + self.group)
        heads = np.ascontiguousarray(blocks[..., :8]).view("<f4")
        return Groups(heads[..., 0], heads[..., 1], blocks[..., 8:].view(np.int8))
