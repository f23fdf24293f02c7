"""Which pauses end a turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.interaction.pauses import (
    LONGEST_WAIT_MS,
    SHORTEST_WAIT_MS,
    Pause,
    Semantic,
    Silence,
    completeness,
)

KNOWN = (200.0, 300.0, 400.0)


def waited(rule: Semantic | Silence, **pause: object) -> float:
    """The silence after which the rule ends the turn, in steps of 10 ms."""
    return next(ms for ms in range(0, 20_000, 10) if rule.ends(Pause(float(ms), **pause)))  # type: ignore[arg-type]


def test_silence_is_fixed() -> None:
    assert waited(Silence(500), speech_ms=100, known_ms=KNOWN) == 500


@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto"])
def test_a_score_moves_the_wait_between_its_bounds(eagerness: str) -> None:
    rule = Semantic(eagerness)  # type: ignore[arg-type]
    assert rule.wait_ms(0.0) == LONGEST_WAIT_MS[eagerness]  # type: ignore[index]
    assert rule.wait_ms(1.0) == SHORTEST_WAIT_MS


def test_without_any_sign_the_silence_rule_decides() -> None:
    rule = Semantic("low", silence_ms=500)
    assert waited(rule, speech_ms=5000) == 500


def test_who_pauses_long_inside_a_turn_is_waited_for_longer() -> None:
    quick, slow = (200.0, 200.0), (900.0, 900.0)
    said = {"speech_ms": 2000.0, "fall_frames": 2}
    assert waited(Semantic(), known_ms=quick, **said) < waited(Semantic(), known_ms=slow, **said)


def test_a_voice_that_faded_after_a_sentence_is_done_sooner_than_a_broken_word() -> None:
    whole = waited(Semantic(), speech_ms=2000.0, fall_frames=5, known_ms=KNOWN)
    broken = waited(Semantic(), speech_ms=200.0, fall_frames=0, known_ms=KNOWN)
    assert whole < broken


@given(
    st.floats(0, 20_000),
    st.floats(0, 60_000),
    st.lists(st.floats(96, 3000), max_size=16).map(tuple),
    st.integers(0, 8),
)
def test_any_pause_ends_in_the_longest_wait(
    silence_ms: float, speech_ms: float, known_ms: tuple[float, ...], fall: int
) -> None:
    pause = Pause(silence_ms, speech_ms, known_ms, fall)
    score = completeness(pause)
    assert (score is None) == (len(known_ms) < 2)
    assert score is None or 0.0 <= score <= 1.0
    assert Semantic("low").ends(Pause(8000.0, speech_ms, known_ms, fall))
    assert silence_ms >= SHORTEST_WAIT_MS or not Semantic("high").ends(pause)
