"""Graphs of calls."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from antiphon.workload.script import JobScript
from workload.shapes import drawn, workload

CALL = {"words": 5, "max_output_tokens": 6, "tool_s": {"uniform": [1, 2]}}


def jobs(graph: dict[str, Any], sessions: int = 20) -> list[JobScript]:
    load = {"closed": {"concurrency": 1, "sessions": sessions}}
    scripts = drawn(workload(load, agents={"agent": {"graph": graph, "tier": "latency"}}))
    found = [script for script in scripts if isinstance(script, JobScript)]
    assert len(found) == sessions
    assert {script.tier for script in found} == {"latency"}
    return found


def test_chain() -> None:
    for job in jobs({"chain": {"steps": {"uniform": [2, 5]}, "call": CALL}}):
        assert [call.after for call in job.calls] == [(), *((index,) for index in range(len(job.calls) - 1))]
        assert all(1 <= call.wait_s <= 2 for call in job.calls)
        assert 2 <= len(job.calls) <= 5


def test_map_reduce() -> None:
    for job in jobs({"map_reduce": {"width": 3, "map": CALL}}):
        assert [call.after for call in job.calls] == [(), (0,), (0,), (0,), (1, 2, 3)]
        assert [call.wait_s > 0 for call in job.calls] == [False, True, True, True, False]


def test_explicit() -> None:
    calls = {"plan": CALL, "a": {**CALL, "after": ["plan"]}, "b": {**CALL, "after": ["plan", "a"]}}
    for job in jobs({"calls": calls}, 3):
        assert [call.after for call in job.calls] == [(), (0,), (0, 1)]


def test_a_call_is_after_earlier_ones_only() -> None:
    with pytest.raises(ValidationError, match="b is after 'c', which is not one of the calls before it"):
        jobs({"calls": {"a": CALL, "b": {**CALL, "after": ["c"]}, "c": CALL}})
