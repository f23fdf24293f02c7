"""A recording is written down in the way in which it was taken: its language, its prompt, how it is drawn."""

from __future__ import annotations

from antiphon.core.conversation import Item, TranscriptOptions
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened, UnitLost
from fakes.transcribing import World, recording, written


def asked_so(world: World, name: str, options: TranscriptOptions | None, transcribe: bool = False) -> None:
    """A reply to recording 1, which is written down so."""
    item = Item(f"q-{name}", "user", (recording(1, options),))
    world.facts.append(ResponseRequested("s", name, f"a-{name}", items=(item,), transcribe=transcribe))
    world.run()


def test_a_recording_is_written_down_once_for_each_way_to_do_it():
    world = World()
    world.facts.append(SessionOpened("s"))
    german = TranscriptOptions(language="de", prompt="Ada")
    for name, options in (("a", None), ("b", german), ("c", german), ("d", None)):
        asked_so(world, name, options)
    mine = {recording(1, german).transcript_key: tuple(50 + token for token in written(1))}
    plain = {1: written(1)}
    assert [one.transcripts for one in world.prompts] == [plain, mine, mine, plain]
    assert world.encoded == [1], "the encoder's output serves both"
    assert sum(stage == "transcriber" for stage, _ in world.drawn) == 2
    warm = TranscriptOptions(temperature=0.5, seed=9)
    asked_so(world, "e", warm, transcribe=True)
    join = world.transcribed[-1]
    assert (join.sampling.temperature, join.sampling.seed, join.sampling.max_tokens) == (0.5, 9, 8)
    assert {one.sampling.temperature for one in world.transcribed[:6]} == {0.0}
    world.check_empty()


def test_a_recording_keeps_the_way_in_which_it_was_taken():
    """The session speaks German from the second turn on."""
    german = TranscriptOptions(language="de")
    first, second = recording(1), recording(2, german)
    world = World()
    world.ask("s", first)
    world.run()
    begin = len(world.transcribed)
    world.facts += [ItemAdded("s", Item("r", "user", (second,))), ResponseRequested("s", "t", "u")]
    world.run()
    assert {join.prompt.spans[0].key for join in world.transcribed[begin:]} == {2}
    later = tuple(50 + token for token in written(2))
    assert world.prompts[-1].transcripts == {first.transcript_key: written(1), second.transcript_key: later}
    assert world.ends["t"].usage.cached_tokens > 0
    world.check_empty()


def test_one_recording_that_was_taken_in_two_ways_stands_in_both():
    german = TranscriptOptions(language="de")
    world = World()
    world.ask("s", recording(1), recording(1, german))
    world.run()
    assert sorted(world.prompts[-1].transcripts.values()) == [
        written(1),
        tuple(50 + token for token in written(1)),
    ]
    assert world.encoded == [1]
    world.check_empty()


def test_a_way_that_the_transcriber_does_not_know_is_the_clients_error_and_is_tried_again():
    world = World()
    world.facts.append(SessionOpened("s"))
    for name in "ab":
        asked_so(world, name, TranscriptOptions(language="xx"))
        assert (world.ends[name].status, world.ends[name].reason) == ("failed", "invalid_prompt")
        assert world.ends[name].message == "language: xx"
    asked_so(world, "c", None)
    assert world.ends["c"].status == "completed"
    world.check_empty()


def test_a_transcriber_that_is_lost_before_its_prompt_is_there_fails_what_waits():
    world = World()
    said = recording(1, TranscriptOptions(prompt="Ada"))
    world.facts += [SessionOpened("s"), ItemAdded("s", Item("q", "user", (said,)))]
    world.facts.append(ResponseRequested("s", "a", "x"))
    world.turn()
    world.facts.insert(0, UnitLost("transcriber", "gone"))
    world.run()
    assert (world.ends["a"].status, world.ends["a"].reason) == ("failed", "stage_lost")
