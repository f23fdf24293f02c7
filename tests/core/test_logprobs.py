"""Log-probabilities cross borders as bytes, and sampling says what it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from antiphon.core.errors import ConfigError
from antiphon.core.logprobs import PAIR, TokenLog, read_logs
from antiphon.core.sampling import Sampling


def test_they_are_read_as_they_were_written() -> None:
    pairs = np.array([[(5, -0.5), (6, -0.25)], [(7, -1.0), (8, -2.0)]], PAIR)
    assert read_logs(pairs.tobytes(), 1) == [
        TokenLog(5, -0.5, ((6, -0.25),)),
        TokenLog(7, -1.0, ((8, -2.0),)),
    ]
    assert [log.top for log in read_logs(pairs.tobytes(), 0)] == [()] * 4
    assert read_logs(b"", 3) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"logprobs": 21},
        {"logprobs": -1},
        {"min_tokens": -1},
        {"bias": ((-1, 0.5),)},
        {"bias": ((1, float("inf")),)},
    ],
)
def test_what_cannot_be_drawn_so_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Sampling(**wrong)
