"""How far a reader is, without a server."""

from __future__ import annotations

from itertools import pairwise

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


@pytest.mark.parametrize("rate", [1.0, 5.0, 12.0])
def test_reports_of_a_quick_reader_do_not_speed_up_a_paced_text(rate: float) -> None:
    """Whatever was sent is reported as read every 0.25 s; each piece is sent when it is wanted."""
    reader, now, sent_at = Reader(rate), 0.0, [0.0]
    reader.sent("a", 1, now)
    while now < 20.0:
        now += MIN_GAP_S
        while reader.wanted_at <= now:
            sent_at.append(max(reader.wanted_at, sent_at[-1]))
            reader.sent("a", 1, sent_at[-1])
        told_s = reader.reported(reader.sent_chars, now)
        assert told_s is not None
        assert told_s <= now + 1e-9, "the engine is told no faster reading either"
    assert min(b - a for a, b in pairwise(sent_at)) == pytest.approx(1 / rate)
    assert len(sent_at) == pytest.approx(1 + 20 * rate, abs=1), "nor do they slow it down"


def test_one_who_never_reads_on_is_waited_for_a_minute_in_all() -> None:
    """The same is reported over and over: each report would begin a new pause."""
    reader, now, sent_at = Reader(2.0), 0.0, [0.0]
    reader.sent("a", 1, now)
    while len(sent_at) < 200 and now < 1000.0:
        now += MIN_GAP_S
        while reader.wanted_at <= now and len(sent_at) < 200:
            sent_at.append(max(reader.wanted_at, sent_at[-1]))
            reader.sent("a", 1, sent_at[-1])
        told_s = reader.reported(0, now)
        assert told_s is not None
        assert told_s >= now - MOST_PAUSED_S - MIN_GAP_S, "nor does the engine wait any longer"
    assert sent_at[-1] == pytest.approx(199 / 2.0 + MOST_PAUSED_S, abs=MIN_GAP_S)
    assert min(b - a for a, b in pairwise(sent_at)) == pytest.approx(0.5), "it is still read at the rate"


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
