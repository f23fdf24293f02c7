"""The preset `tokenflow` on an omni thinker whose device holds a fraction of what is asked for: replies in
writing give way, leave for the host and go on, beside people who are spoken to. What is said is what
transformers says."""

from __future__ import annotations

import select
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock

import numpy as np
import pytest
import torch

import antiphon.assembly
from antiphon.assembly.preset import with_preset
from antiphon.core.plans import ArStep
from antiphon.engine import lanes
from antiphon.engine.copies import KvCopies, Move
from antiphon.engine.load import in_lane
from antiphon.metrics.names import Metric
from antiphon.stage.kv_asks import KvMove, KvMoved
from exactness.conftest import World
from exactness.rig import regrouped
from exactness.talk import WAIT_S, Talk
from exactness.test_reference import check

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")

SHIPPED = Path(antiphon.assembly.__file__).parent / "presets" / "tokenflow.yaml"
QUICK = "policy: token-buffer, interval_s: 0.03, value_s: 0.1, safety: 1.0"
"""Rounds and leads so short that replies of a few tokens give way to each other."""
ASKED = (0, 1, 3, 4, 2)
"""Contents, by turns."""
NUM_PEOPLE, SPOKEN_TO = 13, (2, 9)
STEP_S = 0.01
FAST_S, SLOW_S = 1e-5, 0.03
"""A copy of one KV group: far less than it takes to compute it again, and far more."""
PHASE_S = 0.5
"""The link is fast for so long, and then slow."""
MOST_TURNS = 2000


class Link:
    """To the host and back, on a clock that the test sets. Some copies break off at their last layer."""

    def __init__(self, seed: int, share_failing: float) -> None:
        self.now = 0.0
        self.num_failed = 0
        self.lock = RLock()
        """A step that waits for a copy may do so in a thread of its own."""
        self._rng, self._share_failing = np.random.default_rng(seed), share_failing

    def clock(self) -> float:
        return self.now

    def copy_s(self) -> float:
        return SLOW_S if int(self.now / PHASE_S) % 2 else FAST_S

    def fails(self) -> bool:
        return self._rng.random() < self._share_failing


class LateLane:
    """Moves a layer as late as it may: once a step waits for it, or once the copy is due."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.under_way: deque[LateCopy] = deque()
        self._free_at = 0.0

    def start(self, group: str, moves: list[Move]) -> LateCopy:
        with self.link.lock:
            seconds = self.link.copy_s()
            self._free_at = max(self._free_at, self.link.now) + seconds
            self.under_way.append(LateCopy(self, group, moves, seconds, self._free_at, self.link.fails()))
            return self.under_way[-1]


@dataclass(eq=False)
class LateCopy:
    lane: LateLane
    group: str
    moves: list[Move]
    seconds: float
    due: float
    fails: bool
    _num_moved: int = 0
    _error: Exception | None = None

    def poll(self) -> bool:
        if self.lane.link.now < self.due:
            return False
        self.wait(len(self.moves) - 1)
        return True

    def wait(self, layer: int) -> None:
        """Those that were ordered before it are carried out first, whole."""
        with self.lane.link.lock:
            while self in self.lane.under_way and (first := self.lane.under_way[0]) is not self:
                first._move(len(first.moves) - 1)
                self.lane.under_way.popleft()
            self._move(layer)
        if self._error is not None:
            raise self._error

    def _move(self, layer: int) -> None:
        try:
            for at in range(self._num_moved, layer + 1) if self._error is None else ():
                if self.fails and at == len(self.moves) - 1:
                    self.lane.link.num_failed += 1
                    raise RuntimeError("out of luck")
                self.moves[at]()
                self._num_moved = at + 1
        except Exception as error:
            self._error = error


@dataclass
class Resumed:
    """How requests of the thinker went on after they had lost their rows.

    brought   blocks of theirs that were ordered from the host
    computed  times that full blocks that one had had were computed again
    """

    brought: int = 0
    computed: int = 0


def watch(talk: Talk) -> Resumed:
    found, scheduler = Resumed(), talk.driver.node.stages.ar["thinker"]
    plan, size = scheduler.plan, scheduler.config.block_size

    def planned(step: int, now: float) -> ArStep | None:
        order = plan(step, now)
        for join in order.joins if order is not None else ():
            num_full = (len(join.prompt.token_ids) + len(join.generated) - 1) // size
            found.computed += len(join.generated) > 0 and join.cached < num_full * size
        return order

    def moved(move: KvMoved) -> None:
        if move.move in (KvMove.FETCHED, KvMove.PRELOADED) and not move.is_past:
            found.brought += move.num_blocks

    scheduler.plan, scheduler.tiers.asks.watch = planned, moved
    return found


def crowded(world: World, path: Path, depth: int, link: Link) -> Talk:
    path.write_text(SHIPPED.read_text().replace("policy: token-buffer", QUICK))
    engine = regrouped(world.omni.engine, 2, host_blocks=200)
    mover = KvCopies(engine.mover.pools, lambda: LateLane(link))
    engine = replace(engine, node=with_preset(engine.node, str(path)), mover=mover)
    if depth:
        engine = in_lane(engine, torch.device("cpu"))
    talk = Talk(engine, clock=link.clock, num_blocks=16)
    talk.driver.node.guard._stopwatch = None  # a policy is no slower for what else the machine does
    return talk


CASES = [(depth, seed, share) for seed in range(2, 8) for depth in (0, 1) for share in (0.0, 1 / 7)]


@pytest.mark.parametrize(
    ("depth", "seed", "share_failing"),
    [(0, 0, 0.0), (1, 1, 1 / 7), *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES)],
)
def test_readers_give_way_beside_people_who_are_spoken_to(
    world: World,
    depth: int,
    seed: int,
    share_failing: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At depth 0 all happens in one order. At depth 1 threads run the steps; where rows then change places in
    vain over the slow link, the guard may step in."""
    timed = lanes.timed
    monkeypatch.setattr(lanes, "timed", lambda fact, seconds: timed(fact, STEP_S))
    link, rng = Link(seed, share_failing), np.random.default_rng(seed)
    talk = crowded(world, tmp_path / "quick.yaml", depth, link)
    resumed = watch(talk)
    for person in range(NUM_PEOPLE):
        is_spoken_to = person in SPOKEN_TO
        talk.open(str(person), world.item(asked(person)))
        rate = None if is_spoken_to else float(rng.integers(4, 16))
        talk.ask(str(person), speech=is_spoken_to, rate=rate)
        for _ in range(int(rng.integers(0, 4))):
            turn(talk, link)
    said = [talk.said[str(person)] for person in range(NUM_PEOPLE)]
    num_turns = 0
    while any(one.end is None for one in said):
        turn(talk, link)
        num_turns += 1
        assert num_turns < MOST_TURNS, "it stands still"
    for person, one in enumerate(said):
        expected = world.expect_content(asked(person))
        if person in SPOKEN_TO:
            check(one, expected, world.eos)
        else:
            assert one.text == [token for token in expected.text.tolist() if token != world.eos]
            assert not one.codes
    check_all_kinds(talk, resumed)
    assert depth or not talk.driver.node.guard.overruled
    assert (link.num_failed > 2) == (share_failing > 0)
    talk.close(*map(str, range(NUM_PEOPLE)))
    while turn(talk, link):
        pass
    talk.check_all_free()


def asked(person: int) -> int:
    return ASKED[person % len(ASKED)]


def turn(talk: Talk, link: Link) -> bool:
    """One step of the clock, and of the engine."""
    link.now += STEP_S
    more = talk.turn()
    if talk.engine.wakeup is not None and talk.driver.node.num_in_flight:
        select.select([talk.engine.wakeup], [], [], WAIT_S)
    return more


def check_all_kinds(talk: Talk, resumed: Resumed) -> None:
    """Rows were preempted, written through and evicted; they went on by load and by recompute."""
    stats, thinker = talk.driver.stats(), talk.driver.node.stages.ar["thinker"]
    assert thinker.num_preemptions > 20
    assert thinker.tiers.writes.num_written_blocks > 5
    assert stats[Metric.KV_BLOCKS_EVICTED.of("thinker")] > 20
    assert resumed.brought > 5
    assert resumed.computed > 1
