"""Whatever is ordered of rows and blocks, in whatever order: the tokens are the reference's.

Hypothesis orders joins of prompts, steps of some rows, rows that leave a layer and enter it later, and groups
of a row's KV that are copied to the host, lost on the device and copied back to other blocks.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from exactness.conftest import World
from exactness.rig import Rig

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")

INDICES = [0, 1, 2, 3]


class Moves(RuleBasedStateMachine):
    """away: what lies on the host alone, by group: (row, host blocks). parked: row -> the layer it left."""

    world: World

    @initialize(seed=st.integers(0, 999), num_groups=st.sampled_from([0, 2, 4]))
    def begin(self, seed: int, num_groups: int) -> None:
        self.rig = Rig(self.world, np.random.default_rng(seed), INDICES, num_groups, host_blocks=48)
        self.groups = [group for group in self.rig.pool.groups if group != "hidden"]
        self.unseated = list(range(len(INDICES)))
        self.parked: dict[int, int] = {}
        self.away: dict[str, tuple[int, list[int]]] = {}
        self.waits: tuple[int, ...] = ()

    @property
    def whole(self) -> list[int]:
        """Rows that have more to say, with all of their KV on the device or on its way."""
        gone = {row for row, _ in self.away.values()}
        return [row for row in self.rig.unfinished if row not in gone]

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        joins = [self.unseated.pop()] if self.unseated and data.draw(st.booleans()) else []
        rows = data.draw(st.lists(st.sampled_from(self.whole), unique=True)) if self.whole else []
        if not rows and not joins:
            return
        enters = {row: self.parked.pop(row) for row in rows if row in self.parked}
        leaves: dict[int, int] = {}
        for row in rows:
            layers = range(enters.get(row, -1) + 1, self.rig.pool.num_layers)
            if layers and data.draw(st.booleans()):
                leaves[row] = data.draw(st.sampled_from(layers))
        self.rig.step(rows, joins, leaves, enters, self.waits)
        self.parked |= leaves
        if self.waits:
            self.rig.settle()
            self.waits = ()

    @precondition(lambda self: self.whole and len(self.away) < len(self.groups))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A group of a row goes to the host, and its device blocks to somebody else."""
        self.rig.settle()
        self.waits = ()
        row = data.draw(st.sampled_from(self.whole))
        group = data.draw(st.sampled_from([group for group in self.groups if group not in self.away]))
        _, host = self.rig.copy_out(row, group)
        self.rig.settle()
        self.rig.drop(row, group)
        self.away[group] = row, host

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        """The next step waits for it, layer by layer."""
        group = data.draw(st.sampled_from(sorted(self.away)))
        row, host = self.away.pop(group)
        self.waits = (*self.waits, self.rig.copy_back(row, group, host))

    @invariant()
    def says_what_the_reference_says(self) -> None:
        if hasattr(self, "rig"):
            for row, said in enumerate(self.rig.tokens):
                assert said == self.rig._expected(row)[: len(said)]

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        for group in sorted(self.away):
            self.waits = (*self.waits, self.rig.copy_back(self.away[group][0], group, self.away[group][1]))
        self.away = {}
        while self.rig.unfinished or self.unseated:
            joins = [self.unseated.pop()] if self.unseated else []
            rows = self.rig.unfinished
            enters = {row: self.parked.pop(row) for row in rows if row in self.parked}
            self.rig.step(rows, joins, {}, enters, self.waits)
            self.rig.settle()
            self.waits = ()
        self.rig.check()


def explore(world: World, examples: int, steps: int) -> None:
    machine = type("MovesOfTheWorld", (Moves,), {"world": world})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    limits = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=checks,
    )
    run_state_machine_as_test(machine, settings=limits)


def test_moves_of_any_kind(world: World) -> None:
    explore(world, examples=12, steps=20)


@pytest.mark.slow
def test_moves_of_any_kind_at_length(world: World) -> None:
    """10,000 orders."""
    explore(world, examples=250, steps=40)
