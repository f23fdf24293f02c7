"""Sampling parameters that no sampler could use are refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from antiphon.core.errors import ConfigError
from antiphon.core.sampling import Sampling


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -1),
        ("top_k", 1 << 63),
        ("min_tokens", -1),
        ("min_tokens", 1 << 63),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("repetition_penalty", math.inf),
        ("max_tokens", 0),
        ("suppress", (5, -1)),
        ("seed", 1 << 63),
        ("seed", -(1 << 63) - 1),
    ],
)
def test_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field} is .*must"):
        Sampling(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 0), ("top_p", 1), ("max_tokens", 1), ("seed", -(1 << 63))]
)
def test_allowed(field: str, value: Any) -> None:
    assert getattr(Sampling(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value", "drawn"),
    [("temperature", 1e-40, 0.0), ("temperature", 1e-5, 1e-5), ("top_p", 1e-46, 1e-6), ("top_p", 1e-6, 1e-6)],
)
def test_what_fp32_cannot_tell_from_the_likeliest_is_it(field: str, value: float, drawn: float) -> None:
    """A logit over 1e-40 is infinite."""
    assert getattr(Sampling(**{field: value}), field) == drawn
