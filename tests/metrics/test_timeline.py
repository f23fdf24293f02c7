"""Timelines of replies, drawn by hand."""

from __future__ import annotations

import pytest

from antiphon.metrics.log import Interrupted
from antiphon.metrics.timeline import timeline
from fakes.logs import reply, rows


def columns(*events: Interrupted, audio: list[tuple[float, float]]) -> list[list[float]]:
    (row,) = rows(reply(audio=audio, end_s=20.0), list(events))
    drawn = timeline(row)
    return [drawn.at_s.tolist(), drawn.received_s.tolist(), drawn.heard_s.tolist()]


def barge(t_s: float, kind: str = "barge_in") -> Interrupted:
    return Interrupted(t_s=t_s, session="a", response="r", kind=kind, heard_s=0.0)  # pyright: ignore


def test_bursts_are_played_at_their_pace_and_runs_dry_show() -> None:
    # 2 s at 1.0, 1 s at 1.5: dry at 4.0; 1 s at 5.0: over at 6.0
    assert columns(audio=[(1.0, 2.0), (1.5, 1.0), (5.0, 1.0)]) == [
        [1.0, 1.5, 4.0, 5.0, 6.0],
        [2.0, 3.0, 3.0, 4.0, 4.0],
        [0.0, 0.5, 3.0, 3.0, 4.0],
    ]


def test_a_barge_in_stops_the_playback_only() -> None:
    assert columns(barge(2.0), audio=[(1.0, 2.0), (1.5, 1.0), (2.5, 1.0)]) == [
        [1.0, 1.5, 2.0, 2.5],
        [2.0, 3.0, 3.0, 4.0],
        [0.0, 0.5, 1.0, 1.0],
    ]
    # silent since 2.0 when the person speaks at 3.0
    assert columns(barge(3.0), audio=[(1.0, 1.0), (4.0, 1.0)]) == [
        [1.0, 2.0, 3.0, 4.0],
        [1.0, 1.0, 1.0, 2.0],
        [0.0, 1.0, 1.0, 1.0],
    ]


def test_a_barge_in_before_the_audio() -> None:
    assert columns(barge(0.5), audio=[(1.0, 1.0)]) == [[1.0], [1.0], [0.0]]


def test_a_backchannel_changes_nothing() -> None:
    assert columns(barge(1.5, "backchannel"), audio=[(1.0, 1.0)]) == [[1.0, 2.0], [1.0, 1.0], [0.0, 1.0]]


def test_no_audio_no_points() -> None:
    assert columns(audio=[]) == [[], [], []]


def test_the_last_point_is_all_that_was_heard() -> None:
    (row,) = rows(reply(audio=[(1.0, 0.3), (1.1, 0.3), (1.9, 0.4)], end_s=9.0))
    assert timeline(row).heard_s[-1] == pytest.approx(row.heard_s)
