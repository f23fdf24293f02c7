"""Replicas of a node's stages: which are possible, who serves whom, and what is left when one dies."""

from __future__ import annotations

import msgspec
import pytest

from antiphon.assembly.node import Node
from antiphon.core.config import EdgeOptions, Unit
from antiphon.core.conversation import Item, TextPart
from antiphon.core.errors import ConfigError
from antiphon.core.facts import (
    ItemAdded,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    UnitLost,
    UnitReady,
)
from antiphon.core.plans import ArStep
from antiphon.policy.base import ReplicaView
from fakes import toy, transcribing
from fakes.world import World, toy_config

APART = tuple(Unit(name, name, process=name) for name in ("encoders", "thinker", "talker", "code2wav"))
TWO = (
    Unit("encoders", "encoders", "a"),
    Unit("thinker.0", "thinker", "a"),
    Unit("thinker.1", "thinker", "b"),
    Unit("talker.0", "talker", "c"),
    Unit("talker.1", "talker", "d"),
    Unit("code2wav.0", "code2wav", "c"),
    Unit("code2wav.1", "code2wav", "d"),
)


def ask(world: World, session: str, turn: int = 0, **wanted: object) -> None:
    if not turn:
        world.send(SessionOpened(session))
    parts = (TextPart(f"turn {turn} of {session}"), toy.tone(1 + turn))
    world.send(ItemAdded(session, Item(f"{session}-{turn}", "user", parts)))
    world.send(ResponseRequested(session, f"{session}-{turn}", f"reply-{session}-{turn}", **wanted))


@pytest.mark.parametrize(
    ("preset", "chunk", "said"),
    [
        ("liveserve", 4, {}),
        ("liveserve", 25, {"step": 1}),
        ("liveserve", 60, {"step": 1, "pace": 4}),
        ("baseline", 60, {}),
    ],
)
def test_a_lead_below_a_chunk_of_sound_is_told(preset: str, chunk: int, said: dict[str, int]) -> None:
    """Of the stage that writes too: frames that wait for the rest of a chunk count in its lead as well."""
    edges = (EdgeOptions("talker", "code2wav", chunk=chunk, credit=2 * chunk),)
    node = Node(msgspec.structs.replace(toy_config(preset=preset), edges=edges))
    chunk_s = chunk * 0.08
    assert [str(one) for one in node.guard.incidents()] == [
        f"policy urgency ({decision} of {unit}): safe_s is {safe_s} and a chunk of sound {chunk_s:g} s, "
        "heard once it is whole: a reply may run dry while it counts as well ahead; raise safe_s above "
        f"{chunk_s:g} by what a step takes, or lower `chunk` of talker -> code2wav"
        for unit in ("thinker", "talker")
        for decision, safe_s in said.items()
    ]


def test_a_voice_that_reads_gathers_no_chunks() -> None:
    edges = (EdgeOptions("thinker", "voice", chunk=5, credit=16),)
    node = Node(msgspec.structs.replace(transcribing.CONFIG, preset="liveserve", edges=edges))
    assert not node.guard.incidents()


def ran_on(world: World) -> dict[str, set[str]]:
    """Watch which units run steps for which requests; by request."""
    seen: dict[str, set[str]] = {}
    submit = world.fleet.submit

    def watched(step) -> None:
        if isinstance(step, ArStep):
            for join in step.joins:
                seen.setdefault(step.stage, set()).add(join.request)
        submit(step)

    world.fleet.submit = watched
    return seen


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ((*APART, Unit("thinker", "thinker")), "thinker are named more than once"),
        ((*APART, Unit("dreamer", "dreams")), "'dreams' is not a stage; stages are encoders, thinker"),
        (APART[:3], "none of stage code2wav"),
        ((*APART, Unit("encoders.1", "encoders", process="encoders")), "more than one encoder"),
        ((*APART, Unit("thinker.1", "thinker", role="decode")), "are both, decode; they must all be both"),
        (
            (*APART[:1], Unit("thinker", "thinker", role="prefill"), *APART[2:]),
            "thinker are prefill; they must all be both, or some prefill and some decode",
        ),
        (
            (*APART[:2], Unit("a", "talker", role="prefill"), Unit("b", "talker", role="decode"), APART[3]),
            "talker cannot be split",
        ),
    ],
)
def test_units_that_cannot_be(units: tuple[Unit, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Node(toy_config(units=units))


@pytest.mark.parametrize("units", [APART, TWO])
def test_replies_are_the_same_wherever_they_are_made(units: tuple[Unit, ...]) -> None:
    world = World(toy_config(units=units, rows=4, blocks=48), depth=1)
    for turn in range(3):
        for session in "abcd":
            ask(world, session, turn, codes=True)
        world.run()
    for heard in world.responses.values():
        world.check(heard)
        assert heard.end.status in ("completed", "incomplete")
    world.send(*(SessionClosed(session) for session in "abcd"))
    world.run()
    world.check_empty()


def test_conversations_spread_and_stay_where_their_kv_is() -> None:
    world = World(toy_config(units=TWO, rows=4, blocks=48))
    seen = ran_on(world)
    for session in "abcd":
        ask(world, session)
    world.run()
    first = {unit: set(requests) for unit, requests in seen.items()}
    assert len(first["thinker.0"]) == len(first["thinker.1"]) == 2
    assert first["talker.0"]
    assert first["talker.1"]
    for session in "abcd":
        ask(world, session, 1)
    world.run()
    for unit in ("thinker.0", "thinker.1"):
        assert {request - 4 for request in seen[unit] - first[unit]} == first[unit]
    assert all(world.responses[name, f"{name}-1"].end.usage.cached_tokens > 0 for name in "abcd")


class Elsewhere:
    """Wherever the conversation is not at home."""

    name = "elsewhere"

    def decide(self, view: ReplicaView, now: float) -> int:
        return 1 if view.home == 0 else 0


@pytest.mark.parametrize("tier", ["latency", "best_effort"])
def test_a_response_beside_the_conversation_does_not_move_it(tier: str) -> None:
    world = World(toy_config(units=TWO, rows=4, blocks=48))
    ask(world, "a")
    world.run()
    stages = world.node.stages
    home = stages._affinity.find("a", "thinker prefill")
    policy, stages._policy = stages._policy, Elsewhere()
    aside = ResponseRequested("a", "aside", "aside", remember=False, tier=tier)
    world.send(aside)
    world.run()
    stages._policy = policy
    assert stages._affinity.find("a", "thinker prefill") == home
    assert stages.ar[home].kv.resting.get("a") is not None
    ask(world, "a", 1)
    world.run()
    assert world.responses["a", "a-1"].end.usage.cached_tokens > world.config.ar["thinker"].block_size


def test_steps_of_two_devices_are_ordered_together() -> None:
    world = World(toy_config(units=TWO, rows=4, blocks=48))
    together = 0
    decide = world.node.decide

    def watched(facts, now):
        nonlocal together
        decision = decide(facts, now)
        together = max(together, len({order.stage for order in decision.orders if isinstance(order, ArStep)}))
        return decision

    world.node.decide = watched
    for session in "abcd":
        ask(world, session)
    world.run()
    assert together >= 3


@pytest.mark.parametrize("victim", ["encoders", "thinker", "talker", "code2wav"])
@pytest.mark.parametrize("after", [3, 9, 15, 25])
def test_a_process_dies_and_only_its_responses_end(victim: str, after: int) -> None:
    """Whoever needed it is told at once; who asks again is served, and computes its past again."""
    world = World(toy_config(units=APART, rows=4, blocks=48, step_tokens=16))
    ask(world, "a")
    ask(world, "b", speech=False)
    for _ in range(after):
        world.turn()
    before = {key: heard.end for key, heard in world.responses.items()}
    world.kill(victim)
    for key, heard in world.responses.items():
        if heard.end is not None and before[key] is None and heard.end.status == "failed":
            assert heard.end.reason == "stage_lost"
            assert victim in heard.end.message
    if victim in ("talker", "code2wav"):
        written = world.responses["b", "b-0"].end
        assert written is None or written.status != "failed", "a text needs no voice"
    world.run()
    for session in "ab":
        ask(world, session, 1)
    world.run()
    for session in "ab":
        heard = world.responses[session, f"{session}-1"]
        assert heard.end.status in ("completed", "incomplete")
    for heard in world.responses.values():
        world.check(heard)
    world.send(*(SessionClosed(session) for session in "ab"))
    world.run()
    world.check_empty()


def test_nobody_is_sent_to_a_unit_that_is_gone() -> None:
    """With no thinker left a turn fails at once; with one left, all go there."""
    world = World(toy_config(units=APART, rows=4, blocks=48))
    world.fleet.kill("thinker")
    world.send(UnitLost("thinker", "killed"))
    ask(world, "a")
    world.run()
    assert world.responses["a", "a-0"].end.reason == "stage_lost"
    world.fleet.dead = ""
    world.send(UnitReady("thinker"))
    ask(world, "a", 1)
    world.run()
    assert world.responses["a", "a-1"].end.status in ("completed", "incomplete")


@pytest.mark.parametrize("knew", [True, False])
def test_a_conversation_stays_where_it_was_served_while_another_unit_was_gone(knew: bool) -> None:
    """Whether or not it had been served before."""
    units = tuple(msgspec.structs.replace(unit, process=unit.name) for unit in TWO)
    world = World(toy_config(units=units, rows=4, blocks=48))
    if knew:
        ask(world, "a")
        world.run()
    world.fleet.kill("thinker.0")
    world.send(UnitLost("thinker.0", "killed"))
    ask(world, "a", int(knew), speech=False)
    world.run()
    world.fleet.dead = ""
    world.send(UnitReady("thinker.0"))
    seen = ran_on(world)
    world.send(ItemAdded("a", Item("more", "user", (TextPart("and then"),))))
    world.send(ResponseRequested("a", "more", "reply-more", speech=False))
    world.run()
    assert seen.keys() == {"thinker.1"}
    assert world.responses["a", "more"].end.usage.cached_tokens > 0


def test_with_no_voice_left_a_spoken_turn_fails_and_a_written_one_does_not() -> None:
    world = World(toy_config(units=APART, rows=4, blocks=48))
    world.fleet.kill("talker")
    world.send(UnitLost("talker", "killed"))
    ask(world, "a")
    ask(world, "b", speech=False)
    world.run()
    assert world.responses["a", "a-0"].end.reason == "stage_lost"
    assert world.responses["b", "b-0"].end.status in ("completed", "incomplete")
