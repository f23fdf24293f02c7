"""When the tokens of a reply came. Deltas carry characters; the count of tokens comes with the usage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.metrics.rows import ResponseRow

Window = tuple[float, float]
"""From, to: seconds, both ends included."""
WRITER, TALKER = "thinker", "talker"
"""Under which stages figures show the text tokens and the codec frames of a usage: a log names no graph, and
these are the stages of every graph that make them."""


def num_text_tokens(row: ResponseRow) -> int:
    """Tokens of the text, as the usage says; without a usage, one delta is one token."""
    return row.text_at_s.size if row.output_text_tokens is None else row.output_text_tokens


def token_times(row: ResponseRow) -> NDArray[np.float64]:
    """[tokens] float64: when each text token came, ascending.

    The usage's tokens are spread evenly over the characters of all deltas: token k of n comes with the delta
    that holds character k/n of the reply. Without a usage (or without characters) each delta is one token.
    Tokens of a reply that sent no delta come with its end.
    """
    count, chars = num_text_tokens(row), int(row.text_chars.sum())
    if not row.text_at_s.size:
        return np.full(count if row.ended_s is not None else 0, row.ended_s or 0.0)
    if row.output_text_tokens is None or not chars:
        return row.text_at_s
    # exact in integers: the first delta whose running count c has c / chars >= k / n
    k = np.arange(1, count + 1, dtype=np.int64)
    return row.text_at_s[np.searchsorted(np.cumsum(row.text_chars) * count, k * chars)]


def text_tokens_within(row: ResponseRow, window: Window) -> int:
    """Text tokens that came inside the window."""
    return int(within(token_times(row), window).sum())


def audio_tokens_within(row: ResponseRow, window: Window) -> float:
    """Codec frames of the usage, spread over the audio deltas by their length; all at the end without any."""
    frames = row.output_audio_tokens or 0
    if not row.received_s:
        return float(frames) if row.ended_s is not None and window[0] <= row.ended_s <= window[1] else 0.0
    return frames * float(row.audio_s[within(row.audio_at_s, window)].sum()) / row.received_s


def within(at_s: NDArray[np.float64], window: Window) -> NDArray[np.bool_]:
    """[n] bool: which times lie inside the window."""
    return (at_s >= window[0]) & (at_s <= window[1])
