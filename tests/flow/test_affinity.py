"""Who is at home where, counted."""

from __future__ import annotations

from antiphon.flow.stages import SessionAffinity


def test_who_moves_is_counted_once() -> None:
    affinity = SessionAffinity()
    assert affinity.move("a", "thinker", "thinker.0") is None
    assert affinity.move("a", "thinker", "thinker.0") is None
    assert affinity.move("b", "thinker", "thinker.0") is None
    assert affinity.move("a", "thinker", "thinker.1") == "thinker.0"
    assert affinity.find("a", "thinker") == "thinker.1"
    assert (affinity.count("thinker.0"), affinity.count("thinker.1")) == (1, 1)


def test_who_leaves_is_forgotten_and_a_lost_unit_is_nobodys_home() -> None:
    affinity = SessionAffinity()
    for session in "abc":
        affinity.move(session, "thinker", "thinker.0")
        affinity.move(session, "talker", "talker.0")
    affinity.forget("a")
    affinity.forget("unknown")
    assert affinity.count("thinker.0") == 2
    affinity.lose("thinker.0")
    assert affinity.find("b", "thinker") is None
    assert affinity.find("b", "talker") == "talker.0"
    assert affinity.count("thinker.0") == 0
    affinity.move("b", "thinker", "thinker.0")
    assert affinity.count("thinker.0") == 1
