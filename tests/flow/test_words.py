"""What people have said so far, shown while they speak, at the cost of no reply."""

from __future__ import annotations

from operator import eq

import msgspec
import pytest

from antiphon.assembly.node import Node
from antiphon.core.conversation import Item, TextPart, TranscriptOptions
from antiphon.core.facts import (
    ItemAdded,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
    WordsWanted,
)
from antiphon.core.plans import ArStep, CodecStep, EncodeStep
from antiphon.policy.base import Tier
from antiphon.runtime.codec import encode
from antiphon.runtime.record import without_media
from fakes.transcribing import CONFIG, SAMPLES, World, foreseen, recording, wanted, written


def test_the_words_so_far_are_shown_while_a_person_speaks():
    world = World()
    world.facts += [SessionOpened("s"), SpeechStarted("s"), wanted(1)]
    world.run()
    world.facts.append(wanted(2))
    world.run()
    assert world.so_far == [("s", "q", written(1), False), ("s", "q", written(2), False)]
    assert not world.ends
    world.check_empty()


def test_the_words_before_a_pause_cost_no_transcript_of_their_own():
    """Neither while the pause is read, nor afterwards; and the turn that ends in it is not heard again."""
    for turns in (0, 3, 100):
        world = World()
        world.facts += [SessionOpened("s"), foreseen(1)]
        for _ in range(turns):
            world.turn()
        world.facts.append(wanted(1, is_pause=True))
        world.run()
        assert world.so_far == [("s", "q", written(1), True)]
        world.facts += [ItemAdded("s", Item("q", "user", (recording(1),))), ResponseRequested("s", "s", "a")]
        world.run()
        assert world.encoded == [1]
        assert world.ends["s"].usage.cached_tokens > 0
        world.check_empty()


def test_the_words_so_far_wait_for_replies_and_only_the_newest_of_a_turn_is_written_down():
    world = World()
    world.reply_length = 30
    world.serve_another(turns=4)
    world.facts += [SessionOpened("s"), wanted(1)]
    world.turn()
    world.facts.append(wanted(2))
    world.turn()
    assert not world.encoded
    world.run()
    assert world.encoded == [2]
    assert [one[2] for one in world.so_far] == [written(2)]
    world.check_empty()


def stages_of(world: World, begin: int) -> list[str]:
    """The stages of the steps that were ordered since, in order."""
    orders = (order for _, _, decision in world.log[begin:] for order in decision.orders)
    return [order.stage for order in orders if isinstance(order, ArStep | CodecStep | EncodeStep)]


@pytest.mark.parametrize("turns", range(1, 5))
def test_the_words_so_far_give_way_to_a_reply_until_its_listener_has_sound_ahead(turns: int):
    """Of a transcript that has begun, a step that is under way is all that the first sound waits for."""
    world = World()
    world.facts += [SessionOpened("o"), ItemAdded("o", Item("p", "user", (TextPart("hello"),)))]
    world.facts += [SessionOpened("s"), wanted(1)]
    for _ in range(turns):
        world.turn()
    assert not world.so_far
    begin = len(world.log)
    world.facts.append(ResponseRequested("o", "o", "b"))
    world.run()
    first, steps = stages_of(world, begin).index("voice"), stages_of(world, begin)
    assert not {"ears", "transcriber"} & set(steps[:first])
    assert [one[2] for one in world.so_far] == [written(1)]
    assert world.ends["o"].status == "completed"
    world.check_empty()


@pytest.mark.parametrize("samples", [SAMPLES, 48 * SAMPLES])
def test_a_long_reply_hides_nobodys_words_once_it_is_well_ahead_of_its_listener(samples: int):
    """A device that has not enough sound ahead, or whose step may take longer than there is, goes on with the
    reply."""
    world = World()
    world.reply_length, world.samples = 300, samples
    world.serve_another(turns=60)
    assert "other" not in world.ends
    world.facts += [SessionOpened("s"), wanted(1)]
    for _ in range(40):
        world.turn()
    assert "other" not in world.ends
    assert bool(world.so_far) == (samples > SAMPLES)
    world.run()
    assert [one[2] for one in world.so_far] == [written(1)]
    assert len(world.text["other"]) == 300
    world.check_empty()


def test_the_words_so_far_wait_for_best_effort_work_and_for_what_is_only_read():
    for more in ({"tier": "best_effort"}, {"speech": False}):
        world = World()
        world.reply_length, world.samples = 30, 48 * SAMPLES
        world.facts += [SessionOpened("o"), ItemAdded("o", Item("p", "user", (TextPart("hello"),)))]
        world.facts.append(msgspec.structs.replace(ResponseRequested("o", "o", "b"), **more))
        for _ in range(6):
            world.turn()
        begin = len(world.log)
        world.facts += [SessionOpened("s"), wanted(1)]
        world.run()
        steps = stages_of(world, begin)
        assert steps.index("ears") > len(steps) - 1 - steps[::-1].index("thinker")
        assert [one[2] for one in world.so_far] == [written(1)]
        world.check_empty()


def test_what_is_only_shown_from_now_on_is_encoded_after_what_a_person_waits_for():
    """A pause was read, and queued for the ears, when somebody else asked for a reply."""
    world = World()
    world.facts += [SessionOpened("s"), SessionOpened("t"), wanted(9, "t")]
    world.turn()
    world.facts += [foreseen(1), wanted(1, is_pause=True)]
    facts, world.facts = world.facts[:1], world.facts[1:]
    world.turn()
    world.ask("o", recording(5))
    world.turn()
    assert not world.encoded[1:]
    world.facts += facts
    world.run()
    orders = [order for _, _, decision in world.log for order in decision.orders]
    steps = [[part.key for part in one.media] for one in orders if isinstance(one, EncodeStep)]
    assert steps == [[9], [5], [1]]
    assert world.ends["o"].status == "completed"
    world.check_empty()


@pytest.mark.parametrize("turns", range(1, 5))
def test_a_pause_that_is_read_goes_before_the_words_of_others(turns: int):
    world = World()
    world.facts += [SessionOpened("s"), SessionOpened("t"), wanted(1, "t")]
    for _ in range(turns):
        world.turn()
    assert not world.so_far
    begin = len(world.log)
    world.facts.append(foreseen(3))
    world.run()
    steps = stages_of(world, begin)
    alone = ["ears", *["transcriber"] * 3, "thinker"]
    assert steps.index("thinker") + 1 <= len(alone) + 2, "a step of others where its prompt is on its way"
    assert [one[:3:2] for one in world.so_far] == [("t", written(1))]
    world.check_empty()


def test_a_newer_recording_of_a_turn_replaces_one_whose_transcript_has_not_begun():
    world = World()
    world.reply_length = 30
    world.facts += [SessionOpened("s"), wanted(1)]
    world.turn()
    world.serve_another(turns=6)
    world.facts.append(wanted(2))
    world.run()
    assert [one[2] for one in world.so_far] == [written(2)]
    assert len(world.transcribed) == 3, "the first was never written down"
    world.check_empty()


@pytest.mark.parametrize("turns", range(1, 8))
def test_a_turn_that_ends_goes_on_with_what_was_begun_for_its_words(turns: int):
    """Its transcript is a person's from then on, and nothing is heard twice."""
    world = World()
    world.facts += [SessionOpened("s"), wanted(1, is_pause=True)]
    for _ in range(turns):
        world.turn()
    world.facts += [SpeechEnded("s"), ItemAdded("s", Item("q", "user", (recording(1),)))]
    world.facts.append(ResponseRequested("s", "s", "a"))
    world.turn()
    assert Tier.PREPARATORY not in [
        one.tier for one in world.node.stages.ar["transcriber"]._requests.values()
    ]
    world.run()
    assert world.encoded == [1]
    assert len(world.transcribed) == 3
    assert world.ends["s"].status == "completed"
    world.check_empty()


def test_the_words_of_several_people_are_written_down_one_after_the_other():
    world = World()
    world.facts += [SessionOpened("a"), SessionOpened("b"), wanted(1, "a"), wanted(2, "b")]
    world.turn()
    world.turn()
    assert world.encoded == [1]
    world.run()
    assert [one[:3:2] for one in world.so_far] == [("a", written(1)), ("b", written(2))]
    world.check_empty()


@pytest.mark.parametrize("number", [1, 2])
def test_a_sessions_next_words_are_begun_once_its_last_ones_are_shown(number: int):
    """Though nothing else happens; if they are those of the same recording, they are shown with them."""
    for turns in range(1, 9):
        world = World()
        world.facts += [SessionOpened("s"), wanted(1)]
        for _ in range(turns):
            world.turn()
        world.facts.append(wanted(number, is_pause=True))
        world.run()
        assert world.so_far[-1] == ("s", "q", written(number), True)
        count, begin = len(world.so_far), len(world.log)
        world.turn()
        assert (len(world.so_far), len(world.log)) == (count, begin + 1), "nothing is left to do"
        world.check_empty()


def test_the_words_of_a_turn_that_is_over_are_not_begun_nor_those_of_a_session_that_is_closed():
    world = World()
    world.reply_length = 30
    world.serve_another(turns=4)
    world.facts += [SessionOpened("s"), wanted(1), SpeechEnded("s"), SessionOpened("t"), wanted(2, "t")]
    world.turn()
    world.facts += [SessionClosed("t"), wanted(3, "t")]
    world.run()
    assert not world.encoded
    world.facts.append(wanted(4))
    world.turn()
    world.facts.append(SessionClosed("s"))
    world.run()
    assert not world.so_far
    world.check_empty()


def test_words_that_cannot_be_heard_cost_nothing():
    world = World()
    world.bad = {1}
    world.facts += [SessionOpened("s"), wanted(1)]
    world.run()
    world.facts.append(wanted(2))
    world.run()
    assert [one[2] for one in world.so_far] == [written(2)]
    world.check_empty()


def test_the_words_so_far_are_those_of_the_turns_own_transcript():
    german = TranscriptOptions(language="de")
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1, german), wanted(1, is_pause=True, options=german)]
    world.run()
    assert world.so_far == [("s", "q", tuple(50 + token for token in written(1)), True)]
    assert len(world.transcribed) == 3
    world.check_empty()


def drafts(world: World) -> list[tuple[int, ...]]:
    """What each transcript was expected to be, in order."""
    orders = [order for _, _, decision in world.log for order in decision.orders]
    steps = [order for order in orders if isinstance(order, ArStep) and order.stage == "transcriber"]
    return [tuple(join.draft.tolist()) for step in steps for join in step.joins]


def test_a_transcript_is_expected_to_begin_as_the_one_of_less_of_its_turn():
    world = World()
    world.facts += [SessionOpened("s"), SessionOpened("o"), SpeechStarted("s"), wanted(1)]
    world.run()
    world.facts.append(wanted(2))
    world.run()
    world.facts.append(wanted(3, options=TranscriptOptions(language="de")))
    world.run()
    world.facts += [SpeechEnded("s"), ItemAdded("s", Item("q", "user", (recording(4),)))]
    world.facts.append(ResponseRequested("s", "s", "a"))
    world.run()
    world.facts += [SpeechStarted("s"), wanted(5)]  # another turn
    world.run()
    assert drafts(world) == [(), written(1), (), (), ()]
    world.check_empty()


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


def test_a_piece_of_a_long_turn_is_expected_to_begin_as_less_of_the_same_piece():
    world = World()
    world.facts += [SessionOpened("s"), SpeechStarted("s"), wanted(1)]
    world.run()
    for last in (3, 4):
        world.facts.append(WordsWanted("s", "q", (recording(2), recording(last)), False))
        world.run()
    assert drafts(world) == [(), written(1), (), written(3)]
    world.check_empty()


def test_an_earlier_turn_is_not_expected_to_begin_as_this_one():
    """It has to be written down again: what was written of it was forgotten."""
    world = World()
    before, now = Item("p", "user", (recording(9),)), Item("q", "user", (recording(2),))
    world.facts += [SessionOpened("s"), SpeechStarted("s"), wanted(1)]
    world.run()
    world.facts += [SpeechEnded("s"), ItemAdded("s", before), ItemAdded("s", now)]
    world.facts.append(ResponseRequested("s", "s", "a"))
    world.run()
    assert drafts(world) == [(), (), written(1)]
    world.check_empty()


@pytest.mark.parametrize("turns", range(1, 9))
def test_what_is_expected_is_what_was_written_by_then_and_what_was_expected_before(turns: int):
    world = World()
    world.facts += [SessionOpened("s"), SpeechStarted("s"), wanted(1)]
    world.run()
    world.facts.append(wanted(2))
    for _ in range(turns):
        world.turn()
    world.facts += [SpeechEnded("s"), ItemAdded("s", Item("q", "user", (recording(3),)))]
    world.facts.append(ResponseRequested("s", "s", "a"))
    world.run()
    count = sum(map(eq, drafts(world)[-1], written(2)))
    assert drafts(world)[-1] == (*written(2)[:count], *written(1)[count:])
    assert world.ends["s"].status == "completed"
    world.check_empty()


def test_the_words_so_far_are_decided_by_facts_alone():
    """A record, which has no sound, gives the same orders and outputs again."""
    world = World()
    options = TranscriptOptions(language="de")
    world.facts += [SessionOpened("s"), SpeechStarted("s"), wanted(1)]
    world.run()
    world.facts += [foreseen(2), wanted(2, is_pause=True)]
    for _ in range(3):
        world.turn()
    world.facts.append(wanted(3, options=options))
    world.run()
    world.facts += [SpeechEnded("s"), ItemAdded("s", Item("q", "user", (recording(2),)))]
    world.facts.append(ResponseRequested("s", "s", "a"))
    world.run()
    assert len(world.so_far) == 3
    node = Node(CONFIG)
    for facts, now, decision in world.log:
        again = node.decide(without_media(facts), now)
        assert encode(without_media(again)) == encode(without_media(decision))
