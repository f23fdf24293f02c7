"""Pages get their memory before steps name them, and keep what they hold."""

from __future__ import annotations

import resource
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

from antiphon.engine import touching
from antiphon.engine.touching import PART_BYTES, Touching, populate
from antiphon.nn.cpu.large_pages import on_large_pages

BLOCK = 4096
"""fp32 numbers: 128 blocks are a part."""
BLOCKS = 1024


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def pages() -> Tensor:
    return on_large_pages(BLOCK * BLOCKS, touched=False).view(BLOCKS, BLOCK)


def wait_for(made: Touching, blocks: int) -> None:
    until = time.monotonic() + 30.0
    while made.num_touched < blocks:
        assert time.monotonic() < until, "nobody touches them"
        time.sleep(0.005)


needs_populate = pytest.mark.skipif(
    not populate(on_large_pages(1024).data_ptr(), 4096), reason="this kernel cannot touch without a write"
)


@needs_populate
def test_only_what_is_ahead_is_there_at_first() -> None:
    before = resident_bytes()
    made = Touching([pages()], ahead=10)
    assert made.num_touched == 128
    assert resident_bytes() - before < 4 * PART_BYTES


@needs_populate
def test_it_stays_ahead_of_what_is_named() -> None:
    made = Touching([pages(), pages()], ahead=10)
    made.reach(100)
    assert made.num_touched == 128
    made.reach(120)
    wait_for(made, 256)
    made.reach(50)
    made.reach(600)
    wait_for(made, 640)
    assert made.num_touched == 640
    made.reach(BLOCKS - 1)
    wait_for(made, BLOCKS)


@needs_populate
def test_nothing_holds_the_pages_once_they_are_there() -> None:
    tensor = pages()
    made, gone = Touching([tensor], ahead=10), weakref.ref(tensor)
    made.reach(300)
    wait_for(made, 384)
    del made, tensor
    until = time.monotonic() + 30.0
    while gone() is not None:
        assert time.monotonic() < until, "a thread keeps the pages of an engine that is gone"
        time.sleep(0.005)


@needs_populate
def test_a_write_finds_its_page() -> None:
    tensor = pages()
    made = Touching([tensor], ahead=10)
    made.reach(500)
    wait_for(made, 511)
    numbers, before = tensor.numpy(), faults()
    numbers[:511] = 1.0
    assert faults() - before < 50


@needs_populate
def test_what_is_written_stays() -> None:
    tensor = pages()
    tensor[300] = 7.0
    made = Touching([tensor], ahead=BLOCKS)
    assert made.num_touched == BLOCKS
    assert torch.equal(tensor[300], torch.full((BLOCK,), 7.0))
    assert not tensor[:300].any()


def test_all_is_written_at_once_where_the_kernel_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touching, "populate", lambda address, num_bytes: False)
    tensor = pages()
    made, before = Touching([tensor], ahead=1), faults()
    assert made.num_touched == BLOCKS
    tensor.numpy()[:] = 1.0
    assert faults() - before < 50
    made.reach(BLOCKS - 1)


def test_nothing_to_touch() -> None:
    made = Touching([torch.zeros(4, 0)], ahead=1)
    made.reach(3)
    assert made.num_touched == 0
