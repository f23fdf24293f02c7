"""Memory in large pages, and without them."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import pytest
import torch

from antiphon.nn.cpu import large_pages
from antiphon.nn.cpu.large_pages import HUGE_PAGE_BYTES, LINE_BYTES, on_large_pages


@pytest.mark.parametrize("numel", [0, 1, 1000, HUGE_PAGE_BYTES // 4, HUGE_PAGE_BYTES])
def test_it_is_zeroed_and_begins_at_a_boundary(numel: int) -> None:
    memory = on_large_pages(numel)
    assert memory.shape == (numel,)
    assert torch.equal(memory, torch.zeros(numel))
    boundary = HUGE_PAGE_BYTES if 4 * numel >= HUGE_PAGE_BYTES else LINE_BYTES
    assert not numel or memory.data_ptr() % boundary == 0


def test_a_kernel_without_large_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *values: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(large_pages.mmap, "mmap", Refusing)
    assert len(on_large_pages(HUGE_PAGE_BYTES)) == HUGE_PAGE_BYTES


def test_nobody_waits_for_a_page_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told in small pages, of which there are 4096 here."""
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    memory = on_large_pages(8 * HUGE_PAGE_BYTES // 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory.numpy()[:] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100


def test_what_is_not_used_is_not_taken() -> None:
    def taken_bytes() -> int:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in line)
        return 1024 * int(line.split()[1])

    before, numel = taken_bytes(), HUGE_PAGE_BYTES // 4 + 1
    pieces = [on_large_pages(numel) for _ in range(20)]
    assert taken_bytes() - before < len(pieces) * 2.1 * HUGE_PAGE_BYTES
