"""What the rows of a log hold, whole logs and torn ones."""

from __future__ import annotations

import pytest

from antiphon.metrics.log import (
    AckSent,
    AudioDelta,
    ClientSampled,
    ErrorSeen,
    Interrupted,
    ResponseEnded,
    RunEnded,
    RunStarted,
    ServerSampled,
    SessionRefused,
    SessionStarted,
    SpeechNoticed,
    TextDelta,
)
from antiphon.metrics.recorder import fold
from fakes.logs import reply, rows, run, session, turn

STARTED = RunStarted(
    t_s=0.0,
    label="x",
    url="",
    workload="w",
    seed=1,
    command="",
    commit="",
    machine="",
    version="",
    unix_s=0.0,
)


def test_a_whole_run() -> None:
    sampled, cost = ServerSampled(t_s=0.5, values={"x": 1.0}), ClientSampled(t_s=0.5, cpu_s=0.1, lag_s=0.0)
    refused = SessionRefused(t_s=0.2, session="b", code="429")
    ended = RunEnded(t_s=9.0, reason="finished")
    folded = run(
        [STARTED, sampled, cost, refused, ended],
        session(end_s=8.0, arrival_s=0.0, reading_tokens_per_s=6.0),
        turn(end_s=1.0, voice_end_s=0.75),
        reply(
            text=[(1.25, 4), (2.0, 6)],
            audio=[(1.5, 1.0), (2.0, 2.0)],
            end_s=3.0,
            input_tokens=10,
            cached_tokens=5,
            output_text_tokens=3,
            output_audio_tokens=37,
        ),
        [AckSent(t_s=2.0, session="a", response="r", played_s=0.5)],
        [SpeechNoticed(t_s=0.1, session="a", what="started")],
    )
    assert (folded.started, folded.ended, folded.span_s, folded.last_s) == (STARTED, ended, 9.0, 9.0)
    assert (folded.samples, folded.client_samples, folded.errors) == ((sampled,), (cost,), ())

    person, other = folded.sessions
    assert (person.kind, person.tier, person.arrival_s, person.started_s) == ("person", "latency", 0.0, 0.0)
    assert (person.ended_s, person.reason, person.refused) == (8.0, "done", None)
    assert (other.session, other.refused, other.started_s, other.turns) == ("b", "429", 0.2, ())
    (asked,) = person.turns
    assert (asked.turn, asked.modality, asked.started_s, asked.ended_s) == (0, "speech", 0.0, 1.0)
    assert (asked.speech_end_s, asked.manual, asked.audio_s) == (0.75, True, 0.0)

    (row,) = folded.responses
    assert (row.session, row.turn, row.response, row.wants, row.manual) == ("a", 0, "r", "speech", True)
    assert (row.turn_ended_s, row.speech_end_s) == (1.0, 0.75)
    assert (row.started_s, row.first_text_s, row.first_audio_s, row.ended_s) == (1.0, 1.25, 1.5, 3.0)
    assert (row.status, row.reason, row.error, row.reading_tokens_per_s) == ("completed", "", None, 6.0)
    assert row.text_chars.tolist() == [4, 6]
    assert row.audio_at_s.tolist() == [1.5, 2.0]
    assert (row.received_s, row.heard_s, row.gaps, row.settled) == (3.0, 3.0, (), True)
    assert (row.input_tokens, row.cached_tokens) == (10, 5)
    assert (row.output_text_tokens, row.output_audio_tokens) == (3, 37)
    assert row.is_answer
    assert not row.barged_in


def test_an_empty_log() -> None:
    folded = fold([])
    assert (folded.responses, folded.sessions, folded.span_s) == ((), (), 0.0)


def test_a_torn_log_leaves_its_response_open() -> None:
    # playing since 1.5 s; the log ends at 2.0 s with half a second heard of two
    (row,) = rows(session(), turn(), reply(audio=[(1.5, 1.0), (2.0, 1.0)]))
    assert (row.status, row.ended_s, row.reason, row.settled) == (None, None, "", False)
    assert (row.heard_s, row.received_s) == (0.5, 2.0)
    assert not row.is_answer


def test_what_was_never_announced_belongs_to_the_latest_turn() -> None:
    heard = AudioDelta(t_s=3.0, session="a", response="x", audio_s=1.0)
    written = TextDelta(t_s=3.0, session="z", response="y", chars=2)
    first, second = rows(turn(number=4), [heard, written])
    assert (first.turn, first.started_s, first.wants, first.turn_ended_s) == (4, 3.0, "speech", 1.0)
    assert (second.turn, second.wants, second.turn_ended_s, second.manual) == (0, "text", None, True)
    assert (second.kind, second.tier, second.first_audio_s) == ("person", "latency", None)


def test_a_barge_in_ends_what_is_heard_and_late_audio_is_only_received() -> None:
    barge = Interrupted(t_s=2.25, session="a", response="r", kind="barge_in", heard_s=0.75)
    (row,) = rows(session(), turn(), reply(audio=[(1.5, 1.0), (2.0, 1.0), (4.0, 1.0)], end_s=4.0), [barge])
    assert (row.heard_s, row.received_s, row.gaps, row.settled) == (0.75, 3.0, (), True)
    assert (row.interrupted_by, row.interrupted_at_s, row.barged_in) == ("barge_in", 2.25, True)


def test_nobody_hears_more_than_came() -> None:
    barge = Interrupted(t_s=2.0, session="a", response="r", kind="barge_in", heard_s=0.75)
    (row,) = rows(reply(audio=[(1.5, 0.5)]), [barge])
    assert row.heard_s == 0.5


def test_other_interjections_leave_the_playback_alone() -> None:
    mhm = Interrupted(t_s=2.0, session="a", response="r", kind="backchannel", heard_s=0.5)
    (row,) = rows(session(end_s=9.0), turn(), reply(audio=[(1.5, 1.0), (3.0, 1.0)], end_s=3.0), [mhm])
    # dry from 2.5 to 3.0
    assert (row.heard_s, row.gaps, row.interrupted_by, row.barged_in) == (2.0, (0.5,), "backchannel", False)


@pytest.mark.parametrize(
    ("reason", "settled"), [("lost", True), ("failed", True), ("stopped", False), ("done", False)]
)
def test_a_listener_who_is_gone_hears_no_more(reason: str, settled: bool) -> None:
    # 4 s of audio from 1.0 s on, the session ends at 2.5 s
    (row,) = rows(session(end_s=2.5, reason=reason), turn(), reply(audio=[(1.0, 4.0)], end_s=1.0), [STARTED])
    assert (row.heard_s, row.settled) == (1.5, settled)


def test_who_leaves_as_playback_ends_has_heard_it() -> None:
    (row,) = rows(session(end_s=2.0 - 1e-9), turn(), reply(audio=[(1.0, 1.0)], end_s=1.5))
    assert (row.settled, row.heard_s) == (True, 1.0)


def test_what_was_played_through_was_heard_to_the_last_digit() -> None:
    (row,) = rows(
        session(end_s=99.0), turn(), reply(audio=[(1.0 + 0.1 * i, 0.16) for i in range(60)], end_s=9.0)
    )
    assert row.heard_s == row.received_s == pytest.approx(9.6)


def test_a_response_without_audio_is_settled_when_it_is_over() -> None:
    (row,) = rows(session(), turn(), reply(text=[(1.5, 2)], end_s=2.0, wants="text"))
    assert (row.settled, row.heard_s, row.first_output_s) == (True, 0.0, 1.5)


def test_the_first_error_belongs_to_the_response_that_was_open() -> None:
    def error(t_s: float, name: str, code: str) -> ErrorSeen:
        return ErrorSeen(t_s=t_s, session=name, code=code, message="m")

    errors = [
        error(1.5, "a", "early"),
        error(1.6, "a", "later"),
        error(2.5, "a", "over"),
        error(3.0, "b", "b"),
    ]
    folded = run(session(), turn(), reply(end_s=2.0, status="failed", reason="stage_failed"), errors)
    (row,) = folded.responses
    assert (row.error, row.status, row.reason) == ("early: m", "failed", "stage_failed")
    assert folded.errors == tuple(errors)


def test_a_cancel_that_came_after_its_reply_ended_is_no_error() -> None:
    late = ErrorSeen(t_s=1.5, session="a", code="response_cancel_not_active", message="m")
    folded = run(session(), turn(), reply(end_s=2.0), [late])
    assert (folded.errors, folded.responses[0].error) == ((), None)


@pytest.mark.parametrize(
    ("status", "reason", "is_answer"),
    [
        ("completed", "", True),
        ("incomplete", "max_output_tokens", True),
        ("incomplete", "content_filter", False),
        ("cancelled", "turn_detected", False),
        ("failed", "stage_failed", False),
    ],
)
def test_an_answer_came_to_its_own_end(status: str, reason: str, is_answer: bool) -> None:
    ended = ResponseEnded(t_s=2.0, session="a", response="r", status=status, reason=reason)
    (row,) = rows([ended])
    assert row.is_answer == is_answer


def test_jobs_keep_their_tier() -> None:
    job = SessionStarted(t_s=0.0, session="j", kind="job", tier="best_effort")
    (row,) = rows([job], reply("j", wants="text"))
    assert (row.kind, row.tier) == ("job", "best_effort")
