"""A turn in which nobody speaks is not answered; and what is no silence is."""

from __future__ import annotations

import msgspec
import pytest

from antiphon.assembly.node import Node
from antiphon.core.conversation import AudioPart, Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened
from antiphon.runtime.codec import encode
from antiphon.runtime.record import without_media
from fakes.transcribing import CONFIG, World, foreseen, recording, wanted, written


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
