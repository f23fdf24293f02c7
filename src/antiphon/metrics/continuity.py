"""Does speech play smoothly once it has begun, and is it left alone when it should be?"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.metrics.rows import ResponseRow

GAP_S = 0.1
"""The shortest silence that is a stall: LiveServe §7.1, the default of vLLM-Omni's benchmark."""


def is_judged(row: ResponseRow) -> bool:
    """Whether continuity can be told of it: it sounded, nobody barged in, and it is over.

    Left out are replies that the client cancelled for its own reasons, and those still open at the log's end;
    not left out is one that was cut off by a lost connection, or by an interjection that was no barge-in.
    """
    if row.first_audio_s is None or row.barged_in:
        return False
    if row.status == "cancelled":
        return row.interrupted_by is not None
    return row.status is not None or row.settled


def is_smooth(row: ResponseRow, gap_s: float = GAP_S) -> bool:
    """It came to its end, and every silence in it was shorter than `gap_s`."""
    return row.is_answer and all(gap < gap_s for gap in row.gaps)


def continuity(rows: Iterable[ResponseRow], gap_s: float = GAP_S) -> float | None:
    """Share of spoken replies that played without a stall, barged-in replies excluded. LiveServe §7.1; ours:
    a reply that broke off (failed, lost, stopped by mistake) is not continuous either. None: nothing to
    judge."""
    judged = [is_smooth(row, gap_s) for row in rows if is_judged(row)]
    return sum(judged) / len(judged) if judged else None


def stalls(rows: Iterable[ResponseRow], gap_s: float = GAP_S) -> int | None:
    """How often speech fell silent for `gap_s` or longer, in all replies up to their interruption. None:
    nothing was spoken."""
    spoken = [row for row in rows if row.first_audio_s is not None]
    return sum(gap >= gap_s for row in spoken for gap in row.gaps) if spoken else None


def stall_s(rows: Iterable[ResponseRow], gap_s: float = GAP_S) -> float | None:
    """Seconds of such silence in all."""
    spoken = [row for row in rows if row.first_audio_s is not None]
    return sum((gap for row in spoken for gap in row.gaps if gap >= gap_s), 0.0) if spoken else None


def stalls_per_minute(rows: Iterable[ResponseRow], gap_s: float = GAP_S) -> float | None:
    """Stalls per minute of audio heard, so that loads can be compared. None: nothing was heard."""
    spoken = tuple(rows)
    heard_s = sum(row.heard_s for row in spoken)
    num_stalls = stalls(spoken, gap_s)
    return 60 * num_stalls / heard_s if num_stalls is not None and heard_s else None


def false_stops(rows: Iterable[ResponseRow]) -> int | None:
    """Replies cancelled by a failed barge-in or a backchannel, which should have gone on. None: there was
    neither."""
    tried = [row for row in rows if row.interrupted_by in ("failed_barge_in", "backchannel")]
    return sum(row.status == "cancelled" for row in tried) if tried else None


def premature_replies(rows: Iterable[ResponseRow]) -> int | None:
    """Replies that sounded before the person's voice had ended: the server took the turn too early. None:
    nothing was spoken."""
    first = [
        (row.first_audio_s, row.speech_end_s)
        for row in rows
        if row.first_audio_s is not None and row.speech_end_s is not None
    ]
    return sum(audio_s < end_s for audio_s, end_s in first) if first else None
