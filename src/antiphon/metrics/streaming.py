"""Text that is read as it comes: TokenFlow's reader, quality of service and effective throughput.

The reader begins with the first token and needs 1/rate seconds for each; a token that is late is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.metrics.rows import ResponseRow
from antiphon.metrics.tokens import token_times

TAU_1 = 0.1
TAU_2 = 0.2
"""Shares of a reply's length: up to the first, a buffer is harmless; beyond the second, a token counts
nothing. TokenFlow §7.1.3."""

TIE_S = 1e-9
"""Two times this near are the same moment."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One reply and its reader.

    ttft_s   seconds from the end of the turn to the first token
    asked_s  when the turn ended
    at_s     [tokens] float64, when each token came, ascending
    rate     tokens read per second
    """

    asked_s: float
    at_s: NDArray[np.float64]
    rate: float

    @property
    def ttft_s(self) -> float:
        return float(self.at_s[0]) - self.asked_s


def readings(rows: Iterable[ResponseRow]) -> list[Reading]:
    """The text replies that somebody read at a known rate."""
    return [
        Reading(row.turn_ended_s, token_times(row), row.reading_tokens_per_s)
        for row in rows
        if row.wants == "text"
        and row.reading_tokens_per_s
        and row.turn_ended_s is not None
        and row.text_at_s.size
        and token_times(row).size
    ]


def read_from_s(at_s: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """[tokens] float64: when the reader turns to each token: at the later of its coming and the end of the
    one before."""
    paced_s = np.arange(at_s.size) / rate
    return np.maximum.accumulate(at_s - paced_s) + paced_s


def buffer_tokens(at_s: NDArray[np.float64], rate: float) -> NDArray[np.int64]:
    """[tokens] int64, B of TokenFlow §3.2: the tokens that wait to be read when token j comes, j itself
    apart."""
    before = np.arange(at_s.size)
    begun = np.searchsorted(read_from_s(at_s, rate), at_s + TIE_S, side="right")
    return (before - np.minimum(begun, before)).astype(np.int64)


def token_weights(buffers: NDArray[np.int64], tau_tokens: float, alpha: float) -> NDArray[np.float64]:
    """[tokens] float64 in 0..1: a token's use, which falls by `alpha` per token of buffer over
    `tau_tokens`."""
    # TokenFlow eq. 1
    return np.where(buffers <= tau_tokens, 1.0, np.maximum(1 - alpha * (buffers - tau_tokens), 0.0))


def effective_tokens(reading: Reading) -> float:
    """Tokens of a reply, each by its use: whole up to a buffer of TAU_1 of the reply's length, nothing from
    TAU_2.

    TokenFlow §7.1.3: eq. 1 with tau = TAU_1 L and alpha = 1 / ((TAU_2 - TAU_1) L).
    """
    length = reading.at_s.size
    buffers = buffer_tokens(reading.at_s, reading.rate)
    return float(token_weights(buffers, TAU_1 * length, 1 / ((TAU_2 - TAU_1) * length)).sum())


def rebuffer_s(reading: Reading) -> float:
    """Seconds that the reader waited for tokens after the first. TokenFlow §3.2."""
    late_s = np.diff(read_from_s(reading.at_s, reading.rate)) - 1 / reading.rate
    return float(late_s[late_s > TIE_S].sum())


def process_s(read: Sequence[Reading]) -> float:
    """T of TokenFlow eq. 2: seconds from the first turn's end to the last token."""
    return max(float(r.at_s[-1]) for r in read) - min(r.asked_s for r in read) if read else 0.0


def qos(read: Sequence[Reading], lambda_: float = 1.0, mu: float = 1.0) -> float | None:
    """Quality of service in effective tokens per second, less `lambda_` tokens per second of TTFT and `mu`
    per second of rebuffering. TokenFlow eq. 2, with the weights of its effective throughput; the paper gives
    no values for lambda and mu, and 1 is ours. None: nothing was read."""
    total_s = process_s(read)
    if not total_s:
        return None
    return sum(effective_tokens(r) - lambda_ * r.ttft_s - mu * rebuffer_s(r) for r in read) / total_s


def effective_tokens_per_s(read: Sequence[Reading]) -> float | None:
    """Effective throughput, TokenFlow §7.1.3. None: nothing was read."""
    total_s = process_s(read)
    return sum(effective_tokens(r) for r in read) / total_s if total_s else None


def streamed_tokens_per_s(read: Sequence[Reading]) -> float | None:
    """The throughput of the same replies over the same time, every token counted whole. TokenFlow §7.1.3."""
    total_s = process_s(read)
    return sum(r.at_s.size for r in read) / total_s if total_s else None
