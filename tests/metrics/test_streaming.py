"""TokenFlow's reader on token times worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from antiphon.metrics import streaming
from antiphon.metrics.streaming import Reading
from fakes.logs import reply, rows, session, turn


def reading(at_s: Sequence[float], rate: float, asked_s: float = 0.0) -> Reading:
    return Reading(asked_s, np.array(at_s, np.float64), rate)


LATE = reading([1.0, 1.0, 1.0, 4.0], rate=1.0)
"""Read at 1, 2, 3; the fourth is read as it comes, at 4."""
WAITED = reading([1.0, 3.5, 3.5], rate=2.0)
"""Read at 1.0, done at 1.5; then 2 s of waiting: 3.5, 4.0."""


def test_the_reader_waits_for_late_tokens() -> None:
    assert streaming.read_from_s(LATE.at_s, 1.0).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert streaming.rebuffer_s(LATE) == 0.0
    assert streaming.read_from_s(WAITED.at_s, 2.0).tolist() == [1.0, 3.5, 4.0]
    assert streaming.rebuffer_s(WAITED) == 2.0


def test_the_buffer_is_what_waits_when_a_token_comes() -> None:
    # the second comes while the first is read; the third finds one waiting; the fourth none
    assert streaming.buffer_tokens(LATE.at_s, 1.0).tolist() == [0, 0, 1, 0]
    # ten at once: the first is being read, so token j finds j - 1 waiting
    assert streaming.buffer_tokens(np.zeros(10), 5.0).tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_tokens_at_the_reader_s_pace_find_no_buffer() -> None:
    paced = reading([0.5 + 0.1 * j for j in range(50)], rate=10.0)
    assert not streaming.buffer_tokens(paced.at_s, 10.0).any()
    assert streaming.effective_tokens(paced) == 50.0
    assert streaming.rebuffer_s(paced) == 0.0


def test_weights_fall_from_tau() -> None:
    weights = streaming.token_weights(np.array([0, 2, 3, 4, 9]), tau_tokens=2, alpha=0.4)
    assert weights.tolist() == [1.0, 1.0, 0.6, pytest.approx(0.2), 0.0]


def test_effective_tokens_of_a_burst() -> None:
    # 20 at once: tau1 = 2 and tau2 = 4 tokens. Buffers 0, 0, 1, 2, 3, 4, ...: four whole, one half
    assert streaming.effective_tokens(reading([0.0] * 20, rate=5.0)) == pytest.approx(4.5)


def test_qos_and_effective_throughput() -> None:
    # A: asked 0.0, 20 tokens at 1.0: 4.5 effective, ttft 1, no rebuffering
    # B: asked 2.0, tokens at 3.0 and 5.0 read at 1 per s: 2 effective, ttft 1, rebuffering 1
    read = [reading([1.0] * 20, rate=5.0), reading([3.0, 5.0], rate=1.0, asked_s=2.0)]
    assert streaming.process_s(read) == 5.0
    assert streaming.effective_tokens_per_s(read) == pytest.approx(1.3)  # 6.5 / 5
    assert streaming.streamed_tokens_per_s(read) == 4.4  # 22 / 5
    assert streaming.qos(read) == pytest.approx(0.7)  # (4.5 - 1 + 2 - 1 - 1) / 5
    assert streaming.qos(read, lambda_=0.5, mu=2.0) == pytest.approx(0.7)  # (4.5 - 0.5 + 2 - 0.5 - 2) / 5


def test_nothing_read_has_no_figures() -> None:
    assert streaming.qos([]) is None
    assert streaming.effective_tokens_per_s([]) is None
    assert streaming.streamed_tokens_per_s([]) is None


def test_readings_are_of_text_replies_with_a_reader() -> None:
    reader = session(reading_tokens_per_s=4.0)
    text = reply(text=[(1.5, 1), (2.0, 1)], wants="text")
    (read,) = streaming.readings(rows(reader, turn(), text))
    assert (read.asked_s, read.ttft_s, read.rate, read.at_s.tolist()) == (1.0, 0.5, 4.0, [1.5, 2.0])
    assert streaming.readings(rows(session(), turn(), text)) == []
    assert streaming.readings(rows(reader, text)) == []
    assert streaming.readings(rows(reader, turn(), reply(text=[(1.5, 1)]))) == []
    assert streaming.readings(rows(reader, turn(), reply(wants="text"))) == []
    none = reply(text=[(1.5, 1)], wants="text", end_s=2.0, output_text_tokens=0)
    assert streaming.readings(rows(reader, turn(), none)) == []
