"""Memory of a CPU in its large pages, for what is read from end to end every step."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

LINE_BYTES = 64
"""A cache line."""

HUGE_PAGE_BYTES = 2 << 20

SMALL_PAGE_BYTES = 4096


def on_large_pages(numel: int, *, touched: bool = True) -> Tensor:
    """fp32 [numel], zeroed and a cache line aligned; in the large pages of the machine where it has some.

    The first write to a page waits until the machine has found one and cleared it, milliseconds for a large
    one, and a step would wait in the middle of a conversation. So all pages are there when this returns,
    unless `touched` is false: then the caller sees to it before they are written to (`engine.touching`).
    """
    if 4 * numel < HUGE_PAGE_BYTES:
        whole = torch.zeros(numel + LINE_BYTES // 4)
        start = -whole.data_ptr() % LINE_BYTES // 4
        return whole[start : start + numel]
    size = -(-4 * numel // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    # one page more, so that so many lie within at their own boundaries; the kernel gives none of what is not
    # written to
    memory = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # a kernel without large pages refuses: small ones will do
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.float32)
    start = -whole.data_ptr() % HUGE_PAGE_BYTES // 4
    used = whole[start : start + numel]
    if touched:
        used[:: SMALL_PAGE_BYTES // 4] = 0
    return used
