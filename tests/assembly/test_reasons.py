"""What people are told of each reply and of each session's KV, and why."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from typer.testing import CliRunner

from antiphon.assembly import preset
from antiphon.assembly.node import Node
from antiphon.assembly.preloads import WARM
from antiphon.assembly.preset import replayable
from antiphon.assembly.storyteller import Storyteller
from antiphon.assembly.watched import Watched
from antiphon.cli import app
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import (
    CopyDone,
    CopyFailed,
    ItemAdded,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechStarted,
    TurnAdvised,
)
from antiphon.core.snapshot import KvShown, Snapshot, StageShare
from antiphon.policy.base import Told
from antiphon.policy.memory import NOTHING, KvState
from antiphon.runtime.codec import encode
from antiphon.runtime.record import RecordWriter, read_record, replay, without_media
from antiphon.stage.fetches import NO_ROOM
from antiphon.stage.kv_asks import KvMove, KvMoved
from assembly.test_observed import liveserve, played
from fakes import toy
from fakes.world import HURRIED, World, toy_config

TALKATIVE = """
from antiphon.policy.base import NO_HOLD, StepChoice, Told
from antiphon.policy.prefill_first import PrefillFirst


class Talks(PrefillFirst):
    name = "talks"

    def tell(self, view, at, now):
        return {answer}
"""
PRESET = """
step: {folder}/talks.py:Talks
pace: unpaced
admission: unlimited
device: round-robin
replica: sticky
evict: lru
write: write-back
fetch: on-demand
"""


def ask(world: World, session: str, number: int) -> None:
    question = Item(f"u{number}", "user", (TextPart("tell me more"), toy.tone(number % 2)))
    world.send(ItemAdded(session, question))
    world.send(ResponseRequested(session, f"r{number}", f"reply{number}"))


def talk(world: World) -> list[Snapshot]:
    """Four people, two turns each, announced by voice and by advisory; memory is short."""
    seen: list[Snapshot] = []

    def run() -> None:
        while world.turn():
            seen.append(world.node.snapshot(world.now + 0.004))

    for number in range(4):
        world.send(SessionOpened(f"s{number}"))
        ask(world, f"s{number}", 0)
        run()
    for number in range(4):
        coming = SpeechStarted(f"s{number}") if number % 2 else TurnAdvised(f"s{number}", "history", 1.0)
        world.send(coming)
        run()
        ask(world, f"s{number}", 1)
        run()
    return seen


def shares(seen: list[Snapshot]) -> list[StageShare]:
    return [share for snapshot in seen for session in snapshot.sessions for share in session.stages]


def hurried() -> World:
    world = World(toy_config(blocks=12, host_blocks=200, preset=HURRIED))
    world.node.watch(True)
    return world


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> list[Snapshot]:
    """What people who look see of a server under `liveserve` whose memory is short; it decides as it did
    when nobody looked."""
    folder = tmp_path_factory.mktemp("simulated")
    preset = liveserve(folder, "own")
    return shown(played(preset, folder / "a.record", 8, 14.0).record, preset)


def shown(record: Path, preset: str) -> list[Snapshot]:
    header, entries = read_record(record)
    node, seen = Node(replayable(header.node, preset), header.depth), list[Snapshot]()
    node.watch(True)
    for number, entry in enumerate(entries):
        assert encode(without_media(node.decide(entry.facts, entry.now))) == encode(entry.decision)
        if number % 9 == 0:
            seen.append(node.snapshot(entry.now))
    return seen


def test_classes_holds_and_waits_are_told(simulated: list[Snapshot]) -> None:
    told = shares(simulated)
    assert {share.label for share in told} >= {"U0", "U1", "U2"}
    assert {share.state for share in told} >= {"", "runs", "held", "upstream input"}
    held = [share for share in told if share.state == "held"]
    assert all(" s ahead of the listener, over " in share.why for share in held)
    assert all(share.until is not None and share.lead_s is not None for share in held)
    dry = [share for share in told if share.label == "U0" and share.state == "runs"]
    assert {share.why for share in dry} == {"runs dry: at most 1 s ahead"}


def test_why_nobody_is_held_is_told_of_those_who_would_be(tmp_path: Path) -> None:
    path, why = tmp_path / "rows.yaml", "; not held: over 0% of the rows are in use"
    text = (Path(preset.__file__).parent / "presets" / "liveserve.yaml").read_text()
    path.write_text(text.replace("rows_to: 0.75", "rows_to: 0"))
    sizes = ["--kv-tokens", "1024", "--max-context-tokens", "1024", "--host-kv-tokens", "65536"]
    load = ["--workload", "barge-in", "--concurrency", "6", "--duration", "12"]
    args = [*load, *sizes, "--hardware", "h200", "--preset", str(path)]
    record = tmp_path / "a.record"
    result = CliRunner().invoke(app, ["simulate", *args, "--out", str(tmp_path), "--record", str(record)])
    assert result.exit_code == 0, result.stderr
    told = shares(shown(record, str(path)))
    assert not [share for share in told if share.state == "held"]
    ahead = [share for share in told if share.why.endswith(why)]
    assert {(share.state, share.label) for share in ahead} == {("runs", "U2")}


def test_what_becomes_of_kv_is_told(simulated: list[Snapshot]) -> None:
    moves = [share.moved for share in shares(simulated) if share.moved]
    assert ("written", "will leave soon") in {(move.what, move.why) for move in moves}
    evicted = {move.why for move in moves if move.what == "evicted"}
    assert any(re.match(r"its next use is the last, in \d+\.\d s", why) for why in evicted), evicted
    preloads = [share.preload for share in shares(simulated) if share.preload]
    assert {preload.what for preload in preloads} >= {"preloaded", "used"}
    assert {preload.why for preload in preloads if preload.what} == {"its next turn is coming"}
    sessions = [session for snapshot in simulated for session in snapshot.sessions]
    assert {session.next_use_s is None for session in sessions} == {True, False}
    assert {session.is_expected for session in sessions} == {True, False}


def test_a_preload_that_is_evicted_was_not_used() -> None:
    world = hurried()
    world.send(SessionOpened("s"))
    world.turn()
    assert world.node._watch is not None
    reasons = world.node._watch.reasons
    for count in (2, 3):
        reasons.moved(KvMoved("thinker", KvMove.PRELOADED, "s", "s", count))
    reasons.moved(KvMoved("thinker", KvMove.TAKEN, "s", "s", 5))
    (thinker, *_) = world.node.snapshot(world.now).sessions[0].stages
    assert thinker.preload is not None
    assert (thinker.preload.what, thinker.preload.blocks) == ("unused", 5)
    world.send(SessionClosed("s"), SessionOpened("s"))
    world.turn()
    (thinker, *_) = world.node.snapshot(world.now).sessions[0].stages
    assert thinker.preload is not None, "of the same name, and open whenever somebody looked"
    world.send(SessionClosed("s"))
    world.turn()
    world.node.snapshot(world.now)
    assert reasons.preload("thinker", "s") is None


def test_of_a_preload_that_is_evicted_in_part_the_rest_is_still_unread() -> None:
    world = hurried()
    assert world.node._watch is not None
    reasons = world.node._watch.reasons
    for move, count in ((KvMove.PRELOADED, 5), (KvMove.EVICTED, 2)):
        reasons.moved(KvMoved("thinker", move, "s", "s", count))
    found = reasons.preload("thinker", "s")
    assert found is not None
    assert (found.what, found.blocks) == ("preloaded", 3)
    reasons.moved(KvMoved("thinker", KvMove.EVICTED, "s", "s", 9))
    found = reasons.preload("thinker", "s")
    assert found is not None
    assert (found.what, found.blocks) == ("unused", 3)


def test_a_preload_whose_copy_failed_was_not_used() -> None:
    world = hurried()
    assert world.node._watch is not None
    reasons = world.node._watch.reasons
    reasons.moved(KvMoved("thinker", KvMove.PRELOADED, "s", "s", 3, {70, 71}))
    reasons.moved(KvMoved("thinker", KvMove.PRELOADED, "s", "s", 2, {72, 73}))
    shown: list[tuple[str, int]] = []
    for fact in (
        CopyDone("thinker", 70),
        CopyFailed("thinker", 71, "broke"),
        CopyFailed("thinker", 72, "broke"),
        CopyFailed("thinker", 73, "too"),
    ):
        reasons.observe(fact, 2.0)
        found = reasons.preload("thinker", "s")
        assert found is not None
        shown.append((found.what, found.blocks))
    assert shown == [("preloaded", 5), ("preloaded", 2), ("unused", 2), ("unused", 2)]
    assert not reasons._coming


def test_kv_that_is_copied_as_it_leaves_is_shown_with_why_it_left() -> None:
    world = hurried()
    assert world.node._watch is not None
    reasons = world.node._watch.reasons
    told = Told("coming", "nothing else was left")
    reasons.moved(KvMoved("thinker", KvMove.EVICTED, "s", "s", 2, told=told))
    reasons.moved(KvMoved("thinker", KvMove.COPIED, "s", "s", 2, {70}))
    shown = reasons.move("thinker", "s")
    assert shown is not None
    assert (shown.what, shown.why) == ("copied", told.why)


def test_a_response_beside_the_conversation_does_not_read_what_was_preloaded() -> None:
    world = hurried()
    world.send(SessionOpened("s"))
    world.turn()
    assert world.node._watch is not None
    reasons = world.node._watch.reasons
    reasons.moved(KvMoved("thinker", KvMove.PRELOADED, "s", "s", 5))
    reasons.moved(KvMoved("thinker", KvMove.EVICTED, "s beside", "s", 5))
    aside = Item("x", "user", (TextPart("write this down"), toy.tone(0)))
    world.send(ResponseRequested("s", "aside", "x", speech=False, remember=False, items=(aside,)))
    world.run()
    found = reasons.preload("thinker", "s")
    assert found is not None
    assert (found.what, found.blocks) == ("preloaded", 5)
    ask(world, "s", 0)
    world.run()
    found = reasons.preload("thinker", "s")
    assert found is not None
    assert found.what == "used"


def test_a_node_that_has_an_observer_keeps_it() -> None:
    header = toy_config()
    teller = Storyteller(header, 0)
    with pytest.raises(AssertionError, match="has an observer"):
        teller.node.watch(True)
    assert teller.node.guard.listener is teller
    teller.node.watch(False)
    assert teller.node.guard.listener is teller


def test_why_a_turn_that_is_coming_is_not_preloaded() -> None:
    world = hurried()
    world.send(SessionOpened("s"))
    world.turn()
    assert world.node._watch is not None
    asked = SimpleNamespace(decision="fetch", unit="thinker", tell=lambda *_: Told("", "too late"))
    view = SimpleNamespace(tier="device", expected=lambda: iter("st"), num_away={"s": 4, "t": 0}.get)
    world.node._watch.reasons.said(cast("Watched", asked), view, NOTHING, world.now)
    (thinker, talker, _) = world.node.snapshot(world.now).sessions[0].stages
    assert thinker.preload == KvShown("", 0, "too late", world.now)
    assert talker.preload is None


def test_what_is_on_the_device_and_what_finds_no_room_is_told_too() -> None:
    world = hurried()
    world.send(SessionOpened("s"))
    world.turn()
    ask(world, "s", 0)
    world.run()
    assert world.node._watch is not None
    assert world.node._watch.reasons.preload("thinker", "s") is None
    world.send(SpeechStarted("s"))
    world.run()
    shown = world.node._watch.reasons.preload("thinker", "s")
    assert shown is None or (shown.what, shown.why) == ("", WARM.why)
    asked = SimpleNamespace(decision="fetch", unit="thinker", tell=lambda *_: Told("brought", "brought"))
    view = SimpleNamespace(
        tier="device", expected=lambda: iter("s"), num_away=lambda _: 4, state=lambda _: KvState.RESTING
    )
    world.node._watch.reasons.said(cast("Watched", asked), view, NOTHING, world.now + 1)
    world.node.stages.ar["thinker"].tiers.fetches.unordered["s"] = NO_ROOM
    shown = world.node._watch.reasons.preload("thinker", "s")
    assert shown == KvShown("", 0, NO_ROOM, world.now + 1)


def test_a_policy_without_words_is_told_by_its_reason() -> None:
    world = World(toy_config())
    world.node.watch(True)
    told = shares(talk(world))
    assert {share.label for share in told} == {""}
    assert {share.why for share in told if share.state == "runs"} == {"prompts first"}


@pytest.mark.parametrize("answer", ["7", "Told('a', None)", "1 / 0", "Told('a', 'b', 'c')", "exit(3)"])
def test_words_that_are_none_cost_nothing(answer: str, tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKATIVE.format(answer=answer))
    preset = tmp_path / "own.yaml"
    preset.write_text(PRESET.format(folder=tmp_path))
    world = World(toy_config(preset=str(preset)))
    world.is_lenient = True
    world.node.watch(True)
    told = shares(talk(world))
    assert {share.label for share in told} == {""}
    assert {event for _, _, event in world.node.guard.counts} == {"untold"}


def test_words_of_ones_own_are_shown(tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKATIVE.format(answer="Told('A', 'since I say so')"))
    preset = tmp_path / "own.yaml"
    preset.write_text(PRESET.format(folder=tmp_path))
    world = World(toy_config(preset=str(preset)))
    world.node.watch(True)
    told = shares(talk(world))
    assert ("A", "since I say so") in {(share.label, share.why) for share in told}


@pytest.mark.parametrize("depth", [0, 1])
def test_decisions_are_the_same_whoever_looks(depth: int, tmp_path: Path) -> None:
    config, records = toy_config(blocks=12, host_blocks=200, preset=HURRIED), []
    for is_watched in (False, True):
        path = tmp_path / str(is_watched)
        writer = RecordWriter(path, config, depth)
        world = World(config, depth, writer)
        world.node.watch(is_watched)
        for number in range(4):
            world.send(SessionOpened(f"s{number}"))
            ask(world, f"s{number}", 0)
        for number in range(400):
            if number % 40 == 20:
                world.send(SpeechStarted(f"s{number % 3}"), TurnAdvised("s3", "history", 0.1))
            if number == 300:
                ask(world, "s1", 1)
            world.turn()
            if is_watched:
                world.node.snapshot(world.now + 0.009)
        writer.close()
        records.append(path.read_bytes())
    assert records[0] == records[1]
    _, differences = replay(tmp_path / "True", HURRIED)
    assert not differences
