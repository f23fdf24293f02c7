"""What freed memory does."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from antiphon.engine.heap import give_back

BLOCKS, BLOCK_BYTES = 20_000, 2000


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_what_was_freed_below_what_is_kept_goes_back() -> None:
    blocks = [bytearray(BLOCK_BYTES) for _ in range(BLOCKS)]
    kept = blocks.pop()
    del blocks
    before = resident()
    give_back()
    assert before - resident() > BLOCKS * BLOCK_BYTES / 2
    assert len(kept) == BLOCK_BYTES
