"""Frames leave in chunks, the first one small, the last one whatever is left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.core.config import CodecConfig
from antiphon.core.facts import NO_INTS, NO_TOKENS, StepDone, StepFailed
from antiphon.core.graph import Edge
from antiphon.core.plans import CodecStep, ints
from antiphon.interaction.frontier import Frontier
from antiphon.policy.base import Budget, StepChoice, StepView
from antiphon.policy.urgency import Urgency
from antiphon.stage.candidates import Surroundings
from antiphon.stage.codec import CodecScheduler, Heard
from stage.test_ar import BASELINE

FRAME = ints([1, 2, 3])


def scheduler(max_rows: int = 2, *, windowed: bool = False) -> CodecScheduler:
    edge = Edge("talker", "code2wav", None, 2, 3)
    return CodecScheduler("code2wav", CodecConfig(max_rows), edge, BASELINE, windowed=windowed)


def push(codec: CodecScheduler, request: int, count: int) -> None:
    codec.open(request, None)
    for _ in range(count):
        codec.push(request, FRAME)


def planned(codec: CodecScheduler, step: int) -> CodecStep:
    order = codec.plan(step, 0.0)
    assert order is not None
    return order


def done(codec: CodecScheduler, order: CodecStep) -> list[Heard]:
    samples, audio = ints([1] * len(order.rows)), (b"four",) * len(order.rows)
    return codec.observe(StepDone("code2wav", order.step, order.requests, NO_TOKENS, samples, NO_INTS, audio))


def test_chunks() -> None:
    codec = scheduler()
    push(codec, 1, 1)
    assert not codec.has_work
    push(codec, 1, 6)
    first, second = planned(codec, 0), planned(codec, 1)
    assert (first.counts.tolist(), first.joins.tolist()) == ([2], [0])
    assert (second.counts.tolist(), second.joins.tolist()) == ([3], [])
    assert not codec.has_work
    assert codec.close(1) is False
    third = planned(codec, 2)
    assert third.counts.tolist() == [2]
    assert third.frames.shape == (2, 3)
    ended = [heard.ended for order in (first, second, third) for heard in done(codec, order)]
    assert ended == [False, False, True]
    assert not codec.requests
    codec.check_integrity()


def test_a_stream_that_closes_after_its_last_chunk_is_over_at_once() -> None:
    codec = scheduler()
    push(codec, 1, 2)
    order = planned(codec, 0)
    assert [heard.ended for heard in done(codec, order)] == [False]
    assert codec.close(1) is True
    assert codec.close(2) is True, "a stream without a frame was never open"


def test_streams_are_in_the_order_of_their_first_frames() -> None:
    codec = scheduler()
    push(codec, 1, 2)
    done(codec, planned(codec, 0))
    push(codec, 1, 3)
    push(codec, 2, 2)
    assert planned(codec, 1).requests.tolist() == [1, 2], "one without a row is not put before it"


def test_streams_wait_for_a_row() -> None:
    codec = scheduler(max_rows=1)
    push(codec, 1, 2)
    push(codec, 2, 2)
    order = planned(codec, 0)
    assert order.requests.tolist() == [1]
    assert codec.has_work
    assert codec.plan(1, 0.0) is None
    codec.close(1)
    done(codec, order)
    assert planned(codec, 1).joins.tolist() == [0]


def test_the_row_of_an_aborted_stream_waits_for_the_step_in_flight() -> None:
    codec = scheduler(max_rows=1)
    push(codec, 1, 3)
    order = planned(codec, 0)
    codec.abort(1)
    codec.abort(1)
    push(codec, 2, 2)
    assert codec.plan(1, 0.0) is None
    assert done(codec, order) == []
    assert planned(codec, 1).rows.tolist() == [0]
    codec.check_integrity()


def test_a_windowed_codec_is_told_the_end_with_the_last_frames() -> None:
    codec = scheduler(windowed=True)
    push(codec, 1, 2)
    codec.open(2, "ethan")
    codec.push(2, FRAME)
    first = planned(codec, 0)
    push(codec, 1, 1)
    assert codec.close(1) is False
    assert codec.close(2) is False
    last = planned(codec, 1)
    assert (first.ends.tolist(), first.voices) == ([0], (None,))
    assert (last.counts.tolist(), last.ends.tolist(), last.voices) == ([1, 1], [1, 1], (None, "ethan"))
    assert [heard.ended for order in (first, last) for heard in done(codec, order)] == [False, True, True]
    codec.check_integrity()


def test_a_windowed_codec_is_told_the_end_though_no_frame_is_left() -> None:
    codec = scheduler(windowed=True)
    push(codec, 1, 2)
    first = planned(codec, 0)
    assert codec.close(1) is False
    assert codec.has_work
    last = planned(codec, 1)
    assert (last.rows.tolist(), last.counts.tolist(), last.ends.tolist()) == ([0], [0], [1])
    assert not len(last.frames)
    assert not codec.has_work
    assert [heard.ended for order in (first, last) for heard in done(codec, order)] == [False, True]
    assert not codec.requests
    assert codec.close(7) is True, "a stream without a frame was never open"


class LeastLead:
    """The stream whose listener runs dry first comes first; each runs at most `most` frames."""

    name = "least-lead"

    def __init__(self, most: int) -> None:
        self.most = most
        self.leads: list[float] = []
        self.stops = False

    def decide(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        ready = view.ready.nonzero()[0]
        order = ready[np.argsort(view.lead_s[ready], kind="stable")]
        self.leads = view.lead_s[order].tolist()
        counts = np.full(len(order), self.most)
        return StepChoice(
            order, "who runs dry first", counts=counts, urgency=np.arange(len(order)), stops=self.stops
        )


def by_lead(leads_s: list[float], most: int = 9, max_rows: int = 8) -> tuple[CodecScheduler, LeastLead]:
    """Streams 0, 1, ... with a chunk each, whose listeners have so much left at 10 s."""
    frontier, policy = Frontier(3, 0.08), LeastLead(most)
    edge = Edge("talker", "code2wav", None, 2, 3)
    codec = CodecScheduler(
        "code2wav",
        CodecConfig(max_rows),
        edge,
        replace(BASELINE, step=policy),
        around=Surroundings(frontier, 2),
    )
    for number, lead_s in enumerate(leads_s):
        slot = frontier.take(0.0, is_spoken=True)
        frontier.play(slot, 10.0 + lead_s)
        codec.open(number, None, slot)
        push(codec, number, 2)
    return codec, policy


def test_a_policy_orders_the_batch_by_lead_and_streams_not_begun_are_last() -> None:
    codec, policy = by_lead([4.0, np.nan, 0.5, 2.0])
    order = codec.plan(0, 10.0)
    assert order is not None
    assert (order.requests.tolist(), order.reason) == ([2, 3, 0, 1], "who runs dry first")
    assert policy.leads[:3] == [0.5, 2.0, 4.0]
    assert np.isnan(policy.leads[3])
    assert order.joins.tolist() == order.rows.tolist() == [0, 1, 2, 3]


def test_a_stream_runs_as_many_frames_as_its_policy_grants() -> None:
    codec, policy = by_lead([1.0, 0.0], most=1)
    order = codec.plan(0, 10.0)
    assert order is not None
    assert (order.requests.tolist(), order.counts.tolist()) == ([1, 0], [1, 1])
    policy.most = 0
    push(codec, 0, 3)
    assert codec.plan(1, 10.0) is None, "none is none"
    codec.check_integrity()


@pytest.mark.parametrize("stops", [False, True])
def test_a_stream_that_gets_no_row_takes_no_other_ones_place(stops: bool) -> None:
    codec, policy = by_lead([0.5, 1.0], max_rows=2)
    assert done(codec, planned(codec, 0))
    codec.open(2, None)
    push(codec, 2, 2)
    for request in (0, 1):
        push(codec, request, 3)
    slot = codec._streams[2].slot = codec._around.frontier.take(0.0, is_spoken=True)
    codec._around.frontier.play(slot, 10.0)
    policy.stops = stops
    order = codec.plan(1, 10.0)
    if stops:
        assert order is None, "it is the first that does not fit"
    else:
        assert order is not None
        assert order.requests.tolist() == [0, 1]


def reported(codec: CodecScheduler, step: int, samples: list[int], words: list[int] | None = None) -> None:
    order = planned(codec, step)
    about = order.requests, NO_TOKENS, ints(samples), NO_INTS, (b"",) * len(samples)
    codec.observe(StepDone(codec.name, step, *about, owing=order.requests, words=ints(words or [])))


def test_what_a_cut_reply_had_not_ended_to_say_is_no_sound_of_its_tokens() -> None:
    """Of each of two replies a window more is sound than the words that are over."""
    frontier, edge = Frontier(2, 0.3), Edge("thinker", "voice", None, 1, 1)
    about = CodecConfig(4), edge, BASELINE
    codec = CodecScheduler("voice", *about, windowed=True, reads=True, around=Surroundings(frontier, 1))
    for request in (1, 2):
        push(codec, request, 4)
    reported(codec, 0, [9600, 9600])
    assert frontier.frame_s == 0.3, "no word is over"
    reported(codec, 1, [9600, 9600], [1, 1, 4800, 1, 2, 9600, 2, 1, 4800])
    assert frontier.frame_s == pytest.approx(0.2)
    order = planned(codec, 2)
    codec.abort(1)
    codec.observe(StepFailed("voice", 2, order.requests, NO_INTS, "it is gone"))
    codec.abort(2)
    push(codec, 3, 2)
    reported(codec, 3, [12000], [3, 2, 9600])
    assert frontier.frame_s == pytest.approx(0.2)


def test_frames_whose_sound_a_windowed_codec_held_back_count_if_their_reply_ends() -> None:
    frontier, edge = Frontier(2, 0.02), Edge("talker", "voice", None, 2, 3)
    about = CodecConfig(4), edge, BASELINE
    codec = CodecScheduler("voice", *about, windowed=True, around=Surroundings(frontier, 1))
    for request in (1, 2):
        push(codec, request, 2)
    done(codec, planned(codec, 0))
    codec.abort(1)
    assert frontier.frame_s == 0.02, "what has sounded of these frames is not all that they make"
    codec.close(2)
    last = planned(codec, 1)
    codec.observe(StepDone("voice", 1, last.requests, NO_TOKENS, ints([1919]), NO_INTS, (b"",)))
    assert not codec.requests
    assert frontier.frame_s == pytest.approx(0.04)


class Paced:
    """Urgency's, as far as half of the rows are in use."""

    name = "paced"

    def __init__(self) -> None:
        self.decide = Urgency(rows_to=0.5).decide_pace


def test_a_voice_is_paced_as_long_as_rows_are_left() -> None:
    """A codec without rows to spare, in a policy's eyes, would hold nobody."""
    frontier = Frontier(2, 0.08)
    codec = CodecScheduler(
        "voice",
        CodecConfig(4),
        Edge("thinker", "voice", None, 2, 3),
        replace(BASELINE, pace=Paced()),
        around=Surroundings(frontier, 1),
    )
    for number in range(2):
        slot = frontier.take(0.0, is_spoken=True)
        codec.open(number, None, slot)
        push(codec, number, 2)
        assert planned(codec, number)
        frontier.begin(slot)
        frontier.play(slot, 30.0)
        push(codec, number, 3)
    assert codec.plan(2, 0.0) is None, "half of the rows are in use"
    codec.abort(1)
    assert codec.plan(2, 0.0) is None, "and one of them is about to be free"
    codec.open(2, None)
    push(codec, 2, 2)
    assert planned(codec, 2).requests.tolist() == [2], "who begins has a row"
    push(codec, 3, 2)
    assert planned(codec, 3).requests.tolist() == [3]
    assert planned(codec, 4).requests.tolist() == [0], "it would keep its row"
