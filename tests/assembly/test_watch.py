"""Watching shows what a node does, and changes nothing of it."""

from __future__ import annotations

import itertools
from math import nan

import msgspec
import numpy as np
import pytest

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.snapshot import SessionShown, Snapshot, StepShown
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.record import RecordWriter
from fakes import toy, transcribing
from fakes.world import World, toy_config


def people(world: World, count: int = 3, **fields: bool) -> None:
    for number in range(count):
        session = f"s{number}"
        question = Item("u", "user", (TextPart("tell me more"), toy.tone(number % 2)))
        world.send(SessionOpened(session), ItemAdded(session, question))
        world.send(ResponseRequested(session, f"r{number}", "reply", **fields))


def watched(**sizes: int) -> World:
    world = World(toy_config(**sizes))
    world.node.watch(True)
    return world


@pytest.mark.parametrize("depth", [0, 1])
def test_decisions_are_the_same(depth: int, tmp_path) -> None:
    records = []
    for is_watched in (False, True):
        path = tmp_path / str(is_watched)
        writer = RecordWriter(path, toy_config(), depth)
        world = World(toy_config(), depth, writer)
        world.node.watch(is_watched)
        people(world)
        for _ in range(12):
            world.turn()
            if is_watched:
                world.node.snapshot(world.now)
        world.run()
        writer.close()
        records.append(path.read_bytes())
    assert records[0] == records[1]


def test_every_step_is_shown_once() -> None:
    world = watched()
    people(world)
    shown: list[StepShown] = []
    while world.turn():
        snapshot = world.node.snapshot(world.now)
        assert snapshot.num_steps == len(snapshot.steps)
        shown += snapshot.steps
    assert [step.step for step in shown] == list(range(len(shown)))
    kinds = {(step.stage, step.kind) for step in shown}
    assert {
        ("encoders", "encode"),
        ("thinker", "prefill"),
        ("thinker", "decode"),
        ("talker", "decode"),
        ("code2wav", "vocode"),
    } <= kinds
    assert all(step.reason and step.tokens >= step.rows for step in shown)
    assert {name for step in shown for name in step.sessions} == {"s0", "s1", "s2"}
    encoded = next(step for step in shown if step.kind == "encode")
    assert "s0" in encoded.sessions


def test_a_voice_that_reads_takes_tokens_not_frames() -> None:
    world = transcribing.World()
    world.node.watch(True)
    world.ask("s", "tell me more")
    world.run()
    snapshot = world.node.snapshot(world.now)
    assert {step.kind for step in snapshot.steps if step.stage == "voice"} == {"speak"}


def test_of_too_many_steps_the_last_are_kept() -> None:
    world = watched(step_tokens=1)
    for round_ in range(6):
        people(world)
        world.run()
        world.send(*(SessionClosed(f"s{n}") for n in range(3)))
        world.run()
        del round_
    snapshot = world.node.snapshot(world.now)
    assert snapshot.num_steps > len(snapshot.steps) == 256


def sessions_at_every_turn(world: World) -> list[SessionShown]:
    seen: list[SessionShown] = []
    while world.turn():
        seen += world.node.snapshot(world.now).sessions
    return [*seen, *world.node.snapshot(world.now).sessions]


def test_a_sessions_frontiers_and_kv() -> None:
    world = watched()
    people(world, 1)
    seen = sessions_at_every_turn(world)
    heard = world.responses["s0", "r0"]
    assert heard.end is not None
    last = seen[-1]
    thinker, talker, vocoder = last.stages
    assert (thinker.stage, talker.stage, vocoder.stage) == ("thinker", "talker", "code2wav")
    assert world.node.snapshot(world.now).makers == ("thinker", "talker", "code2wav")
    assert thinker.done == len(heard.text)
    assert talker.done == heard.end.usage.output_audio_tokens
    assert vocoder.audio_s == last.generated_s == len(heard.audio) / 4 / 24_000
    assert talker.audio_s == pytest.approx(last.generated_s)
    assert thinker.kv_tokens > 0
    assert thinker.kv_blocks == -(-thinker.kv_tokens // 4)
    assert {session.phase for session in seen} >= {"waiting", "replying"}
    assert {session.is_making for session in seen} == {True, False}
    for before, after in itertools.pairwise(seen):
        assert after.generated_s >= before.generated_s
        assert (after.stages[1].done or 0) >= (before.stages[1].done or 0)


def test_a_text_reply_has_no_sound() -> None:
    world = watched(speaks=False)
    people(world, 1)
    assert {session.source for session in sessions_at_every_turn(world)} == {"unknown"}


def test_who_left_is_forgotten() -> None:
    world = watched()
    people(world)
    world.run()
    world.send(SessionClosed("s1"))
    world.run()
    names = [session.session for session in world.node.snapshot(world.now).sessions]
    assert names == ["s0", "s2"]
    assert world.node.snapshot(world.now).sessions[0].stages[0].done is not None


def test_it_begins_anew_for_who_looks_later() -> None:
    world = World(toy_config())
    people(world, 1)
    world.run()
    assert not world.node.is_watched
    world.node.watch(True)
    world.node.watch(True)
    snapshot = world.node.snapshot(world.now)
    assert (snapshot.steps, snapshot.num_steps) == ((), 0)
    assert snapshot.sessions[0].stages[0].done is None
    assert snapshot.sessions[0].generated_s > 0
    world.node.watch(False)
    with pytest.raises(AssertionError):
        world.node.snapshot(world.now)


def test_a_snapshot_crosses_processes() -> None:
    world = watched()
    people(world)
    for _ in range(9):
        world.turn()
    snapshot = world.node.snapshot(world.now)
    assert decoder(Snapshot).decode(encode(snapshot)) == snapshot
    assert msgspec.json.decode(msgspec.json.encode(snapshot))["sessions"][0]["session"] == "s0"


def test_a_transcription_beside_a_reply_is_not_taken_for_it() -> None:
    world = watched()
    people(world, 1)
    aside = Item("x", "user", (TextPart("write this down"), toy.tone(0)))
    world.send(ResponseRequested("s0", "aside", "x", speech=False, remember=False, items=(aside,)))
    orchestrator, together = world.node._orchestrator, 0
    while world.turn():
        (session,) = world.node.snapshot(world.now).sessions
        spoken = [one for one in orchestrator.responses.values() if one.spec.speech]
        for turn in spoken:
            assert (session.stages[0].done, session.stages[1].done) == (len(turn.reply), turn.num_frames)
        together += len(orchestrator.responses) == 2 and spoken[0].num_frames > 0
    assert together
    assert session.stages[1].done == world.responses["s0", "r0"].end.usage.output_audio_tokens


def test_of_a_cascade_each_stage_is_as_far_ahead_as_the_frontier_says() -> None:
    world = transcribing.World()
    world.reply_length = 40
    world.node.watch(True)
    world.ask("s", transcribing.recording(3))
    shown: list[StepShown] = []
    ahead = 0
    while world.turn():
        snapshot = world.node.snapshot(world.now)
        shown += snapshot.steps
        assert snapshot.makers == ("thinker", "voice"), "a transcriber makes nothing of a reply"
        (session,) = snapshot.sessions
        thinker, voice = session.stages
        for reply in world.node.responses.values():
            leads = [world.node.frontier.leads_s(at, np.array([reply.slot]), world.now)[0] for at in (0, 1)]
            told = [nan if stage.lead_s is None else stage.lead_s for stage in (thinker, voice)]
            assert told == pytest.approx(leads, nan_ok=True)
            ahead += told[0] > told[1]
    assert ahead, "what is written and not spoken yet is ahead of the voice"
    assert {step.stage for step in shown} == {"ears", "transcriber", "thinker", "voice"}
    assert {step.sessions for step in shown} == {("s",)}, "writing down what was said is for its session"
