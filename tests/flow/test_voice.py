"""A cascade's voice reads out what is written as it is written, and what of it is not spoken."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from antiphon.assembly.node import Node
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened, UnitLost
from fakes import transcribing
from fakes.transcribing import CONFIG, CREDIT, World


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
    voice = world.node.stages.codec["voice"]
    ahead_s = world.node.frontier.ahead_s(0, np.array([voice._streams[1].slot]))
    assert ahead_s.tolist() == [0.0], "none of it is a phrase yet, so that nobody is ahead by it"
    world.is_voicing = True
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
