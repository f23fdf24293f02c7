"""Errors carry what they speak of."""

from __future__ import annotations

from antiphon.core.errors import AntiphonError, LimitExceeded, Overloaded, ProtocolError, StageFailed


def test_a_limit_names_itself_and_both_numbers() -> None:
    error = LimitExceeded("max_items", 3, 4, "Delete items first")
    assert str(error) == "max_items: 4 is over the limit of 3. Delete items first"
    assert str(LimitExceeded("max_items", 3, 4)) == "max_items: 4 is over the limit of 3"
    assert str(LimitExceeded("max_items", 3, 4, said="too many")) == "max_items: too many"
    assert (error.limit, error.allowed, error.got) == ("max_items", 3, 4)


def test_every_error_is_ours() -> None:
    errors = [Overloaded("full", 2.0), ProtocolError("no", param="x"), StageFailed("talker", (1,), "broke")]
    assert all(isinstance(error, AntiphonError) for error in errors)
    assert str(errors[2]) == "stage talker: broke"
