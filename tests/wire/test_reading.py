"""How far a reader is, without a server."""

from __future__ import annotations

import pytest

from antiphon.core.errors import Throttled
from antiphon.wire.reading import MIN_GAP_S, Reader
from antiphon.wire.spoken import MOST_PAUSED_S


def test_characters_are_told_as_seconds_of_tokens() -> None:
    """A piece that is read in part counts for that share; text that came later belongs to its own piece."""
    reader = Reader(rate=2.0)
    reader.sent("abcd", 1, 0.0)
    reader.sent("", 1, 0.0)
    reader.sent("ef", 2, 0.0)
    assert reader.sent_chars == 6
    assert reader.reported(2, 9.0) == 0.25
    assert reader.reported(4, 10.0) == 1.0
    assert reader.reported(5, 11.0) == 1.5
    assert reader.reported(6, 12.0) == 2.0
    assert reader.reported(5, 13.0) is None, "nobody reads backwards"
    assert reader.read_chars == 6


def test_nobody_reads_faster_than_they_said_nor_is_waited_for_without_end() -> None:
    reader = Reader(rate=1.0)
    reader.sent("x" * 200, 200, 0.0)
    assert reader.reported(200, 10.0) == 10.0
    slow = Reader(rate=1.0)
    slow.sent("x" * 200, 200, 0.0)
    assert slow.reported(0, 100.0) == 100.0 - MOST_PAUSED_S
    assert slow.wanted_at == 200.0 + MOST_PAUSED_S


def test_reports_keep_their_distance() -> None:
    reader = Reader(rate=1.0)
    reader.sent("abc", 3, 0.0)
    reader.reported(1, 1.0)
    with pytest.raises(Throttled):
        reader.reported(2, 1.0 + MIN_GAP_S / 2)
    assert reader.reported(2, 2.0 + MIN_GAP_S) == 2.0


def test_before_anything_was_sent_nothing_is_told() -> None:
    reader = Reader(rate=1.0)
    assert reader.reported(3, 1.0) is None
    assert reader.read_chars == 0
