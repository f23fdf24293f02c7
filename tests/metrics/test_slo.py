"""Bounds: who met them, and what is said where they were missed."""

from __future__ import annotations

import pytest

from antiphon.metrics.log import Event, Interrupted
from antiphon.metrics.slo import Slo, slo_attainment
from fakes.logs import reply, run, session, turn

SLO = Slo(ttfp_p90_s=0.5, ttft_s=1.0, tpot_s=0.25)


def test_misses_are_sentences() -> None:
    held = {"ttfp_s.p90": 0.5, "ttft_s.p90": 1.0, "tpot_s.p90": 0.25, "continuity": 0.95}
    assert SLO.misses(held) == []
    missed = {"ttfp_s.p90": 0.75, "ttft_s.p90": 1.5, "tpot_s.p90": 0.5, "continuity": 0.918}
    assert SLO.misses(missed) == [
        "ttfp_s.p90 is 0.75 s, over the bound of 0.5 s",
        "ttft_s.p90 is 1.5 s, over the bound of 1 s",
        "tpot_s.p90 is 0.5 s, over the bound of 0.25 s",
        "continuity is 91.8%, under the bound of 95.0%",
    ]


def test_absent_figures_are_no_miss_but_an_unanswered_run_is() -> None:
    assert SLO.misses({"ttft_s.p90": 0.5}) == []
    assert SLO.misses({"ttfp_s.p90": 0.5}) == []
    assert SLO.misses({"turns": 3.0}) == ["no turn was answered"]


def test_turns_that_failed_or_stayed_unanswered_are_missed() -> None:
    held = {"ttfp_s.p90": 0.1, "continuity": 1.0, 'responses{status="completed"}': 90.0}
    assert SLO.misses(held | {"unanswered_turns": 0.0}) == []
    failed = {"unanswered_turns": 3.0, 'responses{status="failed"}': 7.0}
    assert SLO.misses(held | failed) == ["responses that failed: 7", "turns that were not answered: 3"]


def test_what_people_and_the_run_s_end_cut_off_is_no_miss() -> None:
    cut = {'responses{status="cancelled"}': 9.0, 'responses{status="open"}': 2.0}
    assert SLO.misses({"ttfp_s.p90": 0.1, **cut}) == []
    assert SLO.misses({"ttfp_s.p90": 0.1, "unanswered_turns": 2.0, "false_stops": 3.0}) == []


def test_turn_latency_takes_the_place_of_ttfp_where_the_server_ends_turns() -> None:
    assert SLO.misses({"turn_latency_s.p90": 0.75}) == [
        "turn_latency_s.p90 is 0.75 s, over the bound of 0.5 s"
    ]
    assert SLO.misses({"turn_latency_s.p90": 0.75, "ttfp_s.p90": 0.25}) == []


def test_speech_must_be_there_to_be_well() -> None:
    assert SLO.speaks_well({"ttfp_s.p90": 0.5, "continuity": 0.95})
    assert not SLO.speaks_well({"ttfp_s.p90": 0.5, "continuity": 0.94})
    assert not SLO.speaks_well({"ttfp_s.p90": 0.6, "continuity": 1.0})
    assert not SLO.speaks_well({"ttfp_s.p90": 0.5})
    assert not SLO.speaks_well({"continuity": 1.0})


def attainment(*parts: list[Event], **more: str) -> float | None:
    """Of one person who asks at 1.0 and leaves at 9.0."""
    folded = run(session(end_s=9.0, **more), turn(), *parts)
    return slo_attainment(folded.sessions, folded.responses, SLO)


def barge(t_s: float) -> list[Event]:
    return [Interrupted(t_s=t_s, session="a", response="r", kind="barge_in", heard_s=1.0)]


@pytest.mark.parametrize(
    ("events", "met"),
    [
        (reply(audio=[(1.5, 1.0)], end_s=2.0), 1.0),
        (reply(audio=[(1.75, 1.0)], end_s=2.0), 0.0),  # late
        (reply(audio=[(1.5, 1.0), (2.75, 1.0)], end_s=3.0), 0.0),  # silent for 0.25 s
        (reply(audio=[(1.5, 1.0)], end_s=2.0, status="failed"), 0.0),
        ([*reply(audio=[(1.5, 1.0)]), *barge(2.0)], 1.0),
        ([*reply(audio=[(1.5, 0.5), (2.25, 1.0)]), *barge(3.0)], 0.0),  # silent for 0.25 s before it
        (reply(text=[(2.0, 1), (2.25, 1)], wants="text", end_s=3.0), 1.0),
        (reply(text=[(2.25, 1), (2.5, 1)], wants="text", end_s=3.0), 0.0),  # begins late
        (reply(text=[(2.0, 1), (2.5, 1)], wants="text", end_s=3.0), 0.0),  # goes on too slowly
        ([], 0.0),
    ],
)
def test_attainment_of_one_turn(events: list[Event], met: float) -> None:
    assert attainment(events) == met


def test_where_the_server_ends_turns_the_wait_begins_at_the_voice_s_end() -> None:
    folded = run(
        session(end_s=9.0),
        turn(end_s=2.0, voice_end_s=1.0, manual=False),
        reply(audio=[(1.5, 1.0)], end_s=2.0),
        turn(number=1, end_s=4.0, voice_end_s=3.0, manual=False),
        reply(number=1, response="late", audio=[(4.25, 1.0)], end_s=4.5),
    )
    assert slo_attainment(folded.sessions, folded.responses, SLO) == 0.5


def test_what_the_end_of_the_run_cut_off_is_left_out() -> None:
    assert attainment(reply(audio=[(1.5, 1.0)]), reason="stopped") is None
    assert attainment(reason="stopped") is None
    assert attainment(reply(audio=[(1.5, 1.0)]), reason="lost") == 0.0


def test_only_the_latency_tier_has_objectives() -> None:
    folded = run(session(end_s=9.0, kind="job", tier="best_effort"), turn(), reply(wants="text", end_s=2.0))
    assert slo_attainment(folded.sessions, folded.responses, SLO) is None
