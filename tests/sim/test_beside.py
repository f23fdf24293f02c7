"""One person listens to a reply while others send long prompts to the same device."""

from __future__ import annotations

import msgspec
import pytest

from antiphon.core.config import Unit
from antiphon.metrics.recorder import fold
from antiphon.metrics.summary import figures
from antiphon.sim.model import SimEngine, released
from antiphon.sim.run import Setup, simulate
from antiphon.workload.spec import Workload
from sim.linear import LinearCosts
from sim.runs import started

COSTS = LinearCosts(launch_s=0.004, token_s=2e-4, prompt_s=0.06, speech_s=0.025)
"""A second of sound takes 0.4 s, a prompt of 4,000 tokens 0.8 s and 0.06 s for each step that reads it."""
WORKLOAD = Workload.model_validate(
    {
        "name": "beside",
        "load": {"open": {"arrivals": {"replay": {"times_s": [0.0]}}, "sessions": 7, "duration_s": 99}},
        "people": {
            "listener": {
                "turns": 1,
                "typed": 1,
                "typing": {"words": 3, "words_per_s": 0},
                "replies": "speech",
                "max_output_tokens": 100,
            }
        },
        "jobs": {
            "prompt": {
                "tier": "latency",
                "arrivals": {"replay": {"times_s": [1.0] * 6}},
                "call": {"words": 3080, "max_output_tokens": 4},
            }
        },
    }
)


def engine_on(preset: str, units: tuple[Unit, ...] = ()) -> SimEngine:
    """By default on one device."""
    engine = released(preset)
    served = msgspec.structs.replace(engine.served, node=msgspec.structs.replace(engine.node, units=units))
    return SimEngine(served, engine.block_bytes)


@pytest.mark.parametrize("preset", ["baseline", "liveserve", "tokenflow"])
def test_long_prompts_are_read_in_time_and_the_listener_hears_next_to_no_gap(preset: str) -> None:
    """A piece of a prompt in each step, however small, leaves neither of them enough."""
    outcome = simulate(Setup(WORKLOAD, COSTS, engine=engine_on(preset)), started())
    found = figures(fold(outcome.events))
    assert found["stall_s"] < 0.5
    assert found["ttft_s.mean"] < 11.0


def test_prompts_do_not_wait_for_a_share_of_time_that_nobody_else_uses() -> None:
    """The talker has a device of its own and is slower than the listener, who has no lead for that. On the
    others' device hardly anything but the prompts can run."""
    units = tuple(
        Unit(stage, stage, "other" if stage == "talker" else "one")
        for stage in ("encoders", "thinker", "talker", "code2wav")
    )
    costs = msgspec.structs.replace(COSTS, speech_s=0.15)
    outcome = simulate(Setup(WORKLOAD, costs, engine=engine_on("baseline", units)), started())
    found = figures(fold(outcome.events))
    assert found["stall_s"] > 5.0
    assert found["ttft_s.p99"] < 9.0
