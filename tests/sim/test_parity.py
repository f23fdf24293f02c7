"""The simulator is the server with its clock and executors exchanged: the same facts, the same plans."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.config import Unit
from fakes.world import toy_config
from sim.parity import on_virtual_time, on_wall_time
from sim.scripts import drawn_script

ONE: tuple[Unit, ...] = ()
"""Of each stage, on one device."""
TWO_EACH = (
    Unit("encoders", "encoders", "a"),
    Unit("thinker.0", "thinker", "a"),
    Unit("thinker.1", "thinker", "b"),
    Unit("talker.0", "talker", "c"),
    Unit("talker.1", "talker", "d"),
    Unit("code2wav.0", "code2wav", "c"),
    Unit("code2wav.1", "code2wav", "d"),
)


@pytest.mark.parametrize("decide_s", [0.0, 0.0017])
@pytest.mark.parametrize("units", [ONE, TWO_EACH], ids=["one", "two each"])
@pytest.mark.parametrize("depth", [0, 1])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 30), rows=st.integers(1, 3), step_tokens=st.integers(1, 12))
def test_same_facts_same_plans(
    depth: int, units: tuple[Unit, ...], decide_s: float, seed: int, rows: int, step_tokens: int
) -> None:
    """Every decision at the same time, with the same facts, orders and outputs."""
    config, script = toy_config(rows=rows, step_tokens=step_tokens), drawn_script(seed)
    config = msgspec.structs.replace(config, units=units)
    wall = on_wall_time(config, script, depth, decide_s)
    virtual = on_virtual_time(config, script, depth, decide_s)
    assert wall.kept
    for recorded, simulated in zip(wall.kept, virtual.kept, strict=True):
        assert recorded == simulated
