"""What was made and not heard, by hand."""

from __future__ import annotations

import pytest

from antiphon.metrics import waste
from antiphon.metrics.log import Event, Interrupted, ServerSampled
from antiphon.metrics.rows import ResponseRow
from fakes.logs import reply, rows, sample, session, turn


def barged(heard_s: float) -> ResponseRow:
    """8 s of audio came, 100 frames and 40 text tokens; the person took the turn after `heard_s`."""
    (row,) = rows(
        turn(),
        reply(
            audio=[(1.0, 4.0), (2.0, 4.0)],
            end_s=3.0,
            status="cancelled",
            output_text_tokens=40,
            output_audio_tokens=100,
        ),
        [Interrupted(t_s=1.0 + heard_s, session="a", response="r", kind="barge_in", heard_s=heard_s)],
    )
    return row


def heard_whole() -> ResponseRow:
    """2 s of audio, 25 frames and 10 text tokens, played to the end."""
    (row,) = rows(
        session(end_s=9.0),
        turn(),
        reply(audio=[(1.0, 2.0)], end_s=1.5, output_text_tokens=10, output_audio_tokens=25),
    )
    return row


def test_audio_received_and_not_heard() -> None:
    assert waste.waste_audio_s([barged(2.0), heard_whole()]) == 6.0
    assert waste.waste_ratio([barged(2.0), heard_whole()]) == 0.6  # 6 of 10 s
    assert waste.waste_audio_s([heard_whole()]) == 0.0
    assert waste.waste_audio_s([]) is None
    assert waste.waste_ratio([]) is None


def test_what_the_end_of_the_run_cut_off_is_not_waste() -> None:
    playing = rows(session(end_s=2.0, reason="stopped"), turn(), reply(audio=[(1.0, 9.0)], end_s=1.5))
    assert waste.waste_audio_s(playing) is None
    assert waste.waste_audio_s([*playing, barged(2.0)]) == 6.0


def test_tokens_made_less_tokens_heard() -> None:
    # heard: 2 s of 8, at 5 tokens and 12.5 frames a second; all of the other
    assert waste.waste_tokens([barged(2.0), heard_whole()]) == {"thinker": 30.0, "talker": 75.0}
    assert waste.waste_token_ratio([barged(2.0), heard_whole()]) == {"thinker": 0.6, "talker": 0.6}
    assert waste.waste_tokens(rows(reply(end_s=2.0))) == {}


def ahead(session_name: str = "a", start_s: float = 100.0) -> list[Event]:
    """The whole text of a reply of 40 s at 5 tokens a second, a talker that is kept 1 s ahead, and a barge-in
    after 20 s: 21 s of audio came."""
    first_s = start_s + 1.0
    return [
        *reply(
            session_name,
            7,
            "cut",
            start_s=start_s,
            audio=[(first_s + at, 1.0) for at in range(21)],
            end_s=first_s + 20.0,
            status="cancelled",
            output_text_tokens=200,
            output_audio_tokens=263,
        ),
        Interrupted(t_s=first_s + 20.0, session=session_name, response="cut", kind="barge_in", heard_s=20.0),
    ]


def whole(session_name: str, tokens_per_s: float) -> list[Event]:
    """A reply of 10 s that was heard to its end."""
    return reply(
        session_name,
        0,
        "whole",
        audio=[(1.0, 10.0)],
        end_s=1.5,
        output_text_tokens=round(10 * tokens_per_s),
        output_audio_tokens=125,
    )


def test_a_thinker_that_runs_ahead_of_a_paced_talker_wastes_what_it_wrote() -> None:
    """20 of 40 s were heard: half the text is waste, though all but 1 s of what was received was heard."""
    found = rows(session(), whole("a", 5.0), ahead())
    assert waste.waste_ratio(found) == pytest.approx(1 / 31)
    assert waste.waste_tokens(found) == {"thinker": pytest.approx(100), "talker": pytest.approx(13)}
    alone = rows(session(), ahead())
    assert waste.waste_token_ratio([alone[0]])["thinker"] == pytest.approx(0.6), "at 4 tokens a second"


def test_the_usual_rate_is_the_session_s_own_where_it_has_one() -> None:
    others = whole("b", 2.5)
    of_others = rows(session("a"), session("b"), others, ahead("a"))
    assert waste.waste_tokens(of_others)["thinker"] == pytest.approx(200 - 20 * 2.5)
    of_its_own = rows(session("a"), session("b"), others, whole("a", 5.0), ahead("a"))
    assert waste.waste_tokens(of_its_own)["thinker"] == pytest.approx(100)


def test_no_more_is_said_in_a_second_than_was_written_for_it() -> None:
    """A talker as fast as its thinker: what was received of a cut reply had been written."""
    slow = reply(
        audio=[(1.0, 4.0)], end_s=2.0, status="cancelled", output_text_tokens=8, output_audio_tokens=50
    )
    cut = Interrupted(t_s=3.0, session="a", response="r", kind="barge_in", heard_s=2.0)
    found = rows(session(), slow, [cut], whole("b", 5.0))
    assert waste.waste_tokens(found)["thinker"] == pytest.approx(4.0)  # half of 8, not none of 10


def test_what_was_heard_to_its_end_is_no_waste_to_the_last_digit() -> None:
    (row,) = rows(
        session(), reply(audio=[(1.0 + 0.1 * i, 0.32) for i in range(23)], end_s=9.0, output_text_tokens=29)
    )
    assert (row.heard_s, waste.waste_tokens([row])) == (row.received_s, {"thinker": 0.0})


def test_frames_that_were_made_and_never_sent_are_waste() -> None:
    """Their length is always the same: 12.5 a second here, by the reply that is whole."""
    cut = reply(
        audio=[(1.0, 4.0)], end_s=2.0, status="cancelled", output_text_tokens=20, output_audio_tokens=100
    )
    barge = Interrupted(t_s=3.0, session="a", response="r", kind="barge_in", heard_s=2.0)
    found = rows(session(), cut, [barge], whole("b", 5.0))
    assert waste.waste_tokens(found)["talker"] == pytest.approx(75.0)
    assert waste.waste_tokens(rows(session(), cut, [barge]))["talker"] == pytest.approx(50.0), "not known"


def test_without_audio_all_is_waste_unless_the_reply_is_whole() -> None:
    (failed,) = rows(reply(end_s=2.0, status="failed", output_text_tokens=7, output_audio_tokens=0))
    assert waste.waste_tokens([failed]) == {"thinker": 7.0, "talker": 0.0}
    assert waste.waste_token_ratio([failed]) == {"thinker": 1.0}
    (mute,) = rows(reply(end_s=2.0, output_text_tokens=1))
    assert waste.waste_tokens([mute]) == {"thinker": 0.0}


def test_a_voice_without_a_talker_wastes_none_of_its_tokens() -> None:
    cut = reply(
        audio=[(1.0, 4.0)], end_s=2.0, status="cancelled", output_text_tokens=8, output_audio_tokens=0
    )
    barge = Interrupted(t_s=3.0, session="a", response="r", kind="barge_in", heard_s=2.0)
    cascade = rows(session(), cut, [barge])
    assert waste.waste_tokens(cascade).keys() == {"thinker"}
    assert waste.waste_token_ratio(cascade).keys() == {"thinker"}


def test_text_replies_are_read_not_heard() -> None:
    read = rows(reply(text=[(1.0, 2)], wants="text", end_s=2.0, output_text_tokens=3))
    assert waste.waste_tokens(read) == {}


def test_device_seconds_at_the_stage_s_cost_of_a_token() -> None:
    samples = [
        sample(0.0, step_seconds_total=10.0, emitted_tokens_total=1000.0),
        sample(9.0, step_seconds_total=14.0, emitted_tokens_total=1200.0),
    ]
    assert waste.device_s_per_token(samples) == {"talker": pytest.approx(0.02)}  # 4 s / 200
    wasted = waste.waste_tokens([barged(2.0)])
    assert waste.waste_device_s(wasted, samples) == {"talker": pytest.approx(1.5)}  # 75 x 0.02
    units = [
        ServerSampled(
            t_s=one.t_s,
            values={key.replace("talker", f"talker.{i}"): v for i in (0, 1) for key, v in one.values.items()},
        )
        for one in samples
    ]
    assert waste.device_s_per_token(units) == {"talker": pytest.approx(0.02)}, "replicas together"
    idle = [sample(t, step_seconds_total=1.0, emitted_tokens_total=5.0) for t in (0.0, 1.0)]
    assert waste.device_s_per_token(idle) == {}
    assert waste.waste_device_s(wasted, []) == {}
