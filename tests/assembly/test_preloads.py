"""A preload that is called off while its copies are under way: no more of it comes, all ledgers agree in
every turn, and what is said is what the undisturbed model says."""

from __future__ import annotations

import pytest

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import (
    ItemAdded,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
)
from antiphon.interaction.next_use import WARM_S
from antiphon.kv.transfers import CHUNK_BLOCKS
from antiphon.metrics.names import Metric
from antiphon.stage.ar import ArScheduler
from fakes.world import HURRIED, Heard, World, toy_config

STAGES = "thinker", "talker"
NEVER = 1 << 30
"""Turns, or copies."""
WORDS = {"a": 150, "b": 150, "c": 370}
"""That each person says first. The device has room for 400, and a chunk holds 128."""

either_depth = pytest.mark.parametrize("depth", [0, 1])
whole_or_broken = pytest.mark.parametrize(
    "num_failing", [0, 1, NEVER], ids=["whole", "one breaks", "all break"]
)


class Talk:
    """The KV of `a` and `b` is on the host, `c` fills the device, and `a` begins to speak. Copies that are
    ordered from then on are under way until they are released; so many of the first of them break off."""

    def __init__(self, depth: int, num_failing: int = 0) -> None:
        sizes = {"blocks": 100, "host_blocks": 400, "step_tokens": 400}
        self.world = World(toy_config(preset=HURRIED, rows=3, **sizes), depth)
        for person, num_words in WORDS.items():
            self.world.send(SessionOpened(person))
            self.say(person, num_words)
            self.world.run()
        for stage in self.stages:
            assert stage.tiers.fetches.num_lacking("a") > CHUNK_BLOCKS, "it takes more than one order"
        self._num_before = self._num_fetched()
        self.world.mover.lag = NEVER
        self.world.mover.num_failing, self.world.mover.failing_to = num_failing, ("device",)
        self.world.send(SpeechStarted("a"))
        self.turns(3)
        self._copies = [*self.world.mover._queue]
        groups = [stage.name for stage in self.stages for _ in stage.kv.groups]
        assert [copy.order.stage for copy in self._copies] == groups, "an order for each group"
        for copy in self._copies:
            assert (copy.direction, len(copy.targets)) == ("device", CHUNK_BLOCKS)
        self.check_under_way()

    @property
    def stages(self) -> list[ArScheduler]:
        return [self.world.node.stages.ar[name] for name in STAGES]

    @property
    def num_copies(self) -> int:
        return len(self._copies)

    @property
    def is_whole(self) -> bool:
        return not self.world.mover.num_failed

    def say(self, person: str, num_words: int = 5) -> Heard:
        name = f"{person}{1 + sum(session == person for session, _ in self.world.responses)}"
        words = " ".join(f"{person}{number}" for number in range(num_words))
        self.world.send(ItemAdded(person, Item(name, "user", (TextPart(words),))))
        self.world.send(ResponseRequested(person, name, f"reply-{name}"))
        return self.world.responses[person, name]

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.world.turn()

    def check_under_way(self) -> None:
        """All copies of the preload are, and none has landed."""
        self.check_unanswered()
        assert not any(copy.has_landed for copy in self._copies)

    def check_unanswered(self) -> None:
        """They may have landed, for a step that waited for them."""
        assert set(self._copies) <= set(self.world.mover._queue)

    def check_nothing_follows(self) -> None:
        assert self._num_fetched() == [before + CHUNK_BLOCKS for before in self._num_before]

    def release(self, lag: int = 0) -> None:
        self.world.mover.lag = lag

    def events(self, event: str) -> int:
        """Of both stages."""
        counts = self.world.node.guard.events
        return sum(counts[stage, "next-use", f"preload_{event}"] for stage in STAGES)

    def finish(self, *others: str) -> None:
        """Everything that was ever said is right, and nothing is left. others: people beside these three."""
        self.world.run()
        for heard in self.world.responses.values():
            self.world.check(heard)
            assert heard.end is not None
            assert heard.end.status != "failed"
        self.world.send(*map(SessionClosed, [*WORDS, *others]))
        self.world.run()
        self.world.check_empty()

    def _num_fetched(self) -> list[int]:
        return [stage.tiers.fetches.num_fetched_blocks for stage in self.stages]


@either_depth
@whole_or_broken
def test_a_person_falls_silent(depth: int, num_failing: int) -> None:
    talk = Talk(depth, num_failing)
    talk.world.send(SpeechEnded("a"))
    talk.turns(1)
    talk.world.now += WARM_S
    talk.turns(3)
    talk.check_under_way()
    assert talk.events("unused") == len(STAGES)
    talk.release()
    talk.world.run()
    talk.check_nothing_follows()
    stats = talk.world.node.stats()
    failed = [stats[Metric.KV_COPIES_FAILED.of_copy(stage, "preload")] for stage in STAGES]
    assert failed == [CHUNK_BLOCKS * (num_failing > at) for at in range(len(STAGES))]
    talk.world.mover.num_failing = 0
    heard = talk.say("a")
    talk.finish()
    assert heard.end is not None
    assert bool(heard.end.usage.cached_tokens) == talk.is_whole


@either_depth
@whole_or_broken
@pytest.mark.parametrize("keeps_kv", [False, True])
def test_a_session_closes(depth: int, num_failing: int, keeps_kv: bool) -> None:
    """Others get the room that is to be had, not what is being written; then it begins anew."""
    talk = Talk(depth, num_failing)
    talk.world.send(SessionClosed("a", keeps_kv), SessionOpened("d"))
    talk.turns(3)
    heard = talk.say("d")
    talk.turns(100)
    assert heard.end is not None
    talk.check_under_way()
    talk.check_nothing_follows()
    talk.world.send(SessionOpened("a"))
    talk.say("a", 40)
    talk.turns(3)
    talk.check_under_way()
    talk.release()
    talk.finish("d")


@either_depth
@whole_or_broken
def test_a_first_sound_needs_the_link(depth: int, num_failing: int) -> None:
    """Of the preload nothing more is ordered before all is there that `b` waits for."""
    talk = Talk(depth, num_failing)
    heard = talk.say("b")
    talk.turns(5)
    talk.check_unanswered()
    assert talk.events("held") == len(STAGES)
    ordered = [copy for copy in talk.world.mover._queue if copy.direction == "device"]
    assert len(ordered) > talk.num_copies, "what it waits for is next"
    for stage in talk.stages:
        coming = stage.kv.resting.get("a")
        assert coming is not None
        assert coming.num_coming == CHUNK_BLOCKS, "and not the rest of the preload"
    talk.release()
    talk.world.run()
    talk.world.mover.num_failing = 0
    assert heard.end is not None
    talk.say("a")
    talk.finish()


@either_depth
@whole_or_broken
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_turn_comes_too_early(depth: int, num_failing: int, is_cancelled: bool) -> None:
    """The request waits for what is under way, or is cancelled while it does."""
    talk = Talk(depth, num_failing)
    talk.world.send(SpeechEnded("a"))
    heard = talk.say("a")
    talk.turns(3)
    talk.check_unanswered()
    if is_cancelled:
        talk.world.send(ResponseCancelled("a", heard.spec.response))
        talk.turns(3)
        talk.check_unanswered()
    talk.release()
    talk.world.run()
    assert heard.end is not None
    assert heard.end.status == ("cancelled" if is_cancelled else "completed")
    talk.world.mover.num_failing = 0
    talk.say("a")
    talk.finish()
