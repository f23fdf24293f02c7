"""The twin of an engine: it talks as it was heard to, and its driver takes the time that was measured."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.metrics.recorder import fold
from antiphon.metrics.rows import Run
from antiphon.sim.model import released
from antiphon.sim.sizes import Sizes
from antiphon.sim.twin import Around, Habits, twin
from sim.runs import setup, started

ALONE = {"load": {"closed": {"concurrency": 1, "sessions": 4}}}
INLINE = released(sizes=Sizes(max_rows=4, kv_tokens=8192, max_context_tokens=4096, depth=0))


def played(habits: Habits, around: Around = Around()) -> Run:
    made = twin(setup("voice-chat", settings=ALONE, engine=INLINE), habits, around)
    return fold(made.play(started()).events)


def test_replies_are_as_long_as_they_were_heard_to_be() -> None:
    """Cut off where the client says, and so many frames more than tokens."""
    rows = played(Habits(0.0, (0, 7))).responses
    assert len(rows) > 4
    extra = set()
    for row in rows:
        assert (row.status, row.reason) == ("incomplete", "max_output_tokens")
        assert row.output_text_tokens is not None
        assert row.output_audio_tokens is not None
        extra.add(row.output_audio_tokens - row.output_text_tokens)
    assert extra == {0, 7}


def test_some_replies_end_by_themselves() -> None:
    """In 16 to 48 tokens, half of them by chance before."""
    statuses = [row.status for row in played(Habits(0.02, (0,))).responses]
    assert {"completed", "incomplete"} == set(statuses)


@pytest.mark.parametrize("around", [Around(0.05), Around(0.0, 0.05), Around(joins_s={"talker": 0.05})])
def test_work_beside_the_steps_delays_the_first_audio(around: Around) -> None:
    """Of somebody who is alone, by exactly so much."""
    habits = Habits(0.0, (3,))
    plain, later = (ttfp_s(played(habits, one)) for one in (Around(), around))
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
