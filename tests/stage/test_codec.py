"""Frames leave in chunks, the first one small, the last one whatever is left."""

from __future__ import annotations

from antiphon.core.config import CodecConfig
from antiphon.core.facts import NO_INTS, NO_TOKENS, StepDone
from antiphon.core.graph import Edge
from antiphon.core.plans import CodecStep, ints
from antiphon.stage.codec import CodecScheduler, Heard

FRAME = ints([1, 2, 3])


def scheduler(max_rows: int = 2, *, windowed: bool = False) -> CodecScheduler:
    edge = Edge("talker", "code2wav", None, 2, 3)
    return CodecScheduler("code2wav", CodecConfig(max_rows), edge, windowed=windowed)


def push(codec: CodecScheduler, request: int, count: int) -> None:
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
    codec.push(2, FRAME, "ethan")
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
