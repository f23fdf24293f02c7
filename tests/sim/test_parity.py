"""The simulator is the server with its clock and executors exchanged: the same facts, the same plans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from antiphon.assembly.node import Node
from antiphon.assembly.preset import read_preset, with_preset
from antiphon.core.config import NodeConfig, PolicyChoice, Unit
from antiphon.core.facts import CopyDone, Fact, MediaArrived, PayloadArrived, ResponseRequested, StepDone
from antiphon.core.plans import ArStep, CopyBlocks, MoveBlocks, RenderPrompt
from antiphon.latency.costs import Times
from antiphon.latency.ladder import Ladder
from antiphon.latency.models import ArModel, AttentionModel, CodecModel, LinkModel
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.record import _sounding, without_media
from fakes.world import HURRIED, READERS, toy_config
from sim.parity import Entries, on_virtual_time, on_wall_time
from sim.scripts import advised, drawn_script
from sim.test_reading import cascade_config

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
APART = (
    Unit("encoders", "encoders"),
    Unit("thinker", "thinker", "a", "writes"),
    Unit("talker", "talker", "a", "speaks"),
    Unit("code2wav", "code2wav", "a", "speaks"),
)
"""Two processes beside the driver's own."""
SPLIT = (
    Unit("encoders", "encoders", "a"),
    Unit("thinker.0", "thinker", "a", role="prefill"),
    Unit("thinker.1", "thinker", "b", role="decode"),
    Unit("talker", "talker", "c"),
    Unit("code2wav", "code2wav", "c"),
)
"""KV moves from the unit that reads to the one that writes."""
PLACES = {"one": ONE, "two each": TWO_EACH, "apart": APART, "split": SPLIT}


def tight(units: tuple[Unit, ...] = ONE, rows: int = 3, step_tokens: int = 12) -> NodeConfig:
    """Pools so small that what rests goes to the host, and comes back."""
    return toy_config(rows=rows, blocks=13, step_tokens=step_tokens, units=units, host_blocks=48)


def check_parity(config: NodeConfig, seed: int, depth: int, decide_s: float) -> Entries:
    """Every decision at the same time, with the same facts, orders and outputs; returns those."""
    script = drawn_script(seed)
    wall = on_wall_time(config, script, depth, decide_s)
    virtual = on_virtual_time(config, script, depth, decide_s)
    assert wall.kept
    for recorded, simulated in zip(wall.kept, virtual.kept, strict=True):
        assert recorded == simulated
    return wall


@pytest.mark.parametrize("units", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("depth", [0, 1])
@settings(max_examples=4, deadline=None)
@given(
    decide_s=st.sampled_from([0.0017, 0.0]),
    seed=st.integers(0, 1 << 30),
    rows=st.integers(1, 3),
    step_tokens=st.integers(1, 12),
    is_tight=st.booleans(),
)
def test_same_facts_same_plans(
    depth: int,
    units: tuple[Unit, ...],
    decide_s: float,
    seed: int,
    rows: int,
    step_tokens: int,
    is_tight: bool,
) -> None:
    make = tight if is_tight else toy_config
    check_parity(make(units=units, rows=rows, step_tokens=step_tokens), seed, depth, decide_s)


@pytest.mark.parametrize("depth", [0, 1])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_what_people_hear_decides_the_same(depth: int, seed: int) -> None:
    check_parity(with_preset(tight(), HURRIED), seed, depth, 0.0017)


@pytest.mark.parametrize("depth", [0, 1])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1 << 30))
@example(seed=999999)  # the last that runs was preempted before
def test_what_readers_have_left_decides_the_same(depth: int, seed: int) -> None:
    check_parity(with_preset(tight(), READERS), seed, depth, 0.0017)


@pytest.mark.parametrize("units", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("depth", [0, 1])
def test_copies_are_told_beside_other_facts(depth: int, units: tuple[Unit, ...]) -> None:
    """What is compared has copies to the host and back in it, moves, and what other processes send. Deciding
    takes so long that much of it is told together."""
    told = check_parity(tight(units), seed=5, depth=depth, decide_s=0.006)
    assert {order.to for order in told.orders if isinstance(order, CopyBlocks)} == {"host", "device"}
    assert any(isinstance(order, MoveBlocks) for order in told.orders) == (units == SPLIT)
    arrived = {type(fact) for fact in told.facts} & {PayloadArrived, MediaArrived}
    assert arrived == ({PayloadArrived, MediaArrived} if units == APART else set())


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("is_tight", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_turns_are_prepared_alike(depth: int, seed: int, is_tight: bool) -> None:
    config = (tight if is_tight else toy_config)()
    script = advised(drawn_script(seed, num_sessions=2))
    wall = on_wall_time(config, script, depth, 0.0017)
    assert wall.kept == on_virtual_time(config, script, depth, 0.0017).kept
    rendered = [order for order in wall.orders if isinstance(order, RenderPrompt)]
    asked = [fact for fact in wall.facts if isinstance(fact, ResponseRequested)]
    assert len(rendered) > len(asked), "some were read ahead"


@pytest.mark.parametrize("decide_s", [0.0, 0.0017])
@pytest.mark.parametrize("depth", [0, 1])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1 << 30), rows=st.integers(1, 3))
def test_a_cascade_is_decided_the_same(depth: int, decide_s: float, seed: int, rows: int) -> None:
    """Recordings are written down before prompts are made, and text is spoken by phrases."""
    check_parity(cascade_config(rows), seed, depth, decide_s)


def test_a_cascade_is_told_of_transcripts_and_words() -> None:
    """What is compared has them in it."""
    told = check_parity(cascade_config(), seed=5, depth=1, decide_s=0.0017)
    done = [fact for fact in told.facts if isinstance(fact, StepDone)]
    assert {fact.stage for fact in done} == {"ears", "transcriber", "thinker", "voice"}
    assert any(len(fact.words) for fact in done)
    assert any(len(fact.owing) for fact in done)
    orders = [order for order in told.orders if isinstance(order, RenderPrompt)]
    assert any(order.transcripts for order in orders)


def thrifty(times: dict[str, Any]) -> NodeConfig:
    """Decided by what steps and copies cost."""
    choice = PolicyChoice("sim.thrifty:Thrifty")
    policies = read_preset("baseline") | {"step": choice, "write": choice}
    return msgspec.structs.replace(tight(), policies=policies, times=times)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("is_profiled", [False, True])
def test_policies_that_read_costs_are_told_the_same_and_decide_the_same(
    is_profiled: bool, depth: int
) -> None:
    """And again, when the record of it is replayed."""
    config = thrifty(PROFILED.written if is_profiled else {})
    told = check_parity(config, seed=5, depth=depth, decide_s=0.0017)
    done = [fact for fact in told.facts if isinstance(fact, StepDone | CopyDone)]
    assert all(fact.seconds > 0 for fact in done)
    reasons = {order.reason for order in told.orders if isinstance(order, ArStep)}
    assert len(reasons) > 20, "costs were read, and are not all alike"
    node = Node(config, depth)
    for now, facts, decision in told.kept:
        found = node.decide([_sounding(fact) for fact in decoder(tuple[Fact, ...]).decode(facts)], now)
        assert encode(without_media(found)) == decision


PROFILED = Times(
    stages={
        stage: ArModel(2, Ladder((1, 64), (0.001, 0.02)), Ladder((1,), (0.001,)), AttentionModel(1e-6))
        for stage in ("thinker", "talker")
    }
    | {"code2wav": CodecModel(0.001, 0.0, 0.001, 0.0005)},
    links={"host": LinkModel(1e-5, 1e-6), "device": LinkModel(1e-5, 1e-6)},
    block_bytes={"thinker": {"kv": 1900, "hidden": 500}, "talker": {"kv": 1100}},
)
