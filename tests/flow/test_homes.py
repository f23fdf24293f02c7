"""Who is at home where, counted."""

from __future__ import annotations

from antiphon.flow.homes import Homes


def test_who_moves_is_counted_once() -> None:
    homes = Homes()
    assert homes.move("a", "thinker", "thinker.0") is None
    assert homes.move("a", "thinker", "thinker.0") is None
    assert homes.move("b", "thinker", "thinker.0") is None
    assert homes.move("a", "thinker", "thinker.1") == "thinker.0"
    assert homes.find("a", "thinker") == "thinker.1"
    assert (homes.count("thinker.0"), homes.count("thinker.1")) == (1, 1)


def test_who_leaves_is_forgotten_and_a_lost_unit_is_nobodys_home() -> None:
    homes = Homes()
    for session in "abc":
        homes.move(session, "thinker", "thinker.0")
        homes.move(session, "talker", "talker.0")
    homes.forget("a")
    homes.forget("unknown")
    assert homes.count("thinker.0") == 2
    homes.lose("thinker.0")
    assert homes.find("b", "thinker") is None
    assert homes.find("b", "talker") == "talker.0"
    assert homes.count("thinker.0") == 0
    homes.move("b", "thinker", "thinker.0")
    assert homes.count("thinker.0") == 1
