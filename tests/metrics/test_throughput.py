"""Rates over the steady window, and the restart rule, by hand."""

from __future__ import annotations

import pytest

from antiphon.metrics import throughput
from antiphon.metrics.log import Interrupted, SessionRefused
from antiphon.metrics.rows import SessionRow
from fakes.logs import reply, rows, run, session, turn


def sessions(*spans: tuple[float, float | None]) -> tuple[SessionRow, ...]:
    parts = [session(f"s{i}", start, end) for i, (start, end) in enumerate(spans)]
    return run(*parts).sessions


def test_the_window_holds_half_the_peak() -> None:
    # open sessions: 1 from 0, 2 from 1, 3 from 2, 4 from 3; 3 from 6, 2 from 7, 1 from 9, 0 from 20
    assert throughput.steady_window(sessions((0, 6), (1, 7), (2, 20), (3, 9)), 20.0) == (1.0, 9.0)


def test_one_session_after_another_is_steady_all_along() -> None:
    assert throughput.steady_window(sessions((0, 2), (2, 4), (5, 6)), 6.0) == (0.0, 6.0)


def test_a_window_without_ends_or_sessions() -> None:
    assert throughput.steady_window(sessions((1, None)), 4.0) == (1.0, 4.0)
    assert throughput.steady_window((), 4.0) is None
    assert throughput.steady_window(sessions((1, 1)), 4.0) is None
    refused = run(session("a", 0.0, 5.0), [SessionRefused(t_s=0.0, session="a", code="429")])
    assert throughput.steady_window(refused.sessions, 5.0) is None
    beside = sessions((1, 1), (0, None), (0, None))
    assert throughput.steady_window(beside, 4.0) == (0.0, 4.0)


def barge(t_s: float, response: str = "r", kind: str = "barge_in") -> list[Interrupted]:
    return [Interrupted(t_s=t_s, session="a", response=response, kind=kind, heard_s=1.0)]  # pyright: ignore


def test_an_answer_completes_its_turn_once() -> None:
    served = rows(
        turn(),
        reply(end_s=2.0),
        barge(4.0),
        reply(response="twice", start_s=5.0, end_s=6.0),
        reply(number=1, response="other", start_s=7.0, end_s=8.0),
        reply("b", end_s=3.0),
    )
    assert sorted(throughput.completion_times(served)) == [2.0, 3.0, 8.0]


def test_a_barge_in_completes_the_turn_when_the_person_takes_it() -> None:
    served = rows(turn(), reply(audio=[(1.5, 9.0)], end_s=3.5, status="cancelled"), barge(3.0))
    assert throughput.completion_times(served) == [3.0]


def test_what_failed_counts_when_it_is_answered_after_all() -> None:
    lost = [turn(), reply(response="first", end_s=2.0, status="failed")]
    assert throughput.completion_times(rows(*lost)) == []
    again = reply(response="again", start_s=3.0, end_s=5.0)
    assert throughput.completion_times(rows(*lost, again)) == [5.0]
    stopped = reply(response="first", end_s=2.0, status="cancelled")
    assert throughput.completion_times(rows(stopped, barge(1.5, "first", "failed_barge_in"))) == []


def test_rates_count_what_lies_in_the_window() -> None:
    folded = run(
        session(end_s=9.0),
        *(turn(number=i, end_s=end_s) for i, end_s in enumerate((1.0, 2.0, 3.0, 7.0))),
        reply(number=0, response="x", end_s=2.5),
        reply(number=1, response="y", end_s=6.5),
    )
    assert throughput.offered_times(folded.sessions) == [1.0, 2.0, 3.0, 7.0]
    assert throughput.offered_rps(folded.sessions, (2.0, 6.0)) == 0.5  # two in 4 s
    assert throughput.completed_rps(folded.responses, (2.0, 6.0)) == 0.25
    assert throughput.offered_rps(run(session()).sessions, (2.0, 6.0)) is None


def test_unanswered_turns_are_those_of_sessions_that_are_over() -> None:
    folded = run(
        session("a", 0.0, 9.0, "lost"),
        turn("a", 0),
        turn("a", 1),
        [*turn("a", 2)[:1]],  # never with the server
        reply("a", 0, end_s=2.0),
        session("b", 0.0, 9.0, "stopped"),
        turn("b"),
        session("c"),
        turn("c"),
    )
    assert throughput.unanswered_turns(folded.sessions, folded.responses) == 1
    assert throughput.unanswered_turns(run(session(end_s=2.0)).sessions, ()) is None


def test_tokens_per_second_by_stage() -> None:
    served = rows(
        reply(
            text=[(1.0, 4), (3.0, 4)],
            audio=[(2.0, 1.0), (5.0, 3.0)],
            end_s=5.0,
            output_text_tokens=8,
            output_audio_tokens=50,
        ),
        reply("b", text=[(2.0, 1)], wants="text", end_s=2.5, output_text_tokens=2),
    )
    # within 0..4: 8 + 2 text tokens, a quarter of 50 frames
    assert throughput.tokens_per_s(served, (0.0, 4.0)) == {"thinker": 2.5, "talker": pytest.approx(3.125)}
    assert throughput.tokens_per_s(rows(reply(text=[(1.0, 4)])), (0.0, 4.0)) == {}


def test_best_effort_rates() -> None:
    usage = {"input_tokens": 100, "cached_tokens": 40, "output_text_tokens": 4}
    jobs = rows(
        reply("j", text=[(1.0, 2), (3.0, 2)], wants="text", end_s=3.0, **usage),
        reply("k", text=[(5.0, 2)], wants="text", end_s=5.0, input_tokens=1000),
        reply("l", text=[(1.0, 2)], wants="text", end_s=2.0, input_tokens=20),
        reply("m", wants="text", end_s=2.0, input_tokens=20),
    )
    assert throughput.decode_tokens_per_s(jobs, (0.0, 2.0)) == 1.5  # two of j, one of l
    assert throughput.prefill_tokens_per_s(jobs, (0.0, 2.0)) == 40.0  # 60 + 20
    assert throughput.decode_tokens_per_s((), (0.0, 2.0)) is None
    assert throughput.prefill_tokens_per_s(rows(reply(end_s=2.0)), (0.0, 2.0)) is None
