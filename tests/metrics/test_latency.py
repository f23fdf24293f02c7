"""Latencies against times read off by hand."""

from __future__ import annotations

import pytest

from antiphon.metrics import latency
from antiphon.metrics.log import SessionEnded
from fakes.logs import reply, rows, run, session, turn


def test_ttfp_begins_at_the_commit_and_turn_latency_at_the_end_of_the_voice() -> None:
    spoken = rows(turn(end_s=2.0, voice_end_s=1.25), reply(start_s=2.0, audio=[(2.5, 0.1), (2.75, 0.1)]))
    assert latency.ttfp_s(spoken) == [0.5]
    assert latency.turn_latency_s(spoken) == [1.25]


def test_a_turn_that_the_server_ends_has_no_ttfp() -> None:
    spoken = rows(turn(end_s=2.0, voice_end_s=1.5, manual=False), reply(start_s=1.9, audio=[(1.75, 0.1)]))
    assert latency.ttfp_s(spoken) == []
    assert latency.turn_latency_s(spoken) == [0.25]


def test_an_answer_after_a_failure_counts_the_whole_wait_once() -> None:
    spoken = rows(
        turn(),
        reply(response="lost", end_s=2.0, status="failed"),
        reply(response="again", start_s=2.5, audio=[(3.0, 1.0)], end_s=3.5),
        reply(response="more", start_s=5.0, audio=[(6.0, 1.0)], end_s=6.5),
    )
    assert latency.ttfp_s(spoken) == [2.0]  # 3.0 - 1.0


def test_a_reply_into_the_turn_is_no_answer() -> None:
    spoken = rows(
        turn(end_s=3.0),
        reply(
            response="early", start_s=1.0, audio=[(2.0, 0.5)], text=[(2.0, 1)], end_s=2.5, status="cancelled"
        ),
        reply(response="late", start_s=3.0, audio=[(3.25, 0.5)], text=[(3.125, 1)], end_s=3.5),
    )
    assert latency.turn_latency_s(spoken) == [0.25]
    assert latency.transcript_ttft_s(spoken) == [0.125]


def test_what_has_no_turn_or_no_output_has_no_latency() -> None:
    silent = rows(reply(audio=[(2.0, 1.0)], text=[(2.0, 1)], end_s=3.0), turn("b"), reply("b", end_s=2.0))
    assert latency.ttfp_s(silent) == latency.turn_latency_s(silent) == latency.transcript_ttft_s(silent) == []


def test_text_replies() -> None:
    # asked at 1.0; text at 1.5, 2.0, 3.0; 7 tokens; over at 4.5
    read = rows(
        turn(), reply(text=[(1.5, 3), (2.0, 3), (3.0, 4)], wants="text", end_s=4.5, output_text_tokens=7)
    )
    assert latency.ttft_s(read) == [0.5]
    assert latency.transcript_ttft_s(read) == []
    assert latency.tpot_s(read) == [0.25]  # 1.5 s for the six after the first
    assert latency.jct_s(read) == [3.5]
    assert latency.normalised_latency_s(read) == [0.5]  # 3.5 / 7
    assert latency.ttfp_s(read) == []


def test_one_delta_has_no_tpot_and_no_tokens_no_normalised_latency() -> None:
    burst = rows(turn(), reply(text=[(1.5, 9)], wants="text", end_s=2.0, output_text_tokens=9))
    assert latency.tpot_s(burst) == []
    empty = rows(turn(), reply(wants="text", end_s=2.0))
    assert latency.jct_s(empty) == [1.0]
    assert latency.normalised_latency_s(empty) == []
    one = rows(turn(), reply(text=[(1.5, 1), (1.75, 0)], wants="text", end_s=2.0, output_text_tokens=1))
    assert latency.tpot_s(one) == []


def test_without_usage_a_delta_is_a_token() -> None:
    read = rows(turn(), reply(text=[(1.5, 9), (2.0, 1), (2.5, 4)], wants="text", end_s=3.0))
    assert latency.tpot_s(read) == [0.5]  # 1.0 s for two
    assert latency.normalised_latency_s(read) == [pytest.approx(2 / 3)]


def test_real_time_factors() -> None:
    # asked at 1.0; 0.5 s of audio at 1.5, 1 s at 2.0, 1 s at 2.25
    spoken = rows(turn(), reply(audio=[(1.5, 0.5), (2.0, 1.0), (2.25, 1.0)], end_s=2.5))
    assert latency.rtf(spoken) == [0.5]  # 1.25 / 2.5
    assert latency.audio_rtf(spoken) == [0.375]  # 0.75 / 2.0
    assert latency.audio_rtf(rows(turn(), reply(audio=[(1.5, 0.5)], end_s=2.5))) == []


def test_only_replies_that_came_to_their_end_have_factors_and_completion_times() -> None:
    cut = rows(turn(), reply(audio=[(1.5, 1.0), (1.75, 1.0)], end_s=2.5, status="cancelled"))
    assert latency.rtf(cut) == latency.audio_rtf(cut) == latency.jct_s(cut) == []


def test_makespan_is_of_jobs_that_are_done() -> None:
    folded = run(
        session("j", 1.0, 5.5, kind="job"),
        session("broken", 1.0, 6.0, "lost", kind="job"),
        session("person", 0.0, 9.0),
        session("open", 0.0, kind="job"),
        [SessionEnded(t_s=9.5, session="late", reason="done")],
    )
    assert latency.makespan_s(folded.sessions) == [4.5]
