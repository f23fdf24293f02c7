"""Playback against hand-computed timelines."""

from __future__ import annotations

import pytest

from antiphon.metrics.playback import Playback


def test_plays_one_second_per_second_and_notices_gaps() -> None:
    playback = Playback()
    assert playback.heard_s(5.0) == 0
    assert playback.dry_at_s is None
    playback.receive(1.0, 10.0)
    playback.receive(0.5, 10.2)  # buffered: dry at 11.5
    assert playback.dry_at_s == 11.5
    assert playback.heard_s(10.4) == pytest.approx(0.4)
    assert playback.heard_s(12.0) == 1.5
    playback.receive(1.0, 12.0)  # silent for 0.5 s
    assert playback.gaps == [0.5]
    assert playback.dry_at_s == 13.0
    assert playback.heard_s(12.25) == pytest.approx(1.75)


def test_what_comes_after_the_stop_is_never_heard() -> None:
    playback = Playback()
    playback.receive(2.0, 0.0)
    playback.stop(0.75)
    playback.stop(9.0)
    playback.receive(3.0, 1.0)
    assert playback.heard_s(60.0) == 0.75
    assert playback.received_s == 2.0
