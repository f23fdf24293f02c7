"""What these tests count is theirs alone."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_by_others() -> None:
    """Of earlier files' garbage: descriptors that close while open ones are counted."""
    gc.collect()
