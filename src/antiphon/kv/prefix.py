"""What identifies a prompt to the KV: a key per position, and a chained hash per full block of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from antiphon.core.facts import Ints

DIGEST_BYTES = 16
"""Blocks with equal hashes are taken for equal: wide enough that no two different ones ever have been."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """keys int64 [n], and the hash of each full block, which names all positions up to the block's end."""

    keys: Ints
    chain: tuple[bytes, ...]


def prefix_of(keys: Ints, block_size: int) -> Prefix:
    return Prefix(keys, tuple(chain_on([], keys, block_size)))


def chain_on(chain: Sequence[bytes], keys: Ints, block_size: int) -> list[bytes]:
    """The hashes of the full blocks of `keys` that `chain` does not name yet."""
    last = chain[-1] if chain else b""
    new: list[bytes] = []
    for index in range(len(chain), len(keys) // block_size):
        block = keys[index * block_size : (index + 1) * block_size]
        last = blake2b(last + block.tobytes(), digest_size=DIGEST_BYTES).digest()
        new.append(last)
    return new
