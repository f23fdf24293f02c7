"""Log-probabilities of tokens as they cross borders: bytes that only who asked for them reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_TOP = 20
"""Likeliest tokens that may be told with each token."""
PAIR: np.dtype[Any] = np.dtype([("token", "<i4"), ("logprob", "<f4")])


@dataclass(frozen=True, slots=True)
class TokenLog:
    """A token with its natural log-probability, before temperature and all else that shapes a draw; nan for a
    prompt's first token, which nothing comes before. top: the likeliest tokens in its place, in order."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def log_bytes(num_tokens: int, num_top: int) -> int:
    """Of so many tokens, each with `num_top` others."""
    return num_tokens * (1 + num_top) * PAIR.itemsize


def read_logs(data: bytes, num_top: int) -> list[TokenLog]:
    """Tokens in order, each with `num_top` others."""
    pairs = np.frombuffer(data, PAIR).reshape(-1, 1 + num_top)
    return [TokenLog(token, logprob, tuple(top)) for (token, logprob), *top in pairs.tolist()]
