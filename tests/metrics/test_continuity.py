"""Continuity and stalls on playbacks worked out by hand."""

from __future__ import annotations

from antiphon.metrics import continuity
from antiphon.metrics.log import Interrupted
from antiphon.metrics.rows import ResponseRow
from fakes.logs import reply, rows, session, turn


def spoken(second_s: float, status: str = "completed", kind: str = "", reason: str = "done") -> ResponseRow:
    """1 s of audio at 1.0 and 1 s at `second_s`: dry at 2.0. An interjection of `kind` at 2.5."""
    interrupted = [Interrupted(t_s=2.5, session="a", response="r", kind=kind, heard_s=1.0)] if kind else []  # pyright: ignore
    parts = reply(audio=[(1.0, 1.0), (second_s, 1.0)], end_s=4.0, status=status)
    (row,) = rows(session(end_s=9.0, reason=reason), turn(end_s=0.5), parts, interrupted)
    return row


def unended(reason: str) -> ResponseRow:
    (row,) = rows(session(end_s=9.0, reason=reason), turn(), reply(audio=[(1.0, 1.0)]))
    return row


SMOOTH = spoken(2.0625)  # a gap of 0.0625 s
STALLED = spoken(2.25)  # a gap of 0.25 s
SILENT = rows(reply(end_s=2.0))[0]


def test_continuous_replies_have_gaps_under_a_tenth_of_a_second() -> None:
    assert SMOOTH.gaps == (0.0625,)
    assert STALLED.gaps == (0.25,)
    assert continuity.continuity([SMOOTH, SMOOTH, SMOOTH, STALLED]) == 0.75
    assert continuity.continuity([STALLED], gap_s=0.5) == 1.0
    assert continuity.continuity([spoken(2.125)], gap_s=0.125) == 0.0  # the bound itself is a stall
    assert continuity.continuity([SILENT]) is None


def test_barge_ins_and_client_cancels_are_not_judged() -> None:
    assert continuity.continuity([spoken(2.25, "cancelled", "barge_in"), spoken(2.25, "cancelled")]) is None


def test_a_reply_that_broke_off_is_not_continuous() -> None:
    broken = [spoken(2.0, "failed"), spoken(2.0, "cancelled", "failed_barge_in"), unended("lost")]
    assert [continuity.continuity([row]) for row in broken] == [0.0, 0.0, 0.0]
    assert continuity.continuity([unended("stopped")]) is None


def test_stalls_are_counted_and_summed() -> None:
    assert continuity.stalls([SMOOTH, STALLED, STALLED, SILENT]) == 2
    assert continuity.stall_s([SMOOTH, STALLED, STALLED, SILENT]) == 0.5
    assert continuity.stalls([SMOOTH]) == 0
    assert continuity.stalls([SILENT]) is None
    assert continuity.stall_s([SILENT]) is None


def test_stalls_per_minute_of_audio_heard() -> None:
    assert continuity.stalls_per_minute([SMOOTH, STALLED]) == 15.0  # one in 4 s
    assert continuity.stalls_per_minute(row for row in [SILENT]) is None
    (unheard,) = rows(
        reply(audio=[(1.0, 1.0)]),
        [Interrupted(t_s=1.0, session="a", response="r", kind="barge_in", heard_s=0.0)],
    )
    assert continuity.stalls_per_minute([unheard]) is None


def test_false_stops_are_cancels_without_a_barge_in() -> None:
    assert (
        continuity.false_stops([spoken(2.0, "cancelled", "backchannel"), spoken(2.0, kind="backchannel")])
        == 1
    )
    assert continuity.false_stops([spoken(2.0, "cancelled", "barge_in"), SMOOTH]) is None


def test_premature_replies_sound_before_the_voice_ends() -> None:
    early = rows(turn(end_s=3.0, voice_end_s=2.5), reply(audio=[(2.0, 1.0)]))
    assert continuity.premature_replies([*early, SMOOTH]) == 1
    assert continuity.premature_replies([SILENT]) is None
