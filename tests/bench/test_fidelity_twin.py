"""The twin of an engine: it talks as it was heard to, and its driver takes the time that was measured."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from antiphon.metrics.recorder import fold
from antiphon.metrics.rows import Run
from antiphon.sim.model import released
from antiphon.sim.sizes import Sizes
from sim.runs import setup, started

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ALONE = {"load": {"closed": {"concurrency": 1, "sessions": 4}}}
INLINE = released(sizes=Sizes(max_rows=4, kv_tokens=8192, max_context_tokens=4096, depth=0))


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield import_module("fidelity_twin")


def played(script: ModuleType, habits: tuple[Any, ...], **around: Any) -> Run:
    made = setup("voice-chat", settings=ALONE, engine=INLINE)
    made = script.twin(made, script.Habits(*habits), script.Around(**around))
    return fold(made.play(started()).events)


def test_replies_are_as_long_as_they_were_heard_to_be(script: ModuleType) -> None:
    """Cut off where the client says, and so many frames more than tokens."""
    rows = played(script, (0.0, (0, 7))).responses
    assert len(rows) > 4
    extra = set()
    for row in rows:
        assert (row.status, row.reason) == ("incomplete", "max_output_tokens")
        assert row.output_text_tokens is not None
        assert row.output_audio_tokens is not None
        extra.add(row.output_audio_tokens - row.output_text_tokens)
    assert extra == {0, 7}


def test_some_replies_end_by_themselves(script: ModuleType) -> None:
    """In 16 to 48 tokens, half of them by chance before."""
    statuses = [row.status for row in played(script, (0.02, (0,))).responses]
    assert {"completed", "incomplete"} == set(statuses)


@pytest.mark.parametrize(
    "around", [{"render_s": 0.05}, {"handoff_s": 0.05}, {"joins_s": {"talker": 0.05}}], ids=str
)
def test_work_beside_the_steps_delays_the_first_audio(script: ModuleType, around: dict[str, Any]) -> None:
    """Of somebody who is alone, by exactly so much."""
    plain, later = (ttfp_s(played(script, (0.0, (3,)), **one)) for one in ({}, around))
    assert len(plain) > 4
    assert later - plain == pytest.approx(0.05, abs=1e-6)


def ttfp_s(run: Run) -> np.ndarray:
    return np.array(
        [
            row.first_audio_s - row.turn_ended_s
            for row in run.responses
            if row.first_audio_s is not None
            if row.turn_ended_s is not None
        ]
    )
