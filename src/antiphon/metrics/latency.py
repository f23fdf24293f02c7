"""How long people wait, and how fast replies are made. Lists of one value a turn or response, in seconds
unless said otherwise; a turn or response that has no such value is left out."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.metrics.rows import ResponseRow, SessionRow, first_answers
from antiphon.metrics.tokens import num_text_tokens


def ttfp_s(rows: Iterable[ResponseRow]) -> list[float]:
    """Time to first packet: from the last byte of the turn to the first audio delta that answers it, where
    the client committed the turn itself. LiveServe §7.1, audio TTFP."""
    return [
        row.first_audio_s - row.turn_ended_s
        for row in first_answers(rows)
        if row.manual and row.first_audio_s is not None and row.turn_ended_s is not None
    ]


def turn_latency_s(rows: Iterable[ResponseRow]) -> list[float]:
    """What the person feels: from the end of the voice itself to the first audio delta, so with the silence
    that end-pointing needs. Ours; LiveServe's TTFP begins after it."""
    return [
        row.first_audio_s - row.speech_end_s
        for row in first_answers(rows)
        if row.first_audio_s is not None and row.speech_end_s is not None
    ]


def ttft_s(rows: Iterable[ResponseRow]) -> list[float]:
    """Time to first token of text replies: from the end of the turn to the first text delta. TokenFlow
    §7.1.3."""
    return _first_text(row for row in rows if row.wants == "text")


def transcript_ttft_s(rows: Iterable[ResponseRow]) -> list[float]:
    """Time to first token of spoken replies' transcripts: LiveServe §7.3, text TTFT of a voice request."""
    return _first_text(row for row in rows if row.wants == "speech")


def tpot_s(rows: Iterable[ResponseRow]) -> list[float]:
    """Time per output token of text replies: from the first text delta to the last, over the tokens after the
    first. Replies that came in one delta have none. OmniServe §5.1.2, SYMPHONY §4."""
    return [
        float(row.text_at_s[-1] - row.text_at_s[0]) / (num_text_tokens(row) - 1)
        for row in rows
        if row.wants == "text" and row.text_at_s.size > 1 and num_text_tokens(row) > 1
    ]


def jct_s(rows: Iterable[ResponseRow]) -> list[float]:
    """Job completion time of a request: from its submission (the end of the turn) to the response's end, of
    responses that came to their end. vLLM-Omni §4.1."""
    return [jct for _, jct in _jcts(rows)]


def normalised_latency_s(rows: Iterable[ResponseRow]) -> list[float]:
    """Seconds per output token of text replies: their completion time over their tokens. SYMPHONY §4 (which
    reports the mean)."""
    return [
        jct / num_text_tokens(row) for row, jct in _jcts(rows) if row.wants == "text" and num_text_tokens(row)
    ]


def rtf(rows: Iterable[ResponseRow]) -> list[float]:
    """Real-time factor: seconds from the end of the turn to the last audio delta, over the seconds of audio;
    of responses that came to their end. vLLM-Omni §4.1 (end-to-end processing time)."""
    return [
        (float(row.audio_at_s[-1]) - row.turn_ended_s) / row.received_s
        for row in rows
        if row.is_answer and row.turn_ended_s is not None and row.received_s
    ]


def audio_rtf(rows: Iterable[ResponseRow]) -> list[float]:
    """Real-time factor of the audio alone: seconds from the first audio delta to the last, over the seconds
    of audio after the first delta; of responses that came to their end. LiveServe §7.1 (audio generation
    time; what the first delta took to make is in ttfp_s)."""
    return [
        float(row.audio_at_s[-1] - row.audio_at_s[0]) / float(row.audio_s[1:].sum())
        for row in rows
        if row.is_answer and row.audio_s[1:].sum() > 0
    ]


def makespan_s(sessions: Iterable[SessionRow]) -> list[float]:
    """Of a job, which may be a graph of calls: from its arrival to the end of its last call. Only jobs that
    are done. The completion time (vLLM-Omni §4.1) of the whole job."""
    return [
        row.ended_s - row.started_s
        for row in sessions
        if row.kind == "job" and row.reason == "done" and row.ended_s is not None
    ]


def _first_text(rows: Iterable[ResponseRow]) -> list[float]:
    first: dict[tuple[str, int], float] = {}
    for row in rows:
        if row.first_text_s is None or row.turn_ended_s is None or row.first_text_s < row.turn_ended_s:
            continue
        first.setdefault((row.session, row.turn), row.first_text_s - row.turn_ended_s)
    return list(first.values())


def _jcts(rows: Iterable[ResponseRow]) -> list[tuple[ResponseRow, float]]:
    return [
        (row, row.ended_s - row.turn_ended_s)
        for row in rows
        if row.is_answer and row.ended_s is not None and row.turn_ended_s is not None
    ]
