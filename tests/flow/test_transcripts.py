"""A cascade's turns: what was said is written down before a prompt shows it; what is written is read out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pytest

from antiphon.assembly.node import Node
from antiphon.core.config import EncoderConfig
from antiphon.core.conversation import AudioPart, Item, TextPart, TranscriptOptions
from antiphon.core.facts import (
    ItemAdded,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechStarted,
    StepDone,
    TurnAdvised,
    TurnDropped,
    TurnForeseen,
    UnitLost,
    UnitReady,
    WordsWanted,
)
from antiphon.core.plans import ArStep, Join, TokensOut
from antiphon.flow import transcripts
from antiphon.policy.base import Candidate, Refuse, StepView, Tier
from antiphon.runtime.codec import encode
from antiphon.runtime.record import without_media
from fakes import transcribing
from fakes.transcribing import (
    CONFIG,
    CREDIT,
    World,
    foreseen,
    recording,
    wanted,
    written,
)
from fakes.whims import whims_of


def test_a_prompt_waits_for_all_that_it_shows():
    world = World()
    world.ask("s", recording(1), "and", recording(2))
    world.run()
    (prompt,) = world.prompts
    assert prompt.transcripts == {1: written(1), 2: written(2)}
    assert world.ends["s"].status == "completed"
    assert world.encoded == [1, 2]
    world.check_empty()


def test_what_two_people_say_alike_is_written_down_once():
    world = World()
    world.ask("a", recording(1))
    world.turn()
    world.ask("b", recording(1))
    world.run()
    world.ask("c", recording(1))
    world.run()
    assert world.encoded == [1]
    assert sum(stage == "transcriber" for stage, _ in world.drawn) == 1
    assert [one.transcripts for one in world.prompts] == [{1: written(1)}] * 3
    assert {end.status for end in world.ends.values()} == {"completed"}
    world.check_empty()


def test_a_recording_that_cannot_be_heard_ends_those_who_show_it():
    world = World()
    world.bad = {2}
    world.ask("a", recording(1))
    world.ask("b", recording(2))
    world.ask("c", "hello", recording(2), recording(3))
    world.run()
    assert world.ends["a"].status == "completed"
    for name in "bc":
        end = world.ends[name]
        assert (end.status, end.reason) == ("failed", "stage_failed")
        assert end.message == "The input could not be encoded: too loud"
    assert len(world.prompts) == 1
    world.check_empty()


def test_a_recording_that_cannot_be_heard_costs_one_reply_and_not_the_conversation():
    world = World()
    world.bad = {2}
    world.ask("c", "hello", recording(2))
    world.run()
    assert world.ends["c"].status == "failed"
    world.bad = set()
    world.ask("d", "hello", recording(2), recording(3))
    world.run()
    assert world.ends["d"].status == "completed"


@pytest.mark.parametrize("turns", range(1, 5))
def test_what_nobody_waits_for_is_not_written_down(turns: int):
    world = World()
    world.ask("s", recording(1))
    for _ in range(turns):
        world.turn()
    world.facts.append(ResponseCancelled("s", "s"))
    world.run()
    assert world.ends["s"].status == "cancelled"
    assert not world.prompts
    world.check_empty()


def test_a_session_that_ends_takes_nobody_elses_transcript():
    world = World()
    world.ask("a", recording(1))
    world.ask("b", recording(1))
    world.turn()
    world.facts.append(SessionClosed("a"))
    world.run()
    assert world.ends["a"].status == "cancelled"
    assert world.ends["b"].status == "completed"
    world.check_empty()


@pytest.mark.parametrize("unit", ["ears", "transcriber"])
@pytest.mark.parametrize("turns", [0, 2])
def test_a_unit_that_is_lost_fails_what_it_was_to_write(unit: str, turns: int):
    world = World()
    if turns:
        world.ask("s", recording(1))
        for _ in range(turns):
            world.turn()
        world.facts.append(UnitLost(unit, "killed"))
    else:
        world.facts.append(UnitLost(unit, "killed"))
        world.turn()
        world.ask("s", recording(1))
    world.facts = [fact for fact in world.facts if not isinstance(fact, StepDone) or fact.stage != unit]
    world.run()
    assert (world.ends["s"].status, world.ends["s"].reason) == ("failed", "stage_lost")
    world.rows.pop(unit, None)
    world.facts.append(UnitReady(unit))
    world.ask("again", recording(2))
    world.run()
    assert world.ends["again"].status == "completed"
    world.check_empty()


def test_a_piece_that_fails_when_it_is_begun_ends_its_response_at_once():
    """The transcriber is lost with the report that ends the pieces before it; nothing happens after that."""
    said = Item("said", "user", tuple(recording(number) for number in range(1, 7)))
    asked = {"speech": False, "remember": False, "items": (said,), "transcribe": True}
    for turns in range(1, 12):
        world = World()
        world.facts += [SessionOpened("t"), ResponseRequested("t", "t", "t", **asked), wanted(9, "t")]
        for _ in range(turns):
            world.turn()
        assert not world.ends
        world.facts.append(UnitLost("transcriber", "killed"))
        world.turn()
        assert world.ends["t"].reason == "stage_lost"
        world.facts.clear()
        assert not world.turn(), "nothing of it is left"
        world.rows.pop("transcriber", None)
        world.facts.append(UnitReady("transcriber"))
        world.check_empty()


@dataclass
class Door:
    """Refuses once it is shut."""

    name: str = "door"
    is_shut: bool = False

    def decide(self, view: StepView, candidate: Candidate, now: float) -> Refuse | None:
        return Refuse("the queue is long", 4.0, 7.0) if self.is_shut else None


def test_who_was_told_the_beginning_of_a_recording_is_not_refused_its_end():
    world, door = World(), Door()
    transcriber = world.node.stages.ar["transcriber"]
    transcriber._policies = replace(transcriber._policies, admission=door)
    said = Item("said", "user", tuple(recording(number) for number in range(1, 6)))
    asked = {"speech": False, "remember": False, "items": (said,), "transcribe": True}
    world.facts += [SessionOpened("t"), ResponseRequested("t", "t", "t", **asked)]
    while not world.text["t"]:
        world.turn()
    door.is_shut = True
    world.ask("s", recording(9))
    world.run()
    assert world.ends["t"].status == "completed"
    assert world.text["t"] == [token for number in range(1, 6) for token in written(number)]
    assert world.ends["s"].reason == "server_overloaded"
    world.check_empty()


def test_transcripts_that_nobody_shows_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transcripts, "MOST_KEPT", 1)
    world = World()
    for number in (1, 2, 1):
        world.ask(f"s{number}{len(world.ends)}", recording(number))
        world.run()
    assert world.encoded[:2] == [1, 2]
    assert sum(stage == "transcriber" for stage, _ in world.drawn) == 3
    world.check_empty()


def test_a_turn_that_is_coming_is_written_down_and_read_ahead():
    world = World()
    world.facts += [SessionOpened("s"), ItemAdded("s", Item("q", "user", (recording(1),)))]
    world.facts.append(TurnAdvised("s", "turn"))
    world.run()
    assert [one.turn for one in world.advised] == ["begun"]
    assert [one.transcripts for one in world.prompts] == [{1: written(1)}]
    assert not world.ends
    world.facts.append(ResponseRequested("s", "s", "a"))
    world.run()
    assert world.encoded == [1]
    assert world.ends["s"].usage.cached_tokens > 0
    world.check_empty()


def test_what_was_said_before_a_pause_is_written_down_and_read_in_it():
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1)]
    world.run()
    assert [one.transcripts for one in world.prompts] == [{1: written(1)}]
    assert (world.ends, world.advised) == ({}, [])
    world.facts += [foreseen(2)]  # more was said
    world.run()
    world.facts += [ItemAdded("s", Item("q", "user", (recording(2),))), ResponseRequested("s", "s", "a")]
    world.run()
    assert world.encoded == [1, 2]
    assert [one.transcripts for one in world.prompts] == [{1: written(1)}, *[{2: written(2)}] * 2]
    assert world.ends["s"].usage.cached_tokens > 0
    assert world.ends["s"].status == "completed"
    world.check_empty()


def test_a_turn_that_ends_while_its_pause_is_read_goes_on_from_there():
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1)]
    for _ in range(3):
        world.turn()
    world.facts += [ItemAdded("s", Item("q", "user", (recording(1),))), ResponseRequested("s", "s", "a")]
    world.run()
    assert world.encoded == [1]
    assert world.ends["s"].status == "completed"
    world.check_empty()


def test_a_transcript_that_was_begun_in_a_pause_goes_on_where_it_gave_its_row_up():
    world = World()
    whims = whims_of(world.node.stages.ar["transcriber"])
    world.facts += [SessionOpened("s"), foreseen(1)]
    while not transcriber_joins(world, 1):
        world.turn()
    world.facts += [ItemAdded("s", Item("q", "user", (recording(1),))), ResponseRequested("s", "s", "a")]
    world.ask("other", recording(2))
    while not transcriber_joins(world, 2):
        world.turn()
    whims.victims = [0]
    world.run()
    joins = transcriber_joins(world, 1)
    assert len(joins) > 1, "it gave its row up"
    assert len({join.request for join in joins}) == 1
    assert world.ends["s"].status == "completed"
    world.check_empty()


def transcriber_joins(world: World, number: int) -> list[Join]:
    """Of a recording."""
    orders = [order for _, _, decision in world.log for order in decision.orders]
    return [
        join
        for order in orders
        if isinstance(order, ArStep) and order.stage == "transcriber"
        for join in order.joins
        if join.prompt.spans[0].key == number
    ]


def test_what_fails_in_a_pause_is_tried_again_for_the_turn():
    for is_well_again in (True, False):
        world = World()
        world.bad.add(1)
        world.facts += [SessionOpened("s"), foreseen(1)]
        world.run()
        if is_well_again:
            world.bad.clear()
        world.facts += [ItemAdded("s", Item("q", "user", (recording(1),))), ResponseRequested("s", "s", "a")]
        world.run()
        assert world.ends["s"].status == ("completed" if is_well_again else "failed")
        assert [one.transcripts for one in world.prompts] == [{1: written(1)}] * is_well_again
        world.check_empty()


def test_a_unit_that_is_lost_in_a_pause_costs_no_turn():
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1)]
    for _ in range(3):
        world.turn()
    world.facts += [UnitLost("transcriber", "gone"), UnitReady("transcriber")]
    world.facts += [ItemAdded("s", Item("q", "user", (recording(1),))), ResponseRequested("s", "s", "a")]
    world.run()
    assert world.ends["s"].status == "completed"
    world.check_empty()


def test_what_was_read_is_not_read_again():
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1), foreseen(1)]
    world.run()
    world.facts.append(foreseen(1))
    world.run()
    assert len(world.prompts) == 1
    world.check_empty()


def test_a_pause_is_not_read_while_somebody_is_served_nor_longer_than_that():
    world = World()
    world.reply_length = 30
    world.ask("other", "hello")
    for _ in range(4):
        world.turn()
    world.facts += [SessionOpened("s"), foreseen(1)]
    world.turn()
    assert not world.encoded
    world.run()
    world.facts.append(foreseen(2))
    world.turn()
    world.facts.append(ResponseRequested("other", "again", "b"))
    world.run()
    assert [one.transcripts for one in world.prompts] == [{}, {}], "what is read ahead gives way"
    world.facts += [SessionClosed("s"), foreseen(3)]
    world.run()
    assert 3 not in world.encoded
    world.check_empty()


def test_a_voice_reads_all_and_says_which_words_are_over():
    world = World()
    world.reply_length = 7
    world.ask("s", "hello")
    world.run()
    assert world.words["s"][-1][0] == 7
    assert [end for _, end in world.words["s"]] == sorted({end for _, end in world.words["s"]})
    assert world.ends["s"].status == "completed"
    assert world.ends["s"].usage.output_text_tokens == 7
    world.check_empty()


def test_who_writes_is_held_back_by_a_voice_that_does_not_come_after():
    world = World()
    world.reply_length, world.is_voicing = 700, False
    world.ask("s", "hello")
    world.run()
    assert "s" not in world.ends
    (drawn,) = world.drawn.values()
    assert drawn == CREDIT
    world.is_voicing = True
    voice = world.node.stages.codec["voice"]
    voice._streams[1].owes = True  # it has found something to say
    voice.reopen()
    world.run()
    assert world.ends["s"].status == "completed"
    assert world.read[1] == 700
    world.check_empty()


def test_without_a_voice_a_reply_fails():
    world = World()
    world.facts.append(UnitLost("voice", "killed"))
    world.ask("s", "hello")
    world.run()
    end = world.ends["s"]
    assert (end.status, end.reason, end.message) == (
        "failed",
        "stage_lost",
        "The voice stage is starting again",
    )
    world.check_empty()


def test_a_reply_without_words_is_not_spoken():
    world = World()
    world.reply_length = 0
    world.ask("s", "hello")
    world.run()
    assert world.ends["s"].status == "completed"
    assert not world.read
    world.check_empty()


@pytest.mark.parametrize("is_empty", [False, True])
def test_who_asks_for_what_was_said_is_told_it_and_no_more(monkeypatch: pytest.MonkeyPatch, is_empty: bool):
    """Beside the reply to the same recording, of which there is one transcript."""
    if is_empty:
        for names in (globals(), vars(transcribing)):
            monkeypatch.setitem(names, "written", lambda number: ())
    world = World()
    said = Item("said", "user", (recording(1),))
    world.ask("s", recording(1))
    asked = {"speech": False, "remember": False, "items": (said,), "transcribe": True}
    world.facts.append(ResponseRequested("s", "t", "t", tier="best_effort", **asked))
    world.run()
    assert world.text["t"] == list(written(1))
    end = world.ends["t"]
    assert (end.status, end.usage.output_text_tokens) == ("completed", len(written(1)))
    assert world.ends["s"].status == ("cancelled" if is_empty else "completed")
    assert world.encoded == [1]
    assert len(world.read) == (not is_empty), "a transcript is not spoken"
    world.check_empty()


def test_a_transcript_is_told_as_it_is_written():
    """Of several recordings in order: the first has been written down already, the last is."""
    world = World()
    world.ask("s", recording(1))
    world.run()
    begin = len(world.log)
    said = Item("said", "user", (recording(1), recording(2), recording(3)))
    asked = {"speech": False, "remember": False, "items": (said,), "transcribe": True}
    world.facts.append(ResponseRequested("s", "t", "t", **asked))
    world.run()
    told = [
        output.tokens[:, 0].tolist()
        for _, _, decision in world.log[begin:]
        for output in decision.outputs
        if isinstance(output, TokensOut)
    ]
    assert told[0] == list(written(1))
    assert [token for tokens in told for token in tokens] == [*written(1), *written(2), *written(3)]
    assert len(told) > 3, "token by token where it is being written"
    assert world.ends["t"].status == "completed"
    assert len(world.prompts) == 1, "a transcript has no prompt"
    world.check_empty()


@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_a_reply_that_begins_as_a_bare_call_is_not_spoken(has_tools: bool, begins: bool):
    """Behind its first token the same token is a word."""
    world = World()
    world.node = Node(msgspec.structs.replace(CONFIG, json_call_ids=(transcribing.WORD,)))
    if not begins:
        first = world._token
        world._token = lambda stage, join: (
            first(stage, join) + (stage == "thinker" and world.drawn[stage, join.request] == 1)
        )
    item = Item("q", "user", (TextPart("hello"),))
    tools = ("{}",) if has_tools else ()
    world.facts += [SessionOpened("s"), ItemAdded("s", item), ResponseRequested("s", "s", "a", tools=tools)]
    world.run()
    assert world.ends["s"].status == "completed"
    assert len(world.text["s"]) == 3
    assert bool(world.read) == (not (has_tools and begins))
    world.check_empty()


@pytest.mark.parametrize("reply", ["call", "words", "nothing"])
def test_white_space_before_a_bare_call_is_not_spoken_and_before_words_it_is(reply: str):
    blank, call, word = 21, transcribing.WORD, 22
    written_so = {
        "call": (blank, blank, call, word),
        "words": (blank, blank, word, call),
        "nothing": (blank, blank),
    }[reply]
    world = World()
    world.node = Node(msgspec.structs.replace(CONFIG, json_call_ids=(call,), blank_ids=(blank,)))
    drawn = iter((*written_so, transcribing.STOP))
    world._token = lambda stage, join: next(drawn)
    item = Item("q", "user", (TextPart("hello"),))
    world.facts += [
        SessionOpened("s"),
        ItemAdded("s", item),
        ResponseRequested("s", "s", "a", tools=("{}",)),
    ]
    world.run()
    assert world.ends["s"].status == "completed"
    assert tuple(world.text["s"]) == written_so
    assert sum(world.read.values()) == (len(written_so) if reply == "words" else 0)
    world.check_empty()


def test_a_long_recording_leaves_the_stages_to_others_meanwhile():
    """Two of its pieces at a time."""
    world = World()
    said = Item("said", "user", tuple(recording(number) for number in range(1, 7)))
    asked = {"speech": False, "remember": False, "items": (said,), "transcribe": True}
    world.facts += [SessionOpened("t"), ResponseRequested("t", "t", "t", **asked)]
    world.turn()
    world.ask("s", recording(9))
    world.run()
    assert world.encoded == [1, 2, 9, 3, 4, 5, 6]
    assert world.text["t"] == [token for number in range(1, 7) for token in written(number)]
    world.check_empty()


def test_a_transcript_is_as_urgent_as_who_waits_for_it():
    world = World()
    said = Item("said", "user", tuple(recording(number) for number in range(1, 5)))
    asked = {"speech": False, "remember": False, "items": (said,), "transcribe": True}
    world.facts += [SessionOpened("t"), ResponseRequested("t", "t", "t", tier="best_effort", **asked)]
    world.ask("s", recording(9))
    world.turn()
    world.turn()
    assert world.encoded[0] == 9, "a person waits for that"

    def tiers() -> dict[int, Tier]:
        requests = world.node.stages.ar["transcriber"]._requests.values()
        return {one.prompt.spans[0].key: one.tier for one in requests}

    while {1, 2} - tiers().keys():
        world.turn()
    assert {key: tier for key, tier in tiers().items() if key != 9} == dict.fromkeys((1, 2), Tier.BEST_EFFORT)
    world.ask("u", recording(2))
    world.turn()
    assert (tiers()[1], tiers()[2]) == (Tier.BEST_EFFORT, Tier.LATENCY)
    world.facts.append(ResponseCancelled("u", "u"))
    world.run()
    assert world.text["t"] == [token for number in range(1, 5) for token in written(number)]
    assert world.ends["s"].status == "completed"
    world.check_empty()


def test_a_prompt_that_shows_many_recordings_has_them_written_down_together():
    """As far as the stages take them: none of them is of use alone."""
    ar = CONFIG.ar | {
        "transcriber": msgspec.structs.replace(CONFIG.ar["transcriber"], max_rows=6, num_blocks=40)
    }
    ears = EncoderConfig(step_media=6, cached_media=6)
    turns: list[int] = []
    for count in (1, 6):
        world = World()
        world.node = Node(msgspec.structs.replace(CONFIG, ar=ar, encoder={"ears": ears}))
        world.ask("s", *(recording(number) for number in range(1, count + 1)))
        while not world.prompts:
            world.turn()
        turns.append(len(world.log))
        world.run()
        world.check_empty()
    assert turns[0] == turns[1]


def test_the_words_of_a_long_turn_are_those_of_its_pieces():
    world = World()
    world.facts += [SessionOpened("s"), SpeechStarted("s"), wanted(1)]
    world.run()
    world.facts.append(WordsWanted("s", "q", (recording(1), recording(2)), True))
    world.run()
    world.facts.append(WordsWanted("s", "q", (recording(1), recording(2)), True))
    world.run()
    both = (*written(1), *written(2))
    assert [one[2] for one in world.so_far] == [written(1), both, both]
    assert world.encoded == [1, 2]
    world.check_empty()


def test_a_transcript_that_breaks_off_ends_what_was_told_of_it():
    world = World()
    world.bad = {2}
    said = Item("said", "user", (recording(1), recording(2)))
    world.facts.append(SessionOpened("s"))
    asked = {"speech": False, "remember": False, "items": (said,), "transcribe": True}
    world.facts.append(ResponseRequested("s", "t", "t", **asked))
    world.run()
    assert world.ends["t"].status == "failed"
    assert world.ends["t"].message == "The input could not be encoded: too loud"
    assert world.text["t"]
    assert world.text["t"] == list(written(1))[: len(world.text["t"])]
    world.check_empty()


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


def test_what_is_read_of_a_turn_that_does_not_come_ends_at_once():
    for end in (TurnDropped("s", "q"), SessionClosed("s")):
        world = World()
        world.facts += [SessionOpened("s"), foreseen(1)]
        for _ in range(3):
            world.turn()
        assert world.node.stages.ar["transcriber"].requests
        world.facts = [fact for fact in world.facts if isinstance(fact, StepDone)] + [end]
        world.turn()
        assert not world.node.stages.ar["transcriber"].requests
        world.run()
        assert not world.prompts
        world.check_empty()


def test_the_clear_of_another_turn_ends_nothing():
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1), TurnDropped("s", "other"), TurnDropped("t", "q")]
    world.run()
    assert len(world.prompts) == 1
    world.check_empty()


def test_a_pause_goes_before_a_preface():
    """Whoever has paused may want a reply in 300 ms; whoever begins to speak does not."""
    preface = TurnForeseen("b", Item("", "user", (TextPart(""),)), ResponseRequested("b", "", ""))
    world = World()
    world.facts += [SessionOpened("s"), SessionOpened("b"), preface]
    world.turn()
    world.facts += [foreseen(1), preface]
    world.run()
    assert [one.transcripts for one in world.prompts] == [{}, {1: written(1)}]
    world.facts.append(preface)
    world.run()
    assert len(world.prompts) == 3, "it may be told again"
    world.check_empty()


def test_a_turn_in_which_nobody_speaks_is_not_answered():
    """Its response ends with a reason of its own, without a prompt; the next turn shows nothing of it."""
    world = World()
    world.silent = {1, 2}
    world.ask("s", recording(1), recording(2))
    world.run()
    end = world.ends["s"]
    assert (end.status, end.reason) == ("cancelled", "no_speech")
    assert end.message
    assert not world.prompts
    assert not world.text
    world.facts += [ItemAdded("s", Item("again", "user", (recording(3),))), ResponseRequested("s", "b", "c")]
    world.run()
    assert world.ends["b"].status == "completed"
    assert world.prompts[-1].transcripts == {1: (), 2: (), 3: written(3)}
    world.facts += [ItemAdded("s", Item("more", "user", (recording(1),))), ResponseRequested("s", "d", "e")]
    world.run()
    assert world.ends["d"].reason == "no_speech", "an answer is behind what was said before"
    assert world.encoded == [1, 2, 3]
    world.check_empty()


def test_a_reply_that_is_wanted_though_nobody_speaks_is_made():
    world = World()
    world.silent = {1}
    world.facts += [SessionOpened("s"), ItemAdded("s", Item("q", "user", (recording(1),)))]
    world.facts.append(ResponseRequested("s", "s", "a", answers_silence=True))
    world.run()
    assert world.ends["s"].status == "completed"
    world.check_empty()


@pytest.mark.parametrize("is_before", [True, False])
def test_what_the_model_is_told_after_silence_asks_for_a_reply(is_before: bool):
    world = World()
    world.silent = {1}
    told, heard = Item("t", "system", (TextPart("Greet."),)), Item("q", "user", (recording(1),))
    items = (told, heard) if is_before else (heard, told)
    world.facts += [SessionOpened("s"), *(ItemAdded("s", item) for item in items)]
    world.facts.append(ResponseRequested("s", "s", "a", instructions="Be brief."))
    world.run()
    assert world.ends["s"].reason == ("no_speech" if is_before else "")
    world.check_empty()


def test_a_recording_that_could_not_be_heard_is_not_taken_for_silence():
    world = World()
    world.bad = {2}
    world.ask("s", recording(2))
    world.run()
    world.facts.append(ResponseRequested("s", "b", "c"))
    world.run()
    assert [(one.status, one.reason) for one in world.ends.values()] == [("failed", "stage_failed")] * 2
    assert not world.prompts
    world.check_empty()


@pytest.mark.parametrize("more", [TextPart("hello"), recording(3)])
def test_what_is_said_or_typed_beside_a_silent_recording_is_answered(more: TextPart | AudioPart):
    world = World()
    world.silent = {1}
    world.facts += [SessionOpened("s"), ItemAdded("s", Item("p", "user", (more,)))]
    world.facts += [ItemAdded("s", Item("q", "user", (recording(1),))), ResponseRequested("s", "s", "a")]
    world.run()
    assert world.ends["s"].status == "completed"
    world.check_empty()


def test_silence_is_read_ahead_as_nothing_and_told_as_no_words():
    world = World()
    world.silent = {1}
    world.facts += [SessionOpened("s"), foreseen(1), wanted(1, is_pause=True)]
    world.run()
    assert not world.prompts
    assert world.so_far == [("s", "q", (), True)]
    world.facts += [ItemAdded("s", Item("q", "user", (recording(1),)))]
    side = ResponseRequested("s", "t", "u", tier="best_effort", transcribe=True, remember=False)
    item = Item("i", "user", (recording(1),))
    world.facts += [msgspec.structs.replace(side, items=(item,)), ResponseRequested("s", "s", "a")]
    world.run()
    assert world.ends["t"].status == "completed"
    assert world.ends["s"].reason == "no_speech"
    world.check_empty()


def test_what_follows_silence_is_decided_by_facts_alone():
    world = World()
    world.silent = {1}
    world.ask("s", recording(1))
    world.ask("t", recording(1), recording(2))
    world.run()
    node = Node(CONFIG)
    for facts, now, decision in world.log:
        again = node.decide(without_media(facts), now)
        assert encode(without_media(again)) == encode(without_media(decision))
