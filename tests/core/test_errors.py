"""Errors carry what they speak of."""

from __future__ import annotations

import pytest

from antiphon.core.errors import AntiphonError, LimitExceeded, Overloaded, ProtocolError, StageFailed


def test_a_limit_names_itself_and_both_numbers() -> None:
    error = LimitExceeded("max_items", 3, 4, "Delete items first")
    assert str(error) == "max_items: 4 is over the limit of 3. Delete items first"
    assert str(LimitExceeded("max_items", 3, 4)) == "max_items: 4 is over the limit of 3"
    assert str(LimitExceeded("max_items", 3, 4, said="too many")) == "max_items: too many"
    assert (error.limit, error.allowed, error.got) == ("max_items", 3, 4)


@pytest.mark.parametrize(
    ("allowed", "got", "said"),
    [
        (67_108_864, 120_000_000, "120000000 is over the limit of 67108864"),
        (100_000, 3e7, "30000000 is over the limit of 100000"),
        (600.0, 600.00004, "600.001 is over the limit of 600"),
        (0.5, 1.25, "1.25 is over the limit of 0.5"),
        (30.0, float("inf"), "over the limit of 30"),
    ],
)
def test_numbers_of_a_limit_are_written_in_full(allowed: float, got: float, said: str) -> None:
    assert str(LimitExceeded("max_x", allowed, got)) == f"max_x: {said}"


def test_what_a_limit_was_passed_by_follows_a_colon() -> None:
    error = LimitExceeded("max_text_chars", 4, 5, "the text of messages[0] is too long")
    assert str(error) == "max_text_chars: 5 is over the limit of 4: the text of messages[0] is too long"


def test_every_error_is_ours() -> None:
    errors = [Overloaded("full", 2.0), ProtocolError("no", param="x"), StageFailed("talker", (1,), "broke")]
    assert all(isinstance(error, AntiphonError) for error in errors)
    assert str(errors[2]) == "stage talker: broke"
