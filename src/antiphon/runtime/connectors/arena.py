"""Memory without a name that two processes share: the sender puts bodies in, the receiver reads them there.

The sender alone keeps the books; what is free again it is told over the link.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from bisect import bisect
from collections.abc import Iterable

from antiphon.runtime.connectors.frames import ALIGN, Garbled


def new_memory(num_bytes: int) -> int:
    """A file descriptor of memory that is gone with its last holder, however that one ends. Fixed in size, so
    that nobody can pull it away under a reader."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:  # has no name either
            os.ftruncate(file.fileno(), num_bytes)
            return os.dup(file.fileno())
    descriptor = os.memfd_create("antiphon-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, num_bytes)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def mapped(descriptor: int) -> memoryview:
    """All of it; unmapped when the last view of it is dropped."""
    return memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size))


class Arena:
    """The sender's books: first fit at the lowest place, so that warm memory is used again first."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._free: list[tuple[int, int]] = [(0, len(memory))]  # (start, end), ascending, never touching
        self._taken: dict[int, int] = {}

    def put(self, views: Iterable[memoryview], num_bytes: int) -> int | None:
        """Copy these in, one behind the other. The place, or None where there is no room."""
        size = -(-num_bytes // ALIGN) * ALIGN
        fits = (index for index, (start, end) in enumerate(self._free) if end - start >= size)
        index = next(fits, None)
        if index is None:
            return None
        start, end = self._free[index]
        self._free[index : index + 1] = [(start + size, end)] if end - start > size else []
        self._taken[start] = start + size
        at = start
        for view in views:
            self._memory[at : at + len(view)] = view
            at += len(view)
        return start

    def free(self, place: int) -> None:
        """Raises Garbled for a place where nothing lies."""
        end = self._taken.pop(place, None)
        if end is None:
            raise Garbled(f"place {place} of the arena given back, where nothing lies")
        start, index = place, bisect(self._free, (place, place))
        first, last = index, index
        if index and self._free[index - 1][1] == start:
            first, start = index - 1, self._free[index - 1][0]
        if index < len(self._free) and self._free[index][0] == end:
            last, end = index + 1, self._free[index][1]
        self._free[first:last] = [(start, end)]
