"""Where items stand in a record."""

from __future__ import annotations

import pytest

from antiphon.core.conversation import Item, TokensPart
from antiphon.flow.record import Record


def record(*names: str) -> Record:
    made = Record()
    for name in names:
        made.add(Item(name, "user", ()), None)
    return made


@pytest.mark.parametrize(
    ("after", "order"),
    [(None, "abcx"), ("root", "xabc"), ("a", "axbc"), ("c", "abcx"), ("unknown", "abcx")],
)
def test_an_item_is_added_after_another(after: str | None, order: str) -> None:
    made = record("a", "b", "c")
    made.add(Item("x", "user", ()), after)
    assert "".join(item.id for item in made.items) == order


def test_the_first_item_needs_no_place() -> None:
    for after in (None, "root", "unknown"):
        made = Record()
        assert made.last_id == "root"
        made.add(Item("a", "user", ()), after)
        assert made.last_id == "a"


def test_removing() -> None:
    made = record("a", "b", "c")
    made.remove("b")
    made.remove("unknown")
    assert [item.id for item in made.items] == ["a", "c"]


def test_a_cut_leaves_what_was_heard_and_may_move_either_way() -> None:
    made = record("a")
    made.add(Item("b", "assistant", (TokensPart((1, 2, 3, 4)),)), None)
    for num_tokens in (3, 1, 4, 9):
        made.cut("b", num_tokens)
        assert made.items[1].parts == (TokensPart((1, 2, 3, 4)[:num_tokens]),)
    made.cut("b", 0)
    assert [item.id for item in made.items] == ["a"]
    assert made.last_id == "b"  # it is still there to be inserted after
    made.remove("b")
    assert made.last_id == "a"
