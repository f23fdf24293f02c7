"""What policies see of times: lanes, reloads, recomputing, steps, by a profile or by what was observed."""

from __future__ import annotations

from math import inf, isnan
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from antiphon.assembly.node import Node
from antiphon.assembly.preset import read_preset
from antiphon.assembly.times import with_profile
from antiphon.core.config import NodeConfig, PolicyChoice
from antiphon.core.conversation import Item, TextPart
from antiphon.core.errors import ConfigError
from antiphon.core.facts import NO_INTS, ResponseRequested, SessionOpened
from antiphon.latency.costs import Times
from antiphon.latency.finding import find_costs
from antiphon.latency.shapes import find_shape
from antiphon.policy.base import Budget, Place, StepChoice, StepView
from antiphon.policy.memory import KvView, LaneState, Selection
from antiphon.policy.prefill_first import PrefillFirst
from antiphon.policy.write_back import WriteBack
from fakes.world import World, toy_config
from sim.parity import Entries, on_virtual_time
from sim.scripts import drawn_script

H200 = find_costs("h200")


class Seeing:
    """Decides as the baseline does, and keeps what it saw."""

    name = "seeing"
    candidates: ClassVar[list[tuple[int, float]]] = []
    lanes: ClassVar[list[tuple[LaneState, LaneState, float]]] = []

    def __init__(self) -> None:
        self._step, self._write = PrefillFirst(), WriteBack()

    def decide_step(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        columns = view.place[view.num_rows :], view.reload_s[view.num_rows :]
        self.candidates.extend(zip(*(column.tolist() for column in columns), strict=True))
        assert not view.reload_s[: view.num_rows].any()
        return self._step.decide(view, budget, now)

    def decide_write(self, view: KvView, now: float) -> Selection:
        self.lanes.append((view.out, view.back, view.step_s))
        return self._write.decide(view, now)


class Writing(Seeing):
    """Writes a block at a time."""

    name = "writing"

    def decide_write(self, view: KvView, now: float) -> Selection:
        super().decide_write(view, now)
        return Selection(view.dirty(), 1, "it is there")


def seeing(times: dict[str, Any], seed: int) -> None:
    """A run on virtual time, short of memory."""
    Seeing.candidates, Seeing.lanes = [], []
    choice = PolicyChoice(f"{__name__}:Seeing")
    policies = read_preset("baseline") | {"step": choice, "write": choice}
    config = toy_config(rows=3, blocks=13, step_tokens=12, host_blocks=48)
    told: Entries = on_virtual_time(
        msgspec.structs.replace(config, policies=policies, times=times), drawn_script(seed), 1
    )
    assert told.kept


def profiled(config: NodeConfig) -> dict[str, Any]:
    return with_profile(config, H200).times


@pytest.mark.parametrize("is_profiled", [False, True])
def test_views_tell_lanes_and_reloads(is_profiled: bool) -> None:
    seeing(profiled(toy_config()) if is_profiled else {}, seed=5)
    on_host = [reload_s for place, reload_s in Seeing.candidates if place != Place.DEVICE]
    here = [reload_s for place, reload_s in Seeing.candidates if place == Place.DEVICE]
    assert here
    assert not any(here)
    assert any(reload_s > 0 for reload_s in on_host)
    outs, backs, steps_s = zip(*Seeing.lanes, strict=True)
    assert any(lane.num_blocks and lane.queued_s > 0 and lane.block_s > 0 for lane in outs)
    assert any(lane.block_s > 0 for lane in backs)
    assert any(0 < step_s < inf for step_s in steps_s)
    assert inf in steps_s, "none runs"
    if is_profiled:
        assert not any(isnan(lane.block_s) for lane in (*outs, *backs))
    else:
        assert isnan(outs[0].block_s), "nothing was reported yet"
        assert any(isnan(step_s) for step_s in steps_s)


def test_a_profile_prices_steps_of_decoders_and_codecs_and_leaves_encoders_to_what_is_observed() -> None:
    node = Node(with_profile(toy_config(), H200))
    ones = np.ones(3, np.int64)
    for name in ("thinker", "talker", "code2wav"):
        view, _ = node.stages.find(name).choose(0.0)
        assert view.cost is not None
        assert 0 < view.cost.seconds(ones, ones * 9) < view.cost.seconds(ones * 50, ones * 9)
        assert view.cost.seconds(NO_INTS, NO_INTS) == 0.0
    encoders, _ = node.stages.find("encoders").choose(0.0)
    assert encoders.cost is not None
    assert isnan(encoders.cost.seconds(ones, ones))


def test_blocks_have_the_bytes_that_the_nodes_groups_have() -> None:
    groups = (("low", 0, 12), ("high", 12, 48))
    known = Times.of(with_profile(toy_config(layer_groups=groups), H200).times).block_bytes
    whole = H200.stages["thinker"].block_bytes["kv"]
    assert known["thinker"]["low"] == pytest.approx(whole / 4 * 12 / 48), "blocks of 4 tokens, not 16"
    assert known["thinker"]["high"] == 3 * known["thinker"]["low"]


def test_a_profile_of_another_model_and_times_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not say what a step of the talker takes"):
        with_profile(toy_config(), find_costs("a6000", find_shape("llama-3-8b")))
    with pytest.raises(ConfigError, match=r"times: .*part of a latency profile"):
        Node(msgspec.structs.replace(toy_config(), times={"stages": 3}))


def test_a_write_is_told_what_is_left_of_the_step() -> None:
    Seeing.lanes = []
    policies = read_preset("baseline") | {"write": PolicyChoice(f"{__name__}:Writing")}
    config = msgspec.structs.replace(toy_config(host_blocks=48, speaks=False), policies=policies)
    world = World(with_profile(config, H200))
    item = Item("hello", "user", (TextPart("hello there, all of you"),))
    world.send(SessionOpened("a"), ResponseRequested("a", "one", "reply", items=(item,)))
    while not world.entry.tiers.writes.num_written_blocks:
        world.turn()
    whole_s = Seeing.lanes[-1][2]
    assert whole_s > 0
    world.node.decide([], world.now + whole_s / 4)
    assert Seeing.lanes[-1][2] == pytest.approx(0.75 * whole_s)
    world.node.decide([], world.now + 2 * whole_s)
    assert Seeing.lanes[-1][2] == 0.0
