"""Ids: minted here and nowhere else, from a salt and a counter, so that a replay mints the same.

The salt is the only random part; the process that starts a session supplies it.
"""

from __future__ import annotations

import hashlib


class IdSource:
    """Mints `prefix_…` ids, unique for one salt; `prefix-…` where clients know them so."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._count = 0

    def new(self, prefix: str, joint: str = "_") -> str:
        self._count += 1
        digest = hashlib.blake2b(f"{self._salt}/{self._count}".encode(), digest_size=9).hexdigest()
        return f"{prefix}{joint}{digest}"


def content_key(*parts: bytes) -> int:
    """A 62-bit non-negative content hash: equal bytes, equal key, on every machine."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little") >> 2
