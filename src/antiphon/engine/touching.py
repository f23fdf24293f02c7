"""KV pages on a CPU get their memory a little ahead of the blocks that steps name, in a thread of their own.

The first write to a page waits until the kernel has found and cleared one: with large pages up to 50 ms of a
decode step whenever KV reaches the next 2 MiB of every layer. Pages that are all written at the start cost
no step anything, and take the memory of a full pool from a server that holds eight short conversations.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Iterable

from torch import Tensor

POPULATE_WRITE = 23
"""`madvise`: the pages are there, and what they hold stays as it is. Linux 5.14 or newer."""

PART_BYTES = 2 << 20
"""Touched at once in each tensor: a large page."""

NICE = 10
"""Of the thread: a tenth of a core that steps have to themselves otherwise."""


class Touching:
    """Owner of how far the pages of one pool have their memory.

    Every tensor is [blocks, ...] on a CPU, contiguous, and untouched so far.
    """

    def __init__(self, tensors: Iterable[Tensor], ahead: int) -> None:
        """ahead: blocks beyond the highest named one that are to be there. The first ones are when this
        returns; all of them where the kernel cannot touch a page without changing it."""
        self._tensors = [tensor for tensor in tensors if tensor.numel()]
        """Kept: the thread must not outlive their memory."""
        self._places = [(tensor.data_ptr(), tensor[0].nbytes) for tensor in self._tensors]
        self.num_blocks = len(self._tensors[0]) if self._tensors else 0
        self._ahead = ahead
        widest = max((size for _, size in self._places), default=1)
        self._part = max(PART_BYTES // widest, 1)
        self._wanted = min(ahead, self.num_blocks)
        self.num_touched = 0
        """Blocks, the first ones, whose memory is there."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        """While there are pages to touch: it holds the tensors."""
        self._gave_up = False
        """The kernel had no page: the first write finds one, or fails where it is told."""
        if not self._touch(self._wanted):
            _write(self._tensors)
            self.num_touched = self.num_blocks

    def reach(self, block: int) -> None:
        """An order names blocks up to this one. Waits for no page."""
        with self._lock:
            self._wanted = max(self._wanted, min(block + 1 + self._ahead, self.num_blocks))
            if self._wanted <= self.num_touched or self._gave_up:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="antiphon-pages", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        is_behind = True
        while is_behind:
            could = self._touch(self._wanted)
            with self._lock:
                self._gave_up = not could
                is_behind = could and self.num_touched < self._wanted
                if not is_behind:
                    self._thread = None

    def _touch(self, wanted: int) -> bool:
        """So many blocks are there, and the rest of the part that they end in. False: it cannot be done."""
        while self.num_touched < wanted:
            first, last = self.num_touched, min(self.num_touched + self._part, self.num_blocks)
            for place, size in self._places:
                if not populate(place + first * size, (last - first) * size):
                    return False
            self.num_touched = last
        return True


def populate(address: int, num_bytes: int) -> bool:
    """The pages that hold these bytes are there, unchanged. False: this kernel cannot do it."""
    start = address - address % mmap.PAGESIZE
    madvise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
    if madvise is None:
        return False
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return madvise(start, address + num_bytes - start, POPULATE_WRITE) == 0


def _write(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        tensor.zero_()
