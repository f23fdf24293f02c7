"""How much is served per second, over the run's steady window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antiphon.metrics.rows import ResponseRow, SessionRow
from antiphon.metrics.tokens import TALKER, WRITER, Window, audio_tokens_within, text_tokens_within


def steady_window(sessions: Iterable[SessionRow], last_s: float) -> Window | None:
    """From the first to the last moment at which at least half of the run's peak number of sessions was open,
    so that neither the ramp nor the drain dilutes a rate. Sessions without an end last until `last_s`.

    LiveServe §7.1 counts "over the steady-state window" without saying which; this one is ours. None: no
    session was served for any time.
    """
    spans = [
        (row.started_s, last_s if row.ended_s is None else row.ended_s) for row in sessions if not row.refused
    ]
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    counts: list[tuple[float, int]] = []
    num_open = 0
    for at_s, change in changes:
        num_open += change
        counts.append((at_s, num_open))
    half = max((count for _, count in counts), default=0) / 2
    busy = [i for i, (_, count) in enumerate(counts) if count > 0 and count >= half]
    if not busy:
        return None
    start, end = counts[busy[0]][0], counts[busy[-1] + 1][0]
    return (start, end) if end > start else None


def completion_times(rows: Iterable[ResponseRow]) -> list[float]:
    """When each completed turn was completed, once per turn. The restart rule:

    - a turn is completed by the end of the first response to it that comes to its own end (`is_answer`);
    - a barge-in completes it too, when the person takes the turn: they had what they wanted of the reply;
    - a response that failed, was lost, or was cancelled without a barge-in completes nothing. If it is asked
      for again, or the server begins it anew, the turn counts when an answer comes to its end, and once only.

    No paper states a rule; LiveServe §7.2 counts "completed requests".
    """
    done: dict[tuple[str, int], float] = {}
    for row in rows:
        times = [row.ended_s if row.is_answer else None, row.interrupted_at_s if row.barged_in else None]
        for at_s in times:
            if at_s is not None:
                key = (row.session, row.turn)
                done[key] = min(at_s, done.get(key, at_s))
    return list(done.values())


def offered_times(sessions: Iterable[SessionRow]) -> list[float]:
    """When each turn was with the server whole: the load offered to it."""
    return [turn.ended_s for row in sessions for turn in row.turns if turn.ended_s is not None]


def unanswered_turns(sessions: Iterable[SessionRow], rows: Iterable[ResponseRow]) -> int | None:
    """Turns that were never completed though their session is over (sessions stopped with the run excepted).
    None: no turn was asked."""
    served = tuple(rows)
    over = [
        (row.session, turn.turn)
        for row in sessions
        if row.reason in ("done", "lost", "failed")
        for turn in row.turns
        if turn.ended_s is not None
    ]
    done = {(row.session, row.turn) for row in served if row.is_answer or row.barged_in}
    return sum(key not in done for key in over) if over else None


def per_second(times: Sequence[float], window: Window) -> float:
    """Events per second of the window."""
    start, end = window
    return sum(start <= at_s <= end for at_s in times) / (end - start)


def offered_rps(sessions: Iterable[SessionRow], window: Window) -> float | None:
    """Turns asked per second of the window: the offered load of LiveServe §7.1. None: no turn was asked."""
    times = offered_times(sessions)
    return per_second(times, window) if times else None


def completed_rps(rows: Iterable[ResponseRow], window: Window) -> float:
    """Turns completed (see `completion_times`) per second of the window. LiveServe §7.1, RPS."""
    return per_second(completion_times(rows), window)


def tokens_per_s(rows: Iterable[ResponseRow], window: Window) -> dict[str, float]:
    """Tokens per second by stage, from usage: text tokens for the thinker, codec frames for the talker.
    vLLM-Omni §4.1, thinker and talker TPS. Absent: a stage of which no usage speaks."""
    used = tuple(rows)
    rates: dict[str, float] = {}
    if any(row.output_text_tokens for row in used):
        rates[WRITER] = sum(text_tokens_within(row, window) for row in used) / (window[1] - window[0])
    if any(row.output_audio_tokens for row in used):
        rates[TALKER] = sum(audio_tokens_within(row, window) for row in used) / (window[1] - window[0])
    return rates


def decode_tokens_per_s(rows: Sequence[ResponseRow], window: Window) -> float | None:
    """Text tokens written per second. Over best-effort rows: OmniServe §5.1.2, decode. None: no rows."""
    return sum(text_tokens_within(row, window) for row in rows) / (window[1] - window[0]) if rows else None


def prefill_tokens_per_s(rows: Iterable[ResponseRow], window: Window) -> float | None:
    """Prompt tokens computed per second, those from the cache excepted; a prompt counts when its first text
    comes. Over best-effort rows: OmniServe §5.1.2, prefill. None: no usage speaks of prompts."""
    prompts = [
        (row.first_text_s, row.input_tokens - (row.cached_tokens or 0))
        for row in rows
        if row.input_tokens is not None and row.first_text_s is not None
    ]
    start, end = window
    return sum(n for at_s, n in prompts if start <= at_s <= end) / (end - start) if prompts else None
