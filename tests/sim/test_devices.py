"""How long KV is on its way from one simulated device to another, and who waits for it."""

from __future__ import annotations

import msgspec
import pytest

from antiphon.core.config import Unit
from antiphon.core.facts import NO_INTS
from antiphon.core.plans import ArStep, MoveBlocks, ints
from antiphon.sim.devices import Devices
from sim.linear import LinearCosts

BLOCK_BYTES = 1 << 20
UNITS = (Unit("t.p", "t", "a", role="prefill"), Unit("t.d", "t", "b", role="decode"))


def move(ticket: int) -> MoveBlocks:
    return MoveBlocks("t.p", "t.d", "kv", ints([0] * 500), ints([1] * 500), ticket)


def test_moves_in_one_direction_go_one_after_the_other_and_steps_wait_for_them() -> None:
    costs = LinearCosts()
    devices = Devices(costs, UNITS, {("t", "kv"): BLOCK_BYTES})
    move_s = costs.send_s(500 * BLOCK_BYTES)
    assert devices.move(move(0), 1.0) == pytest.approx(1.0 + move_s)
    assert devices.move(move(1), 1.0) == pytest.approx(1.0 + 2 * move_s)
    one = ints([1])
    step = ArStep("t.d", 0, (), NO_INTS, (), NO_INTS, NO_INTS, one, one, one, one, "", waits=(1,))
    assert devices.run(step, 1.0) == pytest.approx(max(1.0 + 2 * move_s, 1.0 + costs.step_s(step, "t")))
    devices.forget_copy("t.d", 1)
    later = msgspec.structs.replace(step, waits=())
    assert devices.run(later, 9.0) == pytest.approx(9.0 + costs.step_s(step, "t"))
