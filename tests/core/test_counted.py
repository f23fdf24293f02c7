"""One is no several."""

from __future__ import annotations

from antiphon.core.counted import counted


def test_one_thing_is_in_the_singular() -> None:
    assert [counted(num, "row") for num in range(3)] == ["0 rows", "1 row", "2 rows"]
    assert [counted(num, "reply", "replies") for num in (1, 2)] == ["1 reply", "2 replies"]
