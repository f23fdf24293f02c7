"""What was made and not heard, by hand."""

from __future__ import annotations

import pytest

from antiphon.metrics import waste
from antiphon.metrics.log import Interrupted, ServerSampled
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


def test_tokens_at_the_unheard_share() -> None:
    # unheard: three quarters of 40 and of 100
    assert waste.waste_tokens([barged(2.0), heard_whole()]) == {"thinker": 30.0, "talker": 75.0}
    assert waste.waste_token_ratio([barged(2.0), heard_whole()]) == {"thinker": 0.6, "talker": 0.6}
    assert waste.waste_tokens(rows(reply(end_s=2.0))) == {}


def test_without_audio_all_is_waste_unless_the_reply_is_whole() -> None:
    (failed,) = rows(reply(end_s=2.0, status="failed", output_text_tokens=7, output_audio_tokens=0))
    assert waste.waste_tokens([failed]) == {"thinker": 7.0, "talker": 0.0}
    assert waste.waste_token_ratio([failed]) == {"thinker": 1.0}
    (mute,) = rows(reply(end_s=2.0, output_text_tokens=1))
    assert waste.waste_tokens([mute]) == {"thinker": 0.0}


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
