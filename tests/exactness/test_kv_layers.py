"""Tokens equal transformers' however the KV is split by layers, copied away and back, and while rows leave
and enter the batch between two halves of a layer.
"""

from __future__ import annotations

from threading import Event

import numpy as np
import pytest
import torch

from antiphon import Omni
from antiphon.engine import copies
from antiphon.models.decoder import DecoderLayer
from exactness.conftest import World
from exactness.rig import Rig, regrouped
from exactness.talk import SIZES, Talk
from exactness.test_reference import check

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")

LATE = 2


@pytest.mark.parametrize("num_groups", [1, 2, 99], ids=["one", "two", "one a layer"])
def test_groups_of_layers(world: World, num_groups: int) -> None:
    """Text, frames and sound of everybody, with groups that don't deal out the same block ids."""
    talk = Talk(regrouped(world.omni.engine, num_groups))
    for scheduler in talk.driver.node.stages.ar.values():
        for turn, pool in enumerate(scheduler.kv.blocks._pools):
            pool._free.rotate(7 * turn)
    indices = range(len(world.contents))
    for index in indices:
        talk.open(str(index), world.item(index))
        talk.ask(str(index))
        talk.step(2)
    talk.run()
    for index in indices:
        check(talk.said[str(index)], world.expect_content(index), world.eos)
    talk.close(*map(str, indices))
    talk.run()
    talk.check_all_free()


@pytest.mark.parametrize("num_groups", [0, 2, 4])
def test_copied_out_dropped_and_copied_back(world: World, num_groups: int) -> None:
    """One row's groups go and come back alone, in any order, while the others go on."""
    rig = Rig(world, np.random.default_rng(num_groups), [1, 3, 5], num_groups, host_blocks=48)
    rig.step([], joins=[0, 1, 2])
    for group in rig.rng.permutation(rig.pool.groups).tolist():
        rig.step([0, 1])
        before = rig.tables[group, 1]
        ticket, host = rig.copy_out(1, group)
        rig.step([0, 2])
        assert rig.settle() == [ticket]
        rig.drop(1, group)
        rig.step([2])
        back = rig.copy_back(1, group, host)
        assert not set(rig.tables[group, 1]) & set(before)
        rig.step([1], waits=(back,))
        assert rig.settle() == [back]
    rig.finish()


def test_what_lies_beside_the_layers_is_copied_as_well(world: World) -> None:
    rig = Rig(world, np.random.default_rng(0), [1], 0, host_blocks=48)
    rig.step([], joins=[0])
    positions = np.arange(rig.lengths[0])
    before = rig.runner.payload(0, positions)
    assert before.any()
    _, host = rig.copy_out(0, "hidden")
    rig.settle()
    rig.drop(0, "hidden")
    assert not torch.equal(rig.runner.payload(0, positions), before)
    rig.step([0], waits=(rig.copy_back(0, "hidden", host),))
    rig.settle()
    assert torch.equal(rig.runner.payload(0, positions), before)


def test_captured_states_wait_for_what_their_blocks_still_wait_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt's last block may be on its way while more of the prompt is written to it."""
    rng = np.random.default_rng(3)
    rig, undisturbed = (Rig(world, np.random.default_rng(3), [1], 0, host_blocks=8) for _ in range(2))
    undisturbed.step([], joins=[0])
    computed = Event()
    copy_runs, end = copies.copy_runs, rig.runner._piggyback.end

    def copies_late(source, target, pieces):
        assert computed.wait(20)
        copy_runs(source, target, pieces)

    def watched(*args):
        end(*args)
        computed.set()

    monkeypatch.setattr(copies, "copy_runs", copies_late)
    monkeypatch.setattr(rig.runner._piggyback, "end", watched)
    ticket = rig._copy("hidden", "device", rng.permutation(8).tolist(), rig.free["hidden"][:8])
    rig.step([], joins=[0], waits=(ticket,))
    rig.settle()
    positions = np.arange(rig.lengths[0])
    assert torch.equal(rig.runner.payload(0, positions), undisturbed.runner.payload(0, positions))


def test_a_late_layer_is_waited_for_at_that_layer_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layers arrive only after the step has come to the attention of the first that is late."""
    rig = Rig(world, np.random.default_rng(1), [1, 2], 0, host_blocks=48)
    rig.step([], joins=[0, 1])
    rig.step([0, 1])
    _, host = rig.copy_out(1, "kv")
    rig.settle()
    rig.drop(1, "kv")
    reached, released = Event(), []
    copy_runs, pre_attention = copies.copy_runs, DecoderLayer.pre_attention
    late_pages = rig.pool.device["kv"][LATE]
    late_layer = rig.runner._model.decoder.layers[LATE]

    def copies_late(source, target, pieces):
        if target is late_pages:
            released.append(reached.wait(20))
        copy_runs(source, target, pieces)

    def watched(self, *args):
        out = pre_attention(self, *args)
        if self is late_layer:
            reached.set()
        return out

    monkeypatch.setattr(copies, "copy_runs", copies_late)
    monkeypatch.setattr(DecoderLayer, "pre_attention", watched)
    back = rig.copy_back(1, "kv", host)
    assert not rig.copies.poll()
    rig.step([1, 0], waits=(back,))
    assert released == [True]
    assert rig.settle() == [back]
    rig.finish()


@pytest.mark.parametrize("num_groups", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_rows_leave_and_enter_at_any_layer(world: World, seed: int, num_groups: int) -> None:
    """Random schedules; prompts join in the middle of it."""
    rng = np.random.default_rng(seed)
    rig = Rig(world, rng, [0, 1, 2, 3, 5], num_groups)
    last = rig.pool.num_layers - 1
    parked: dict[int, int] = {}
    unseated = [0, 1, 2, 3, 4]
    num_moves = num_hops = num_alone = 0
    while unseated or rig.unfinished:
        joins = [unseated.pop()] if unseated and rng.random() < 0.3 else []
        rows = [row for row in rng.permutation(rig.unfinished).tolist() if rng.random() < 0.7]
        if not rows and not joins:
            continue
        enters = {row: parked.pop(row) for row in rows if row in parked}
        earliest = {row: enters.get(row, -1) + 1 for row in rows}
        leaves = {
            row: int(rng.integers(first, last + 1))
            for row, first in earliest.items()
            if first <= last and rng.random() < 0.5
        }
        rig.step(rows, joins, leaves, enters)
        parked |= leaves
        num_moves += len(leaves)
        num_hops += len(leaves.keys() & enters.keys())
        num_alone += not joins and set(rows) == set(enters)
    assert num_moves > 20
    assert num_hops > 3
    assert num_alone > 1
    rig.check()


def test_states_of_rows_that_move_are_kept_from_the_step_that_computed_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that enters above the layer whose states are kept has no say in what was kept of it before."""
    moved, undisturbed = (Rig(world, np.random.default_rng(4), [1, 2], 0) for _ in range(2))
    capture_layer = moved.runner._model.capture_layer
    assert 0 < capture_layer < moved.pool.num_layers - 1
    for rig in (moved, undisturbed):
        monkeypatch.setattr(rig.runner._model, "keeps_all", True)
        rig.step([], joins=[0, 1])
    above = capture_layer + 1
    for _ in range(3):
        moved.step([0, 1], leaves={1: above})
        moved.step([1, 0], enters={1: above})
        undisturbed.step([0, 1])
        undisturbed.step([0])
        for row in (0, 1):
            positions = np.arange(moved.lengths[row])
            kept, wanted = moved.runner.payload(row, positions), undisturbed.runner.payload(row, positions)
            assert torch.equal(kept, wanted)


def test_a_parked_row_may_be_moved_meanwhile(world: World) -> None:
    """What is kept of it is written to where its KV lies when it enters."""
    rig = Rig(world, np.random.default_rng(2), [1, 2], 2, host_blocks=48)
    rig.step([], joins=[0, 1])
    rig.step([0, 1], leaves={1: 1})
    for group in rig.pool.layer_groups:
        _, host = rig.copy_out(1, group)
        rig.settle()
        rig.drop(1, group)
        back = rig.copy_back(1, group, host)
        rig.step([0])
        rig.settle()
    rig.step([1, 0], enters={1: 1}, waits=(back,))
    rig.finish()


def test_an_operator_may_split_layers(world: World) -> None:
    omni = Omni(world.path, device="cpu", dtype="float64", layer_groups=3, **SIZES)
    assert [len(ar.layer_groups) for ar in omni.engine.node.ar.values()] == [3, 2], "at most one a layer"
    talk = Talk(omni.engine)
    talk.open("s", world.item(3))
    talk.ask("s")
    talk.run()
    check(talk.said["s"], world.expect_content(3), world.eos)
