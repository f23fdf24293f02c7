"""What scripts amount to."""

from __future__ import annotations

import pytest

from antiphon.workload.summary import summary
from workload.shapes import drawn, talkers, workload


def test_people() -> None:
    laws = {
        "turns": 3,
        "think_s": 2,
        "speech": {"seconds": 1.5},
        "barge_in": {"probability": 1},
        "reply_s": 4,
    }
    seen = summary(drawn(talkers(5, **laws)))
    assert (seen.sessions, seen.jobs, seen.turns, seen.spoken_replies) == (5, 0, 15, 15)
    assert (seen.groups, seen.interjections) == ({"talker": 5}, {"barge_in": 15})
    for name, value, num in (("speech", 1.5, 15), ("think", 2, 10), ("turns", 3, 5), ("barge-in at", 4, 15)):
        quantity = seen.quantity(name)
        assert quantity is not None
        assert (quantity.percentiles(50, 99), quantity.mean) == ((value, value), value)
        assert len(quantity.values) == num
    assert seen.quantity("typing") is None


def test_jobs_and_groups_with_dashes() -> None:
    call = {"words": 9, "max_output_tokens": 3, "tool_s": 2}
    agents = {"a-b": {"graph": {"chain": {"steps": 4, "call": call}}}}
    seen = summary(drawn(workload({"closed": {"concurrency": 1, "sessions": 2}}, agents=agents)))
    assert (seen.sessions, seen.jobs, seen.groups) == (0, 2, {"a-b": 2})
    found = {one.name: one.mean for one in seen.quantities}
    assert found == pytest.approx({"calls": 4, "prompt": 9, "call limit": 3, "tool": 2})


def test_nobody() -> None:
    assert summary([]).quantities == ()
