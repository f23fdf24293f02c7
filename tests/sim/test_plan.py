"""How many conversations fit: the search, and what was short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.latency.finding import find_costs
from antiphon.latency.ladder import Ladder
from antiphon.latency.models import ArModel, AttentionModel
from antiphon.latency.profile import Profile
from antiphon.metrics.log import Event, ServerSampled
from antiphon.metrics.slo import Slo
from antiphon.sim.bottleneck import DECIDING, bottleneck, device_loads, stage_loads
from antiphon.sim.model import released
from antiphon.sim.places import Replicas
from antiphon.sim.plan import Tried, num_left, run_with, search
from antiphon.sim.sizes import Sizes
from sim.linear import LinearCosts
from sim.runs import setup, started

UNITS = released().node.placed


def tried(number: int, holds: bool) -> Tried:
    return Tried(number, {}, () if holds else ("too slow",), (), {}, "")


@given(limit=st.integers(0, 300), first=st.integers(1, 50), most=st.integers(1, 400))
def test_the_search_ends_beside_the_limit(limit: int, first: int, most: int) -> None:
    found = list(search(lambda number: tried(number, number <= limit), first, most))
    answer = max((one.conversations for one in found if one.holds), default=0)
    assert answer <= min(limit, most)
    assert min(limit, most) - answer <= max(1, answer // 32) - (answer < 64)
    assert all(1 <= one.conversations <= most for one in found)
    assert len({one.conversations for one in found}) == len(found) <= 20


@given(limit=st.integers(0, 300), first=st.integers(1, 50), most=st.integers(1, 400))
def test_what_is_left_of_the_search_is_known_once_a_bound_was_missed(
    limit: int, first: int, most: int
) -> None:
    found = list(search(lambda number: tried(number, number <= limit), first, most))
    for index in range(1, len(found) + 1):
        seen, left = found[:index], num_left(found[:index])
        assert (left is None) == all(one.holds for one in seen)
        assert left is None or left >= len(found) - index


def test_more_conversations_than_a_machine_carries_miss_a_bound() -> None:
    made = setup("voice-chat", costs=LinearCosts(launch_s=0.03))
    few, many = (run_with(made, number, 20.0, Slo(), started()) for number in (1, 24))
    assert few.holds
    assert not many.holds
    assert "ttfp_s.p90" in many.missed[0]
    assert many.short
    busy = {load.stage: load.busy_share for load in many.loads}
    assert many.devices["talker"] == pytest.approx(busy["talker"] + busy["code2wav"])
    assert many.devices["talker"] <= 1.0 + 1e-9


def sampled(t_s: float, stage: str = "talker", **values: float) -> ServerSampled:
    names = {
        "seconds": "antiphon_step_seconds_total",
        "waiting": "antiphon_requests_waiting",
        "lost": "antiphon_preemptions_total",
        "blocks": "antiphon_kv_blocks",
        "free": "antiphon_kv_blocks_free",
    }
    return ServerSampled(
        t_s=t_s, values={f'{names[key]}{{stage="{stage}"}}': one for key, one in values.items()}
    )


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"seconds": 9.5, "waiting": 4.0, "lost": 0.0}, "time on device talker (talker, code2wav): busy 95%"),
        ({"seconds": 4.0, "waiting": 4.0, "lost": 0.0}, "rows of the talker: 2.0 requests wait"),
        ({"seconds": 4.0, "waiting": 1.0, "lost": 0.0}, "time on device talker (talker, code2wav): busy 40%"),
        ({"seconds": 9.5, "waiting": 4.0, "lost": 3.0}, "KV of the talker: 3 requests"),
    ],
)
def test_what_was_short(last: dict[str, float], said: str) -> None:
    events: list[Event] = [sampled(0.0, seconds=0.0, waiting=0.0, lost=0.0), sampled(10.0, **last)]
    loads, busy = stage_loads(events, UNITS), device_loads(events, UNITS)
    assert bottleneck(loads, busy, UNITS).startswith(said)


def talking_every(step_s: float) -> Profile:
    """An H200 whose talker takes so long for a step, whatever is in it."""
    known = find_costs("h200")
    at_once = ArModel(1, Ladder((1,), (0.0,)), Ladder((1,), (0.0,)), AttentionModel(), step_s=step_s)
    talker = replace(known.stages["talker"], model=at_once)
    return replace(known, stages=known.stages | {"talker": talker})


@pytest.mark.parametrize(("frame_ms", "holds"), [(56, True), (60, False), (85, False)])
def test_a_talker_keeps_up_if_the_first_sound_lasts_until_the_next(frame_ms: int, holds: bool) -> None:
    """By hand: the first chunk is two frames of 80 ms less the vocoder's 23 ms, the next one is there after
    four steps, and a silence of 100 ms is a stall: a step may take (137 + 100) / 4 = 59 ms. Beyond 80 ms
    nothing that is said at length keeps up."""
    made = setup("voice-chat", costs=talking_every(frame_ms / 1000), engine=released())
    alone = run_with(made, 1, 60.0, Slo(), started())
    assert alone.holds is holds
    assert ("continuity" in " ".join(alone.missed)) is not holds
    if not holds:
        assert alone.figures["continuity"] < 0.5


def test_more_talkers_carry_more() -> None:
    """With a talker of one row, replies come one after the other: two talkers serve twice as many."""
    costs, sizes = talking_every(0.04), Sizes(max_rows=1, kv_tokens=32_768)
    served = [
        run_with(
            setup("voice-chat", costs=costs, engine=released(sizes=sizes, replicas=Replicas(1, talkers))),
            12,
            60.0,
            Slo(),
            started(),
        )
        for talkers in (1, 2)
    ]
    one, two = (tried.figures["completed_rps"] for tried in served)
    assert two == pytest.approx(2 * one, rel=0.25)
    assert served[0].devices["talker"] > 0.9
    assert served[1].devices["talker.0"] == pytest.approx(served[1].devices["talker.1"], rel=0.1)
    assert served[0].short.startswith("time on device talker (talker, code2wav)")


def test_one_process_decides_for_all_devices() -> None:
    events: list[Event] = [sampled(0.0, seconds=0.0, waiting=0.0), sampled(10.0, seconds=9.5, waiting=9.0)]
    busy = device_loads(events, UNITS) | {DECIDING: 0.93}
    assert bottleneck(stage_loads(events, UNITS), busy, UNITS).startswith("time to decide")
    made = setup("voice-chat", costs=LinearCosts(decide_s=0.02))
    assert run_with(made, 4, 10.0, Slo(), started()).devices[DECIDING] > 0.5


def test_kv_that_is_idle_is_not_full() -> None:
    (load,) = [
        load for load in stage_loads([sampled(0.0, blocks=10.0, free=4.0)], UNITS) if load.stage == "talker"
    ]
    assert load.kv_full_share == pytest.approx(0.6)
