"""How long KV is on its way between simulated devices and tiers, who shares the way, and who waits for it."""

from __future__ import annotations

import msgspec
import pytest

from antiphon.core.config import Unit
from antiphon.core.errors import ConfigError
from antiphon.core.facts import NO_INTS, Ints
from antiphon.core.plans import ArStep, CopyBlocks, MoveBlocks, ints
from antiphon.latency.finding import find_costs
from antiphon.sim.devices import Devices
from sim.linear import LinearCosts

MIB = 1 << 20
UNITS = (
    Unit("t.p", "t", "a", role="prefill"),
    Unit("t.d", "t", "b", role="decode"),
    Unit("u", "u", "a", process="other"),
)
BLOCK_BYTES = {("t", "kv"): MIB, ("u", "kv"): MIB}
PER_SECOND = LinearCosts(bytes_per_s=100 * MIB)
"""A hundred blocks a second cross a link."""


def devices(costs: LinearCosts = PER_SECOND) -> Devices:
    return Devices(costs, UNITS, BLOCK_BYTES)


def copy(unit: str, to: str, ticket: int, blocks: int = 100) -> CopyBlocks:
    return CopyBlocks(unit, "kv", to, ints([0] * blocks), ints([1] * blocks), ticket)  # type: ignore[arg-type]


def move(ticket: int) -> MoveBlocks:
    return MoveBlocks("t.p", "t.d", "kv", ints([0] * 500), ints([1] * 500), ticket)


def by_row(*tickets: int) -> tuple[Ints, Ints]:
    """`ArStep.waits` of row 0."""
    return ints([0] * len(tickets)), ints([*tickets])


def step(unit: str, *waits: int) -> ArStep:
    one = ints([1])
    return ArStep(unit, 0, (), NO_INTS, (), NO_INTS, NO_INTS, one, one, one, one, "", waits=by_row(*waits))


def test_moves_in_one_direction_go_one_after_the_other_and_steps_wait_for_them() -> None:
    costs = LinearCosts()
    plan = devices(costs)
    move_s = costs.send_s(500 * MIB)
    assert plan.move(move(0), 1.0).end_s == pytest.approx(1.0 + move_s)
    assert plan.move(move(1), 1.0).end_s == pytest.approx(1.0 + 2 * move_s)
    waiting = step("t.d", 1)
    ends_s = max(1.0 + 2 * move_s, 1.0 + costs.step_s(waiting, "t"))
    assert plan.run(waiting, 1.0).end_s == pytest.approx(ends_s)
    plan.forget_copy("t.d", 1)
    later = msgspec.structs.replace(waiting, waits=by_row())
    assert plan.run(later, 9.0).end_s == pytest.approx(9.0 + costs.step_s(waiting, "t"))


def test_units_of_one_device_share_its_link_whatever_process_they_are_in() -> None:
    plan = devices()
    assert plan.copy(copy("t.p", "host", 0), 0.0).end_s == pytest.approx(1.0)
    assert plan.copy(copy("u", "host", 1), 0.0).end_s == pytest.approx(2.0)
    assert plan.copy(copy("t.d", "host", 2), 0.0).end_s == pytest.approx(1.0), "another device"


def test_the_two_directions_of_a_link_are_apart() -> None:
    """What comes back is there after a second; its report keeps its place behind the copy to the host."""
    plan = devices(LinearCosts(launch_s=0.0, token_s=0.0, row_s=0.0, bytes_per_s=100 * MIB))
    assert plan.copy(copy("t.p", "host", 0, blocks=500), 0.0).end_s == pytest.approx(5.0)
    assert plan.copy(copy("t.p", "device", 1), 0.0).end_s == pytest.approx(5.0)
    assert plan.run(step("t.p", 1), 0.0).end_s == pytest.approx(1.0)
    other = plan.copy(copy("u", "device", 2), 0.0)
    assert other.end_s == pytest.approx(2.0), "a unit that waits for none of it"
    assert other.seconds == pytest.approx(1.0), "its link was busy with another before"


def test_devices_share_the_memory_of_their_host() -> None:
    """Two links of 100 blocks a second and a memory of 150: 200 blocks take 200 / 150 s."""
    plan = devices(LinearCosts(bytes_per_s=100 * MIB, host_bytes_per_s=150 * MIB))
    assert plan.copy(copy("t.p", "host", 0), 0.0).end_s == pytest.approx(1.0)
    assert plan.copy(copy("t.d", "device", 1), 0.0).end_s == pytest.approx(200 / 150)


def test_a_link_s_queue_does_not_keep_the_host_s_memory_from_others() -> None:
    """Ten seconds of copies wait for one link, and take one second of the memory."""
    plan = devices(LinearCosts(bytes_per_s=100 * MIB, host_bytes_per_s=1000 * MIB))
    ends_s = [plan.copy(copy("t.p", "host", ticket), 0.0).end_s for ticket in range(10)]
    assert ends_s == pytest.approx([1.0 + ticket for ticket in range(10)])
    assert plan.copy(copy("t.d", "host", 10), 0.0).end_s == pytest.approx(1.1)


def test_a_datasheet_says_what_the_host_s_memory_has() -> None:
    """An H200's host reads 300 GB/s at best, 225 of them; its link has 64, 51.2 of them."""
    known = find_costs("h200")
    assert known.host_s(225e9) == pytest.approx(1.0)
    assert known.copy_s(copy("t.p", "host", 0), 51.2e9) == pytest.approx(1.0, rel=1e-4)
    assert msgspec.structs.replace(known, links={}).host_s(1e9) == 0.0


def test_a_link_of_another_rate() -> None:
    """Copies of 8 GB/s each way; what comes before the first byte stays."""
    known = find_costs("h200")
    slow = known.with_host_link(8e9)
    for to in ("host", "device"):
        assert slow.copy_s(copy("t.p", to, 0), 4e9) == pytest.approx(0.5 + 20e-6)
    assert slow.send_s(1e9) == known.send_s(1e9)


@pytest.mark.parametrize("order", [copy("t.p", "host", 0), move(0)])
def test_kv_of_a_size_that_nobody_knows_is_not_copied_for_nothing(order: CopyBlocks | MoveBlocks) -> None:
    plan = Devices(PER_SECOND, UNITS, {("t", "other"): 1})
    with pytest.raises(
        ConfigError, match=r"the size of a block of the t's KV group 'kv' is not known .*t/other"
    ):
        plan.move(order, 0.0) if isinstance(order, MoveBlocks) else plan.copy(order, 0.0)
