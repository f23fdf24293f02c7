"""All figures of small runs, every number worked out by hand."""

from __future__ import annotations

import json
import math

import pytest

from antiphon.metrics.log import (
    ClientSampled,
    ErrorSeen,
    Event,
    Interrupted,
    ServerSampled,
    SessionQueued,
    SessionRefused,
)
from antiphon.metrics.names import Figure, Metric, parse_figure
from antiphon.metrics.recorder import fold
from antiphon.metrics.summary import Slo, figures, spread, useful_rps
from fakes.logs import reply, run, sample, session, turn

USAGE = {"input_tokens": 100, "cached_tokens": 50, "output_text_tokens": 10, "output_audio_tokens": 25}


def conversation() -> list[Event]:
    """Ada has a spoken reply played to its end and barges into a second; a job has one call; Bo is
    refused."""
    barge = Interrupted(t_s=8.5, session="a", response="y", kind="barge_in", heard_s=1.0)
    nodes = {
        f'{Metric.REQUESTS_RUNNING.value}{{node="{n}",stage="talker"}}': v for n, v in (("a", 3), ("b", 1))
    }
    parts: list[list[Event]] = [
        session("a", 0.0, 10.0, reading_tokens_per_s=5.0),
        turn("a", 0, start_s=0.0, end_s=2.0, voice_end_s=1.5),
        reply(
            "a", 0, "x", start_s=2.0, text=[(2.25, 10)], audio=[(2.5, 1.0), (3.75, 1.0)], end_s=4.0, **USAGE
        ),
        turn("a", 1, start_s=6.0, end_s=7.0, voice_end_s=7.0),
        reply("a", 1, "y", start_s=7.0, audio=[(7.5, 4.0)], end_s=8.75, status="cancelled", **USAGE),
        [barge],
        session("j", 0.0, 8.0, kind="job", tier="best_effort"),
        turn("j", 0, start_s=0.0, end_s=0.0),
        reply(
            "j", 0, "z", start_s=0.5, text=[(1.0, 2), (3.0, 2)], wants="text", end_s=3.0, output_text_tokens=8
        ),
        [
            SessionRefused(t_s=1.0, session="b", code="429"),
            ErrorSeen(t_s=1.0, session="b", code="c", message="m"),
        ],
        [ClientSampled(t_s=1.0, cpu_s=0.5, lag_s=0.01), ClientSampled(t_s=5.0, cpu_s=1.5, lag_s=0.03)],
        [
            sample(1.0, step_seconds_total=1.0, emitted_tokens_total=0.0, surplus_tokens_total=2.0),
            sample(9.0, step_seconds_total=5.0, emitted_tokens_total=100.0, surplus_tokens_total=5.0),
            ServerSampled(t_s=9.5, values=nodes),
        ],
    ]
    return sorted((event for part in parts for event in part), key=lambda event: event.t_s)


def test_a_small_run_whole() -> None:
    found = figures(fold(conversation()))
    expected = {
        "ttfp_s.mean": 0.5,
        "ttfp_s.p99": 0.5,  # 2.5 - 2.0 and 7.5 - 7.0
        "turn_latency_s.p50": 0.75,  # 1.0 and 0.5
        "turn_latency_s.p90": 0.95,
        "transcript_ttft_s.p50": 0.25,
        "jct_s.p50": 2.0,
        "makespan_s.p50": 8.0,
        "rtf.p50": 0.875,  # 1.75 / 2
        "audio_rtf.p50": 1.25,  # 1.25 / 1
        "best_effort_ttft_s.p50": 1.0,
        "best_effort_tpot_s.p50": 2 / 7,  # 2 s for the tokens after the first of 8
        "best_effort_jct_s.p50": 3.0,
        "best_effort_normalised_latency_s.p50": 3 / 8,
        "continuity": 0.0,  # silent for 0.25 s; the barge-in is not judged
        "stalls": 1,
        "stall_s": 0.25,
        "stalls_per_minute": 20.0,  # one in 2 + 1 s
        "premature_replies": 0,
        "slo_attainment": 0.5,
        "window_s": 10.0,  # two sessions open at most, one to the end
        "offered_rps": 0.2,
        "completed_rps": 0.2,
        'tokens_per_s{stage="thinker"}': 2.8,  # 10 + 10 + 8 in 10 s
        'tokens_per_s{stage="talker"}': 5.0,
        "best_effort_tokens_per_s": 0.8,
        "waste_audio_s": 3.0,
        "waste_ratio": 0.5,  # 3 of 6 s
        'waste_tokens{stage="thinker"}': 7.5,
        'waste_tokens{stage="talker"}': 18.75,
        'waste_token_ratio{stage="thinker"}': 0.375,
        'waste_token_ratio{stage="talker"}': 0.375,
        'waste_device_s{stage="talker"}': 0.75,  # 18.75 tokens at 0.04 s
        'surplus_tokens{stage="talker"}': 3.0,
        "cached_share.p50": 0.5,
        "cache_hit_share": 0.5,
        "load_imbalance.p50": 1.5,  # 3 over 2
        'utilisation{stage="talker"}': 4 / 8.5,
        "span_s": 10.0,
        "sessions": 3,
        "refused_sessions": 1,
        "broken_sessions": 0,
        "turns": 3,
        "completed_turns": 3,
        "unanswered_turns": 0,
        'responses{status="completed"}': 2,
        'responses{status="cancelled"}': 1,
        "errors": 1,
        "client_cores": 0.25,  # 1 s of 4
        "client_lag_s": 0.03,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert {parse_figure(key)[0] for key in found} == {parse_figure(key)[0] for key in expected}
    assert json.loads(json.dumps(found)) == found
    assert {type(key) for key in found} == {str}


def test_those_that_wait_for_a_place() -> None:
    """Of three places asked for: one at once, one after 2 s, and one that is not free when the log ends."""
    run_ = run(
        session("a", 0.0, 10.0, arrival_s=0.0, waited_s=0.0),
        [SessionQueued(t_s=1.0, session="b"), SessionQueued(t_s=4.0, session="c")],
        session("b", 3.0, 10.0, arrival_s=1.0, waited_s=2.0),
    )
    found = figures(run_)
    assert found["place_wait_s.mean"] == pytest.approx((0 + 2 + 6) / 3)
    assert (found["sessions"], found["unplaced_sessions"]) == (2, 1)
    assert not {"place_wait_s.mean", "unplaced_sessions"} & figures(run(session("a", 0.0, 1.0))).keys()


def reading() -> list[Event]:
    """A text reply of two tokens, read as it comes; counters of reloads and preemptions."""
    parts: list[list[Event]] = [
        session(end_s=5.0, reading_tokens_per_s=1.0),
        turn(),
        reply(text=[(2.0, 4), (3.0, 4)], wants="text", end_s=3.0, output_text_tokens=2),
        [sample(0.0, reload_seconds_total=0.0, resume_seconds_total=0.5, preemptions_total=1.0)],
        [sample(1.0, reload_seconds_total=0.5, resume_seconds_total=2.0, preemptions_total=3.0)],
    ]
    return sorted((event for part in parts for event in part), key=lambda event: event.t_s)


def test_text_that_is_read() -> None:
    found = figures(fold(reading()))
    expected = {
        "ttft_s.p50": 1.0,
        "tpot_s.p50": 1.0,
        "normalised_latency_s.p50": 1.0,  # 2 s for 2 tokens
        "qos": 0.5,  # (2 - 1 - 0) in 2 s
        "effective_tokens_per_s": 1.0,
        "streamed_tokens_per_s": 1.0,
        "rebuffer_s.p50": 0.0,
        "reload_s": 0.5,
        "resume_s": 1.5,
        'preemptions{stage="talker"}': 2.0,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)


def test_every_figure_can_be_reached_and_every_key_is_one() -> None:
    mhm = Interrupted(t_s=1.75, session="a", response="r", kind="backchannel", heard_s=0.25)
    spoken = run(turn(), reply(audio=[(1.5, 1.0)], end_s=2.0, status="cancelled"), [mhm])
    job = run(session("j", tier="best_effort"), reply("j", text=[(1.0, 1)], wants="text", end_s=2.0, **USAGE))
    bound = run(session(waited_s=1.0))
    runs = [fold(conversation()), fold(reading()), spoken, job, bound]
    found = {parse_figure(key)[0] for each in runs for key in figures(each)}
    assert found == set(Figure) - {Figure.USEFUL_RPS}
    assert figures(spoken)["false_stops"] == 1


@pytest.mark.parametrize("log", [conversation(), reading()])
def test_a_log_cut_anywhere_has_finite_figures(log: list[Event]) -> None:
    for end in range(len(log)):
        assert all(math.isfinite(value) for value in figures(fold(log[:end])).values())


def test_what_cannot_be_told_is_absent() -> None:
    nothing = figures(run())
    assert nothing == {
        "span_s": 0.0,
        "sessions": 0.0,
        "refused_sessions": 0.0,
        "broken_sessions": 0.0,
        "turns": 0.0,
        "completed_turns": 0.0,
        "errors": 0.0,
    }


def test_a_torn_run_has_figures_and_no_nan() -> None:
    torn = figures(
        run(session(), turn(), reply(audio=[(1.5, 1.0)]), [ClientSampled(t_s=1.0, cpu_s=0, lag_s=0)])
    )
    assert torn["ttfp_s.p50"] == 0.5
    assert torn['responses{status="open"}'] == 1
    assert torn["offered_rps"] == pytest.approx(1 / 1.5)
    assert torn["completed_rps"] == 0.0
    absent = {
        "continuity",
        "waste_audio_s",
        "slo_attainment",
        "unanswered_turns",
        "client_cores",
        "jct_s.p50",
    }
    assert not absent & set(torn)
    assert all(math.isfinite(value) for value in torn.values())


def test_job_only_runs_have_no_rate_of_people() -> None:
    job = session("j", 0.0, 4.0, "failed", kind="job", tier="best_effort")
    found = figures(run(job, turn("j"), reply("j", wants="text", end_s=2.0, output_text_tokens=8)))
    assert "completed_rps" not in found
    assert (found["best_effort_tokens_per_s"], found["broken_sessions"]) == (2.0, 1.0)


def test_percentiles_are_linear_between_neighbours() -> None:
    # 0..100: the percentile is its own number
    assert dict(spread(Figure.TTFP_S, list(range(101)))) == {
        "ttfp_s.mean": 50.0,
        "ttfp_s.p50": 50.0,
        "ttfp_s.p90": 90.0,
        "ttfp_s.p95": 95.0,
        "ttfp_s.p99": 99.0,
    }
    assert dict(spread(Figure.TTFP_S, [1.0, 2.0]))["ttfp_s.p90"] == pytest.approx(1.9)
    assert dict(spread(Figure.TTFP_S, [])) == {}


def test_the_stall_length_is_the_slo_s() -> None:
    assert figures(fold(conversation()), Slo(gap_s=0.5))["continuity"] == 1.0


def test_useful_rps_is_the_highest_load_that_holds() -> None:
    def point(load: float, continuity: float, ttfp_s: float) -> dict[str, float]:
        return {"offered_rps": load, "continuity": continuity, "ttfp_s.p90": ttfp_s}

    sweep = [point(3.0, 0.9, 0.4), point(1.0, 1.0, 0.2), point(2.0, 0.95, 0.4), point(4.0, 1.0, 1.5)]
    assert useful_rps(sweep) == 2.0
    assert useful_rps(sweep, Slo(ttfp_p90_s=0.3)) == 1.0
    assert useful_rps(sweep, Slo(ttfp_p90_s=0.1)) is None
    assert useful_rps([{"continuity": 1.0, "ttfp_s.p90": 0.1}]) is None
