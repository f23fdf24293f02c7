"""What every state machine over a node can do: turn it, let it rest, and break copies."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from antiphon.core.facts import SessionClosed
from fakes.cache import check_cache_leaves
from fakes.world import World


class Turning(RuleBasedStateMachine):
    """Over `world`, which `begin` makes."""

    world: World

    @rule(copies=st.integers(1, 4), count=st.integers(1, 30))
    def break_copies(self, copies: int, count: int) -> None:
        """So many copies break off, if there are any in the next few turns."""
        self.world.mover.num_failing = copies
        self.turn(count)
        self.world.mover.num_failing = 0

    @rule(count=st.integers(1, 40))
    def turn(self, count: int) -> None:
        for _ in range(count):
            self.world.turn()

    @rule()
    def rest(self) -> None:
        self.world.run()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.run()
        for heard in self.world.responses.values():
            self.world.check(heard)
        self.check_rested()
        closed = enumerate(self.open_sessions)
        self.world.send(*(SessionClosed(session, keeps_kv=number % 2 == 0) for number, session in closed))
        self.world.run()
        self.world.check_empty()
        for ar in self.world.node.stages.ar.values():
            check_cache_leaves(ar.kv)

    @property
    def open_sessions(self) -> list[str]:
        raise NotImplementedError

    def check_rested(self) -> None:
        """What else holds once all responses have ended and nobody has left."""
