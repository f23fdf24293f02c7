"""Default rows and tokens of a decoder's step, by the time that steps take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from antiphon.latency.features import row_features
from antiphon.latency.models import ArModel

CONTEXT_TOKENS = 1024
"""Assumed of a row that writes."""
TOKEN_S = 0.2
"""Bound of a decode step, where the class promises no TPOT: five tokens a second are read as they come."""
STEP_S = 1.0
"""Bound of a step of prompts without live replies beside it: a new request may wait so long."""
MOST_ROWS = 256
MOST_TOKENS = 8192


def decode_s(model: ArModel, rows: int) -> float:
    """Seconds of a step in which so many rows write a token each."""
    return model.seconds(row_features(np.ones(rows, np.int64), np.full(rows, CONTEXT_TOKENS - 1)))


def prompt_s(model: ArModel, tokens: int) -> float:
    """Seconds of a step that reads one prompt of so many tokens."""
    return model.seconds(row_features(np.array([tokens]), np.zeros(1, np.int64)))


def rows_within(model: ArModel, seconds: float, least: int) -> int:
    """The most rows, `least` doubled some times, whose decode step takes at most `seconds`; `least` at least,
    MOST_ROWS at most."""
    return _doubled(least, MOST_ROWS, lambda rows: decode_s(model, rows) <= seconds)


def tokens_within(model: ArModel, seconds: float, least: int) -> int:
    """The most tokens of a prompt, `least` doubled some times, whose step takes at most `seconds`;
    MOST_TOKENS at most."""
    return _doubled(least, MOST_TOKENS, lambda tokens: prompt_s(model, tokens) <= seconds)


def _doubled(size: int, most: int, fits: Callable[[int], bool]) -> int:
    while 2 * size <= most and fits(2 * size):
        size *= 2
    return size
