"""Stories of the corpus's records: of every session, without errors, and true to the ledgers."""

from __future__ import annotations

import lzma
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from antiphon.assembly.preset import replayable
from antiphon.assembly.story import Cause, Story, What
from antiphon.assembly.storyteller import NOT_WHOLE, Storyteller
from antiphon.assembly.watched import Watched
from antiphon.core.facts import (
    CopyDone,
    CopyFailed,
    OutputHeld,
    OutputReleased,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
    TurnAdvised,
)
from antiphon.core.plans import ResponseEnded
from antiphon.flow.advance import PART_S
from antiphon.policy.base import Told
from antiphon.policy.memory import NOTHING, Selection
from antiphon.runtime.record import Entry, RecordWriter, read_record, replay
from antiphon.stage.kv_asks import KvMove, KvMoved
from assembly.test_observed import liveserve, played
from fakes import transcribing
from fakes.world import HURRIED, World, toy_config
from flow.test_advance import advise, ask, prepared, say, until_reading

CORPUS = Path(__file__).parents[1] / "corpus"
PRESETS = {"sim-paced": str(CORPUS / "paced.yaml"), "toy-kept": str(CORPUS / "turns.yaml")}
NAMES = sorted(path.stem for path in CORPUS.glob("*.xz"))


def record(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(lzma.decompress((CORPUS / f"{name}.xz").read_bytes()))
    return path


Tell = Callable[[str], tuple[Storyteller, list[ResponseEnded]]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Tell:
    """Of a record of this name, told once for all tests that only read."""
    return cache(lambda name: tell(name, tmp_path_factory.mktemp("records")))


def retold(path: Path, preset: str = "") -> Storyteller:
    """What a record tells; it replays."""
    tellers: list[Storyteller] = []

    def make(*given: Any) -> Storyteller:
        tellers.append(Storyteller(*given))
        return tellers[0]

    _, differences = replay(path, preset, make)
    assert not differences
    return tellers[0]


def tell(name: str, folder: Path) -> tuple[Storyteller, list[ResponseEnded]]:
    """The stories of a record, which must be the run's, and how its responses ended."""
    path = record(name, folder)
    teller = retold(path, PRESETS.get(name, ""))
    teller.finish()
    outputs = [output for entry in read_record(path)[1] for output in entry.decision.outputs]
    return teller, [output for output in outputs if isinstance(output, ResponseEnded)]


@pytest.mark.parametrize("name", NAMES)
def test_every_session_has_a_story_and_every_response_one_end(name: str, told: Tell) -> None:
    teller, ended = told(name)
    ends = {(end.session, end.response): end.status for end in ended}
    assert teller.stories.keys() == teller.sessions.keys()
    for story in teller.stories.values():
        times = [event.at_s for event in story.events]
        assert times == sorted(times)
        assert all(event.words for event in story.events)
        assert all(seconds > 0 for event in story.events for seconds in event.spent.values())
        last = list(story.of(What.ENDED, What.UNFINISHED))
        assert sorted(event.response for event in last) == sorted(story.responses)
        for event in last:
            status = ends.get((story.session, event.response))
            assert event.what is (What.UNFINISHED if status is None else What.ENDED)
            assert event.reason.startswith(status or "")


@pytest.mark.parametrize(
    "name", ["sim-short-host-fcfs", "sim-short-baseline", "engine-short-host", "toy-kept"]
)
def test_what_is_told_of_memory_is_what_the_ledgers_count(name: str, told: Tell) -> None:
    """All sessions together. Blocks that sessions share are told of the one that gives them up."""
    teller, _ = told(name)
    stories, units = teller.stories.values(), teller.node.stages.ar.values()
    preempted = [one for story in stories for one in story.of(What.PREEMPTED, What.PREEMPTED_KEEPING)]
    assert len(preempted) == sum(unit.num_preemptions for unit in units) > 0
    is_kept = What.PREEMPTED_KEEPING in {event.what for event in preempted}
    assert is_kept is (name == "toy-kept")
    evicted = sum(story.total("blocks", What.EVICTED, What.TAKEN) for story in stories)
    assert evicted == sum(unit.kv.resting.num_evicted_blocks for unit in units) > 0
    fetched = sum(story.total("blocks", What.FETCHED) for story in stories)
    assert fetched == sum(unit.tiers.fetches.num_fetched_blocks for unit in units)
    written = sum(story.total("blocks", What.COPIED, What.WRITTEN) for story in stories)
    assert written >= sum(unit.tiers.writes.num_written_blocks for unit in units)
    assert {event.reason for story in stories for event in story.of(What.EVICTED)} == {"used longest ago"}
    waits = {cause for story in stories for event in story.of(What.WORKED) for cause, _ in event.spent}
    assert {Cause.BLOCKS, Cause.ORDER, Cause.DEVICE, Cause.UPSTREAM} <= waits
    spent = {one for story in stories for event in story.of(What.WORKED) for one in event.spent}
    turns = {reason.partition(" goes first: ")[2] for cause, reason in spent if cause is Cause.DEVICE}
    assert "stages take turns" in turns
    assert (Cause.KV_COMING in waits) is ("host" in name or name == "toy-kept")


def test_a_cut_reply_tells_what_was_never_heard(told: Tell) -> None:
    teller, ended = told("sim-barge-in-baseline")
    cuts = {(s.session, cut.response): cut for s in teller.stories.values() for cut in s.of(What.CUT)}
    cancelled = {(end.session, end.response): end for end in ended if end.status == "cancelled"}
    assert cancelled.keys() <= cuts.keys()
    frame_s = teller.node.frontier.frame_s  # by what it has seen so far
    for name, end in cancelled.items():
        amounts = cuts[name].amounts
        assert amounts["made_s"] == pytest.approx(end.usage.output_audio_tokens * frame_s, rel=0.1)
        assert amounts["unheard_s"] == pytest.approx(amounts["made_s"] - amounts["heard_s"])
    first = [event.amounts["after_s"] for s in teller.stories.values() for event in s.of(What.FIRST_AUDIO)]
    assert all(0.05 < after_s < 1.0 for after_s in first)


def test_the_pace_policy_gives_its_reason(told: Tell) -> None:
    teller, _ = told("sim-paced")
    for story in teller.stories.values():
        assert {event.reason for event in story.of(What.HELD)} == {"far ahead"}
        waits = {key: s for event in story.of(What.WORKED) for key, s in event.spent.items()}
        assert waits[Cause.HELD, "far ahead"] > 0.5


def test_one_session_alone_has_the_same_story(told: Tell, tmp_path: Path) -> None:
    whole, _ = told("toy-short-host")
    header, entries = read_record(record("toy-short-host", tmp_path))
    alone = Storyteller(replayable(header.node), header.depth, "b")
    for entry in entries:
        alone.decide(entry.facts, entry.now)
    alone.finish()
    assert alone.stories.keys() == {"b"}
    assert "a" in alone.sessions
    assert alone.stories["b"].events == whole.stories["b"].events


def test_a_response_is_told_with_the_words_that_led_to_it(told: Tell) -> None:
    teller, _ = told("sim-short-host-fcfs")
    story = teller.stories["talker-3"]
    first, last = story.responses
    about = story.about(last)
    before = [event.what for event in about if not event.response]
    assert What.SAID in before
    assert {event.response for event in about} == {"", last}
    assert story.about(first)[-1].what is What.ENDED


def test_what_is_preloaded_is_told_with_what_became_of_it(tmp_path: Path) -> None:
    header, entries = read_record(record("toy-short-host", tmp_path))
    teller = Storyteller(replayable(header.node), header.depth)

    def open_and_preload(entry: Entry) -> None:
        opened = [fact.session for fact in entry.facts if isinstance(fact, SessionOpened)]
        for session in opened:
            teller.moved(
                KvMoved("thinker", KvMove.PRELOADED, session, session, 2, {10_000 + len(teller.sessions)})
            )

    for entry in entries:
        teller.decide(entry.facts, entry.now)
        open_and_preload(entry)
    (used,) = teller.stories["a"].of(What.PRELOAD_USED)
    assert used.amounts["blocks"] == 2
    assert used.where == "thinker"


def test_liveserve_tells_why_a_reply_waited_and_gave_way_and_what_became_of_its_kv(tmp_path: Path) -> None:
    path, preset = tmp_path / "record", liveserve(tmp_path, "own")
    played(preset, path, 8, 14.0)
    events = [event for story in retold(path, preset).stories.values() for event in story.events]
    evicted = [event for event in events if event.what is What.EVICTED]
    assert {event.kind for event in evicted} <= {"last", "unknown", "preempted", "coming"}
    last = [event.reason for event in evicted if event.kind == "last"]
    assert last
    assert all(
        re.match(r"its next use is the last, in \d+\.\d s(; its first \d+ stay)?$", one) for one in last
    )
    assert {(event.what, event.reason) for event in events} >= {
        (What.HELD, "far enough ahead of what is heard"),
        (What.PREEMPTED_KEEPING, "the least urgent gives way"),
        (What.WRITTEN, "will leave soon"),
        (What.PRELOADED, "its next turn is coming"),
        (What.FETCHED, "a request waits for it"),
    }
    assert all(event.amounts["ahead_s"] > 0 for event in events if event.what is What.PRELOAD_USED)
    assert {What.PRELOAD_USED, What.CUT} <= {event.what for event in events}
    waits = {cause for event in events if event.what is What.WORKED for cause, _ in event.spent}
    assert {Cause.HELD, Cause.ROW, Cause.DEVICE, Cause.ORDER} <= waits


def unbrought(folder: Path, preset: str) -> dict[str, list[tuple[What, str]]]:
    """What is told of the thinker's KV: all but `sudden` and `off` begin to speak. `early` and `sudden` have
    their pasts on the host, `big` a part of its past, `warm` none."""
    config = toy_config(preset=preset, rows=3, blocks=100, host_blocks=400, step_tokens=400)
    writer = RecordWriter(folder / "record", config, 0)
    world = World(config, 0, writer)
    for person, num_words in {"early": 150, "sudden": 150, "big": 370, "warm": 20}.items():
        world.send(SessionOpened(person))
        say(world, f"{person} 1", person, "so " * num_words)
        ask(world, f"{person} 1", person)
        world.run()
    world.send(*(SpeechStarted(person) for person in ("warm", "early", "big")))
    world.run()
    for person in ("warm", "early", "big", "sudden"):
        say(world, f"{person} 2", person, "and")
        ask(world, f"{person} 2", person)
        world.run()
    writer.close()
    kinds = What.NOT_PRELOADED, What.PART_PRELOADED, What.PRELOADED
    stories = retold(folder / "record").stories
    return {
        name: [(event.what, event.reason) for event in story.of(*kinds) if event.where == "thinker"]
        for name, story in stories.items()
    }


def test_why_a_preload_was_not_begun_is_told(tmp_path: Path) -> None:
    told = unbrought(tmp_path, HURRIED)
    assert told["early"] == [
        (What.PART_PRELOADED, "the first 32 of 39 blocks are brought: the link's speed is not known yet"),
        (What.PRELOADED, "its next turn is coming"),
    ]
    assert told["big"] == [
        (What.NOT_PRELOADED, "not brought: 50% of the device's blocks are kept for coming turns at most")
    ]
    assert told["warm"] == [(What.NOT_PRELOADED, "nothing is to be brought: all of it is on the device")]
    assert told["sudden"] == [(What.PRELOADED, "its next turn is coming")], "once its reply is asked for"


def test_that_a_turn_was_not_announced_is_told_where_its_request_waits() -> None:
    teller, story = small()
    view = SimpleNamespace(
        tier="device", expected=lambda: iter("a"), waiting=lambda: iter("a"), state=lambda _: None
    )
    view.num_away = {"a": 4}.get
    own = Told("waits", "its own request waits for it")
    asked = cast("Watched", SimpleNamespace(decision="fetch", unit="thinker", tell=lambda *_: own))
    for now in (2.0, 3.0):
        teller.said(asked, view, NOTHING, now)
    teller.decide((SpeechStarted("a"),), 4.0)
    for now in (4.0, 5.0):
        teller.said(asked, view, NOTHING, now)
    assert [event.reason for event in story.of(What.NOT_PRELOADED)] == [
        "its turn was not announced, and its request waits for it",
        own.why,
    ]


def test_a_policy_that_preloads_nothing_says_so_once_a_turn(tmp_path: Path) -> None:
    told = unbrought(tmp_path, "baseline")
    why = "on-demand preloads nothing: it comes when a request waits for it"
    for name in ("early", "sudden"):
        assert told[name] == [(What.NOT_PRELOADED, why)]


def small() -> tuple[Storyteller, Story]:
    teller = Storyteller(toy_config(host_blocks=8), 0)
    teller.decide((SessionOpened("a"), ResponseRequested("a", "r", "i")), 1.0)
    return teller, teller.stories["a"]


def test_what_is_preloaded_for_nothing_is_told() -> None:
    teller, story = small()
    teller.moved(KvMoved("thinker", KvMove.PRELOADED, "a", "a", 3, {70, 71}))
    teller.decide((CopyDone("thinker", 70), CopyDone("thinker", 71)), 2.0)
    teller.moved(KvMoved("thinker", KvMove.EVICTED, "a beside", "a", 9))
    assert not list(story.of(What.PRELOAD_UNUSED)), "a response beside the conversation has KV of its own"
    teller.moved(KvMoved("thinker", KvMove.TAKEN, "a", "a", 2))
    teller.moved(KvMoved("thinker", KvMove.EVICTED, "a", "a", 9))
    teller.moved(KvMoved("talker", KvMove.PRELOADED, "a", "a", 1, {72}))
    teller.decide((CopyFailed("talker", 72, "the link broke"),), 3.0)
    teller.moved(KvMoved("talker", KvMove.PRELOADED, "a", "a", 2, {73}))
    teller.decide((SessionClosed("a"),), 4.0)
    words = [(event.where, event.words, event.reason) for event in story.events]
    assert ("thinker", "KV blocks back from the host: 3", "") in words
    assert ("talker", "KV blocks whose copy failed: 1", "the link broke") in words
    unread = "preloaded KV blocks not read: {}, begun {} s ago"
    for lost in (2, 1):
        assert ("thinker", unread.format(lost, "1.000"), "it was evicted before its turn came") in words
    assert ("talker", unread.format(1, "1.000"), "its copy failed") in words
    assert ("talker", unread.format(2, "1.000"), "the session ended before its turn came") in words


@pytest.mark.parametrize(("at", "begun"), [(1.0, "0.000 s before"), (3.5, "2.500 s after")])
def test_when_a_preload_began_is_told_by_when_its_turn_was_complete(
    at: float, begun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that finds no row yet waits for nothing, and its KV is preloaded."""
    teller, story = small()
    teller.decide((), at)
    teller.moved(KvMoved("thinker", KvMove.PRELOADED, "a", "a", 3, {70}))
    active = cast(Any, SimpleNamespace(owner="a"))
    monkeypatch.setattr(teller.node.stages.ar["thinker"], "find", lambda request: active)
    join = SimpleNamespace(request=1, prompt=SimpleNamespace(token_ids=[0] * 8), generated=[], cached=6)
    teller._has_row(teller._replies["a"]["r"], "thinker", cast(Any, join))
    (read,) = story.of(What.PRELOAD_USED, What.PRELOAD_USED_LATE)
    assert read.words == f"preloaded KV blocks read: 3, begun {begun} the turn was complete"


def test_what_was_preloaded_and_did_not_come_is_not_read() -> None:
    teller, _ = small()
    teller.moved(KvMoved("thinker", KvMove.PRELOADED, "a", "a", 3, {70, 71}))
    teller.moved(KvMoved("thinker", KvMove.PRELOADED, "a", "a", 2, {72}))
    for ticket in (70, 71):
        teller.decide((CopyFailed("thinker", ticket, "broke"),), 2.0)
    assert teller._preloads.read("thinker", "a") == (2, 1.0)


def test_that_evicted_kv_is_copied_is_told_with_the_reason_of_its_eviction_alone() -> None:
    teller, story = small()
    teller._waits.said("evict", "thinker", SimpleNamespace(tier="device"), Selection((), 9, "needed last"))
    told = Told("coming", "its turn is coming or under way, and nothing else was left to go")
    teller.moved(KvMoved("thinker", KvMove.EVICTED, "a", "a", 2, told=told))
    teller.moved(KvMoved("thinker", KvMove.COPIED, "a", "a", 2, {70}))
    events = [(event.what, event.reason) for event in story.of(What.EVICTED, What.COPIED)]
    assert events == [(What.EVICTED, told.why), (What.COPIED, "")]


def test_what_left_for_one_class_of_reasons_is_told_together_with_the_last_one() -> None:
    teller, story = small()
    for in_s, kind in ((3.0, "last"), (2.9, "last"), (2.8, "unknown")):
        told = Told(kind, f"in {in_s} s")
        teller.moved(KvMoved("thinker", KvMove.EVICTED, "a", "a", 2, told=told))
    events = [(event.reason, event.amounts["blocks"], event.times) for event in story.of(What.EVICTED)]
    assert events == [("in 2.9 s", 4, 2), ("in 2.8 s", 2, 1)]


def test_blocks_of_which_one_group_did_not_come_are_not_back() -> None:
    teller, story = small()
    for first, facts in (
        (70, (CopyFailed("thinker", 70, "broke"), CopyDone("thinker", 71), CopyDone("thinker", 72))),
        (80, (CopyDone("thinker", 80), CopyFailed("thinker", 81, "broke"), CopyFailed("thinker", 82, "too"))),
    ):
        teller.moved(KvMoved("thinker", KvMove.FETCHED, "a", "a", 3, {first, first + 1, first + 2}))
        for fact in facts:
            teller.decide((fact,), 2.0)
    assert not list(story.of(What.ARRIVED))
    assert story.total("blocks", What.COPY_FAILED) == 6, "each block once"


def test_speech_over_a_reply_and_what_is_kept_from_the_client() -> None:
    teller, story = small()
    teller.decide((SpeechStarted("a"), OutputHeld("a", "r")), 1.5)
    teller.decide((OutputReleased("a", "r"), SpeechEnded("a")), 2.0)
    teller.decide((SessionClosed("a"),), 2.5)
    kinds = [event.what for event in story.events]
    over = [What.ASKED, What.SPEAKS_OVER, What.WITHHELD, What.RELEASED, What.SILENT]
    assert kinds == [*over, What.CLOSED, What.CUT, What.ENDED]


def test_that_what_is_read_ahead_gives_way_is_told(tmp_path: Path) -> None:
    config, path = toy_config(blocks=200), tmp_path / "way.rec"
    writer = RecordWriter(path, config, 0)
    world = World(config, 0, recorder=writer)
    world.send(SessionOpened("ann"), SessionOpened("bob"))
    for name in ("ann", "bob"):
        say(world, f"of {name}", name, " ".join(["much"] * 60))
    assert advise(world) == "begun"
    until_reading(world)
    world.now += PART_S
    assert advise(world, "bob") == "begun"
    world.run()
    writer.close()
    stories, kinds = retold(path).stories, (What.READS_AHEAD, What.READ_AHEAD)
    (_, broken), (_, whole) = (stories[name].of(*kinds) for name in ("ann", "bob"))
    assert (broken.reason, whole.reason) == (NOT_WHOLE, "")
    assert min(broken.amounts["tokens"], whole.amounts["tokens"]) >= 8


def test_what_is_read_ahead_of_a_turn_is_told(tmp_path: Path) -> None:
    """One that is read whole, one that a reply ends, and one that begins not at all."""
    config, path = toy_config(blocks=200), tmp_path / "ahead.rec"
    writer = RecordWriter(path, config, 0)
    world = World(config, 0, recorder=writer)
    world.send(SessionOpened("ann"), SessionOpened("bob"))
    say(world, "whole")
    world.send(TurnAdvised("ann", "turn", 1.5))
    world.run()
    whole = prepared(world).tokens
    assert advise(world) == "done"
    say(world, "broken", "bob", " ".join(["much"] * 60))
    assert advise(world, "bob") == "begun"
    until_reading(world)
    ask(world, "r", "bob")
    world.run()
    writer.close()

    stories, kinds = retold(path).stories, (What.ADVISED, What.READS_AHEAD, What.NOT_AHEAD, What.READ_AHEAD)
    told_of = {name: [(one.what, one.reason) for one in stories[name].of(*kinds)] for name in ("ann", "bob")}
    assert told_of["ann"] == [
        (What.ADVISED, "due in 1.5 s"),
        (What.READS_AHEAD, ""),
        (What.READ_AHEAD, ""),
        (What.ADVISED, ""),
        (What.NOT_AHEAD, "all of it was read already"),
    ]
    assert [kind for kind, _ in told_of["bob"]] == [What.ADVISED, What.READS_AHEAD, What.READ_AHEAD]
    assert told_of["bob"][-1][1].startswith("until a reply was asked for")
    tokens = {name: stories[name].total("tokens", What.READ_AHEAD) for name in told_of}
    assert tokens == {"ann": whole, "bob": prepared(world).tokens - whole}
    assert tokens["bob"] > 0


def test_advisories_in_a_row_are_told_once_and_so_is_why_nothing_is_done() -> None:
    teller, story = small()
    for now in (1.5, 2.0, 2.5):
        teller.decide((TurnAdvised("a", expected_s=1.0, confidence=0.4),), now)
    (event,) = story.of(What.ADVISED)
    assert (event.times, event.until_s - event.at_s) == (3, 1.0)
    assert event.reason == "due in 1.0 s; nothing is done: its confidence is below 0.5"


def test_gaps_of_two_responses_are_told_apart() -> None:
    story = Story("a", 0.0)
    for now, response in ((1.0, "r"), (2.0, "beside"), (3.0, "r")):
        story.add(now, What.GAP, response=response, gap_s=0.5)
    assert [(event.response, event.times, event.amounts["gap_s"]) for event in story.events] == [
        ("r", 2, 1.0),
        ("beside", 1, 0.5),
    ]


def test_who_waits_while_blocks_are_free_waits_for_its_turn(tmp_path: Path) -> None:
    """A step has no more tokens than others take."""
    config, path = toy_config(blocks=400, step_tokens=5, rows=4), tmp_path / "busy.rec"
    writer = RecordWriter(path, config, 0)
    world = World(config, 0, recorder=writer)
    world.send(SessionOpened("ann"), SessionOpened("bob"))
    for session in ("ann", "bob"):
        say(world, session, session, " ".join(["much"] * 40))
        ask(world, session, session)
    world.run()
    writer.close()

    worked = [event for story in retold(path).stories.values() for event in story.of(What.WORKED)]
    waits = {cause for event in worked for cause, _ in event.spent}
    assert Cause.ORDER in waits
    assert Cause.BLOCKS not in waits


def of_cascade(world: transcribing.World) -> Storyteller:
    """The stories of what the world has seen."""
    teller = Storyteller(transcribing.CONFIG, 0)
    for facts, now, _ in world.log:
        teller.decide(facts, now)
    teller.finish()
    return teller


def test_a_voice_without_a_talker_is_told_by_the_sound_that_came_of_it() -> None:
    world = transcribing.World()
    world.samples = 24_000
    world.ask("s", transcribing.recording(1))
    while "s" not in world.ends:
        world.turn()
    made_s = sum(world.sounded.values()) / 24_000
    world.facts.append(SessionClosed("s"))
    world.run()
    story = of_cascade(world).stories["s"]
    (end,) = story.of(What.ENDED)
    assert end.amounts["made_s"] == made_s > 0
    assert not list(story.of(What.CUT)), "it was whole when the session ended"


def test_a_voice_that_is_cut_tells_what_was_never_heard() -> None:
    world = transcribing.World()
    world.samples, world.reply_length = 24_000, 300
    world.ask("s", transcribing.recording(1))
    while not world.sounded.total():
        world.turn()
    world.turn()
    world.facts.append(ResponseCancelled("s", "s", "turn_detected"))
    world.run()
    (cut,) = of_cascade(world).stories["s"].of(What.CUT)
    assert cut.amounts["heard_s"] < cut.amounts["made_s"]
    assert cut.amounts["unheard_s"] == pytest.approx(cut.amounts["made_s"] - cut.amounts["heard_s"])


def test_a_transcript_is_no_turn_and_cannot_be_spoken_over() -> None:
    world = transcribing.World()
    world.ask("s", transcribing.recording(1))
    (*opened, asked) = world.facts
    world.facts = [*opened, msgspec.structs.replace(asked, transcribe=True, speech=False)]
    world.turn()
    world.facts.append(SpeechStarted("s"))
    world.run()
    story = of_cascade(world).stories["s"]
    kinds = [event.what for event in story.events if event.response == "s"]
    assert (kinds[0], kinds[-1]) == (What.TRANSCRIBED, What.ENDED)
    assert What.FIRST_WORDS in kinds
    assert not {What.ASKED, What.FIRST_TEXT, What.SPEAKS_OVER, What.CUT}.intersection(kinds)
    assert What.SPEAKS in {event.what for event in story.events}
    assert story.responses == ["s"]
