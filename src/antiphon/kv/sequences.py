"""A sequence of KV: positions of one conversation and their blocks; what it gives up or is given; and by what
a prompt is told from others: a key per position, and a chained hash per full block of them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from antiphon.core.facts import Ints


@dataclass(slots=True, eq=False)
class Sequence:
    """Positions of one conversation, and the blocks of the first of them.

    keys      int64 [n]: of the positions that were computed. A running sequence holds all of them; of a
              resting one they outlive its blocks, as far as whole blocks go
    chain     names of its full blocks, as far as their content is known
    blocks    held on the device, for the first positions and, of a running one, for what is computed next
    promised  blocks that it was admitted for; it may hold more
    owner     the name under which it rests; "" while it does not

    Of the blocks of a resting one

        [0, num_ready)           are there, in every group
        [num_ready, num_coming)  are being filled
        [num_coming, len)        lack a group
    """

    keys: Ints
    chain: list[bytes]
    blocks: list[int]
    num_ready: int
    num_coming: int = 0
    promised: int = 0
    owner: str = ""

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def filled(self) -> list[bytes]:
        """Names of its full blocks that are there, in every group: they may be copied."""
        return self.chain[: self.num_ready] if self.owner else self.chain


@dataclass(frozen=True, slots=True)
class Evicted:
    """Full blocks that resting sequences gave up, side by side, each lent until it is copied.

    owners  every sequence that held them
    start   of the first one in each of the sequences
    groups  indices of the KV groups that it gave up; None: all
    """

    owners: tuple[str, ...]
    start: int
    blocks: list[int]
    names: list[bytes]
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """Blocks of a resting sequence that are being filled: [start, start + len(blocks)) of it.

    names   what they hold once they are
    groups  indices of the KV groups that are filled; None: all
    """

    sequence: Sequence
    start: int
    blocks: list[int]
    names: list[bytes]
    groups: tuple[int, ...] | None


def common_prefix(left: Ints, right: Ints) -> int:
    """Length of the longest common prefix."""
    size = min(len(left), len(right))
    differs = np.nonzero(left[:size] != right[:size])[0]
    return int(differs[0]) if len(differs) else size


DIGEST_BYTES = 16
"""Blocks with equal hashes are taken for equal: wide enough that no two different ones ever have been."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """keys int64 [n], and the hash of each full block, which names all positions up to the block's end."""

    keys: Ints
    chain: tuple[bytes, ...]


def prefix_of(keys: Ints, block_size: int) -> Prefix:
    return Prefix(keys, tuple(chain_on([], keys, block_size)))


def chain_on(chain: list[bytes], keys: Ints, block_size: int) -> list[bytes]:
    """The hashes of the full blocks of `keys` that `chain` does not name yet."""
    last = chain[-1] if chain else b""
    new: list[bytes] = []
    for index in range(len(chain), len(keys) // block_size):
        block = keys[index * block_size : (index + 1) * block_size]
        last = blake2b(last + block.tobytes(), digest_size=DIGEST_BYTES).digest()
        new.append(last)
    return new
