"""Turns through a whole node over the toy model: what is said, how it ends, what is left behind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antiphon.core.conversation import Item, Part, TextPart
from antiphon.core.facts import (
    ItemAdded,
    ItemRemoved,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
)
from antiphon.core.sampling import Sampling
from fakes import toy
from fakes.world import Heard, World, toy_config

DEPTHS = pytest.mark.parametrize("depth", [0, 1])
ROOMY: dict[str, Any] = {"rows": 4, "blocks": 100, "step_tokens": 64}


def user(name: str, *parts: Part | str) -> Item:
    return Item(name, "user", tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


def ask(world: World, session: str, response: str, **options: Any) -> Heard:
    """Ask for a response named so; its item is `reply-…`."""
    spec = ResponseRequested(session, response, f"reply-{response}", codes=True, **options)
    world.send(spec)
    return world.responses[session, response]


def talk(world: World, session: str = "s", *items: Item) -> None:
    """Open a session with these items."""
    world.send(SessionOpened(session), *(ItemAdded(session, item) for item in items))


def until(world: World, done: Any, most: int = 300) -> None:
    for _ in range(most):
        if done():
            return
        world.turn()
    raise AssertionError("it never happened")


def finish(world: World) -> None:
    """To the end of everything, checking all that was said."""
    world.run()
    for heard in world.responses.values():
        world.check(heard)
    world.send(*(SessionClosed(session) for session in {session for session, _ in world.responses}))
    world.run()
    world.check_empty()


def record_of(world: World, session: str = "s") -> list[str]:
    return [item.id for item in world.node._orchestrator._sessions.record(session).items]


@DEPTHS
def test_a_spoken_reply(depth: int) -> None:
    world = World(toy_config(), depth)
    talk(world, "s", user("u", "good morning", toy.tone(1), toy.picture(2)))
    heard = ask(world, "s", "r", voice="ada")
    finish(world)
    assert heard.end is not None
    assert heard.end.status == "completed"
    assert heard.audio
    assert heard.end.usage.input_audio_tokens + heard.end.usage.input_image_tokens > 0


@DEPTHS
def test_many_at_once_say_what_each_says_alone(depth: int) -> None:
    world = World(toy_config(rows=3), depth)
    for number in range(12):
        talk(world, f"s{number}", user("u", f"hello number {number}", toy.tone(number % 3)))
        ask(world, f"s{number}", f"r{number}", speech=number % 3 > 0)
    finish(world)
    ends = [heard.end.status for heard in world.responses.values() if heard.end]
    assert set(ends) <= {"completed", "incomplete"}


def test_the_next_turn_reuses_what_was_said() -> None:
    world = World(toy_config(**ROOMY))
    talk(world, "s", user("u1", "one two three"))
    first = ask(world, "s", "r1")
    world.run()
    world.send(ItemAdded("s", user("u2", "four")))
    second = ask(world, "s", "r2")
    finish(world)
    assert first.end is not None
    assert second.end is not None
    prompt = first.prompts["thinker"]
    assert first.end.usage.cached_tokens == 0
    assert second.end.usage.cached_tokens == len(prompt.token_ids) + len(first.text)


def test_asking_again_beside_the_conversation_shares_whole_blocks() -> None:
    world = World(toy_config(**ROOMY))
    talk(world, "s", user("u", "the same again and again"))
    first = ask(world, "s", "r1", remember=False)
    world.run()
    second = ask(world, "s", "r2", remember=False, sampling={"thinker": Sampling(max_tokens=9, seed=5)})
    finish(world)
    assert second.end is not None
    size = world.config.ar["thinker"].block_size
    cached, length = second.end.usage.cached_tokens, len(first.prompts["thinker"].token_ids)
    assert cached == (length - 1) // size * size > 0


@pytest.mark.parametrize("tier", ["latency", "best_effort"])
def test_a_response_beside_the_conversation_leaves_its_kv_alone(tier: str) -> None:
    world = World(toy_config(**ROOMY))
    talk(world, "s", user("u1", "one two three"))
    first = ask(world, "s", "r1")
    world.run()
    aside = (user("x", "something else altogether"),)
    ask(world, "s", "aside", remember=False, items=aside, tier=tier)
    world.run()
    world.send(ItemAdded("s", user("u2", "four")))
    second = ask(world, "s", "r2")
    finish(world)
    assert second.end is not None
    assert second.end.usage.cached_tokens == len(first.prompts["thinker"].token_ids) + len(first.text)


def test_a_best_effort_conversation_keeps_its_kv() -> None:
    """As agents have: each call goes on from the one before."""
    world = World(toy_config(**ROOMY))
    talk(world, "s", user("u1", "one two three"))
    first = ask(world, "s", "r1", tier="best_effort")
    world.run()
    world.send(ItemAdded("s", user("u2", "four")))
    second = ask(world, "s", "r2", tier="best_effort")
    finish(world)
    assert second.end is not None
    assert second.end.usage.cached_tokens == len(first.prompts["thinker"].token_ids) + len(first.text)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_cut_reply_is_incomplete(limit: int) -> None:
    """The cut text is spoken, unless it is one token: a talker needs a second one."""
    world = World(toy_config(**ROOMY))
    spoken = 0
    for number in range(30):
        talk(world, f"s{number}", user("u", f"word{number}"))
        ask(world, f"s{number}", f"r{number}", max_tokens=limit)
    finish(world)
    cut = [heard for heard in world.responses.values() if heard.end and heard.end.status == "incomplete"]
    assert cut
    for heard in cut:
        assert heard.end is not None
        assert heard.end.reason == "max_output_tokens"
        assert len(heard.text) == limit
        spoken += bool(heard.audio)
    assert bool(spoken) == (limit > 1)


def test_an_empty_reply_is_complete_silent_and_not_remembered() -> None:
    world = World(toy_config(**ROOMY))
    for number in range(60):
        talk(world, f"s{number}", user("u", f"word{number}"))
        ask(world, f"s{number}", f"r{number}")
    world.run()
    empty = [heard for heard in world.responses.values() if not heard.text]
    assert empty, "the toy model is silent one time in nine"
    for heard in empty:
        assert heard.end is not None
        assert heard.end.status == "completed"
        assert record_of(world, heard.spec.session) == ["u"]
    finish(world)


def test_capacity_cuts_a_reply_rather_than_failing_it() -> None:
    """A prompt that leaves room for one token of reply is answered with one token."""
    world = World(toy_config(blocks=4))
    talk(world, "s", user("u", "a b c d e f g h i j"))
    heard = ask(world, "s", "r", speech=False)
    finish(world)
    assert len(heard.prompts["thinker"].token_ids) == 15
    assert len(heard.text) <= 1


def test_a_prompt_that_can_never_fit_fails_at_once_and_names_the_limit() -> None:
    world = World(toy_config(blocks=3))
    talk(world, "s", user("u", "a b c d e f g h i j", toy.tone(1)))
    heard = ask(world, "s", "r")
    world.run()
    assert heard.end is not None
    assert (heard.end.status, heard.end.reason) == ("failed", "context_length_exceeded")
    assert "thinker context tokens" in heard.end.message
    assert not world.encoder.features, "nothing was encoded for it"
    finish(world)


def test_a_prompt_that_cannot_be_rendered_fails_with_the_reason() -> None:
    world = World(toy_config())
    talk(world, "s", user("u", toy.UNSPEAKABLE))
    heard = ask(world, "s", "r")
    finish(world)
    assert heard.end is not None
    assert (heard.end.status, heard.end.reason, heard.end.message) == (
        "failed",
        "invalid_prompt",
        "this cannot be said",
    )


@DEPTHS
@pytest.mark.parametrize("stage", ["encoders", "thinker", "talker", "code2wav"])
def test_a_failed_step_ends_its_responses_only(stage: str, depth: int) -> None:
    world = World(toy_config(), depth)
    talk(world, "s", user("u", "good morning", toy.tone(1)))
    heard = ask(world, "s", "r")
    world.device.failing.add(stage)
    world.run()
    assert heard.end is not None
    assert (heard.end.status, heard.end.reason) == ("failed", "stage_failed")
    assert "injected" in heard.end.message
    again = ask(world, "s", "again")
    finish(world)
    assert again.end is not None
    assert again.end.status in ("completed", "incomplete")


@DEPTHS
@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_cancel_or_close_at_any_moment(depth: int, lags: bool, turns: int) -> None:
    for fact in (ResponseCancelled("s", "r", "turn_detected"), SessionClosed("s")):
        world = World(toy_config(), depth, lags=lags)
        talk(world, "s", user("u", "good morning", toy.tone(1)))
        heard = ask(world, "s", "r")
        for _ in range(turns):
            world.turn()
        world.send(fact)
        world.run()
        assert heard.end is not None
        if heard.end.status == "cancelled":
            assert heard.end.reason in ("turn_detected", "session_closed")
        finish(world)


def test_a_response_of_a_session_that_is_gone_fails() -> None:
    world = World(toy_config())
    heard = ask(world, "nobody", "r")
    world.run()
    assert heard.end is not None
    assert (heard.end.status, heard.end.reason) == ("failed", "session_gone")


def test_facts_about_sessions_that_are_gone_change_nothing() -> None:
    world = World(toy_config())
    gone = "nobody"
    world.send(
        ItemAdded(gone, user("u", "hello")),
        ItemRemoved(gone, "u"),
        ResponseCancelled(gone, "r"),
        SessionClosed(gone),
    )
    world.run()
    world.check_empty()


def test_a_response_that_is_open_already_is_not_opened_twice() -> None:
    world = World(toy_config())
    talk(world, "s", user("u", "one two three"))
    heard = ask(world, "s", "r")
    world.turn()
    world._facts.append(heard.spec)
    finish(world)


@DEPTHS
def test_out_of_band_beside_another_of_the_same_session(depth: int) -> None:
    world = World(toy_config(rows=4), depth)
    talk(world, "s", user("u", "good morning to you", toy.tone(1)))
    ask(world, "s", "main")
    ask(world, "s", "side", remember=False, speech=False)
    ask(world, "s", "other", remember=False, items=(user("x", "what time is it", toy.tone(1)),))
    world.run()
    assert record_of(world) == ["u", "reply-main"]
    finish(world)


def test_what_comes_while_a_reply_is_spoken_follows_it_in_the_record() -> None:
    world = World(toy_config(**ROOMY))
    talk(world, "s", user("u1", "one two three"))
    heard = ask(world, "s", "r")
    until(world, lambda: heard.text)
    world.send(ItemAdded("s", user("u3", "and now")), ItemAdded("s", user("u2", "so"), "reply-r"))
    world.send(ItemAdded("s", user("u0", "before"), "root"))
    world.run()
    assert record_of(world) == ["u0", "u1", "reply-r", "u3", "u2"]
    world.send(ItemRemoved("s", "u1"))
    finish(world)


def test_instructions_come_first_and_are_not_remembered() -> None:
    world = World(toy_config(**ROOMY))
    talk(world, "s", user("u", "one two three"))
    heard = ask(world, "s", "r", instructions="be brief")
    world.run()
    assert heard.prompts["thinker"].token_ids[0] == toy.ROLES["system"]
    assert record_of(world) == ["u", "reply-r"]
    finish(world)


def test_a_checkpoint_without_a_voice_answers_in_text() -> None:
    world = World(toy_config(speaks=False))
    talk(world, "s", user("u", "good morning", toy.tone(1)))
    heard = ask(world, "s", "r")
    finish(world)
    assert heard.text
    assert set(heard.prompts) == {"thinker"}


def test_codes_are_reported_only_when_wanted() -> None:
    world = World(toy_config())
    talk(world, "s", user("u", "one two three"))
    world.send(ResponseRequested("s", "r", "reply"))
    finish(world)
    heard = world.responses["s", "r"]
    assert heard.audio
    assert not heard.frames


@DEPTHS
def test_old_conversations_make_room_for_new_ones(depth: int) -> None:
    world = World(toy_config(blocks=16), depth)
    for number in range(8):
        talk(world, f"s{number}", user("u", f"a b c d {number}"))
        ask(world, f"s{number}", f"r{number}")
        world.run()
    assert world.entry.kv.resting.num_evicted_blocks > 0
    finish(world)


def test_sampling_is_what_was_asked_for_or_the_default_with_a_seed_of_its_own() -> None:
    world = World(toy_config(**ROOMY))
    mine = {"thinker": Sampling(seed=3, max_tokens=50), "talker": Sampling(seed=4, max_tokens=2)}
    for name in ("a", "b"):
        talk(world, name, user("u", "one two three"))
        ask(world, name, name, sampling=mine)
    world.run()
    first, second = world.responses["a", "a"], world.responses["b", "b"]
    assert (first.text, first.audio) == (second.text, second.audio)
    assert msgspec.structs.replace(first.spec, session="b") != second.spec
    finish(world)


@DEPTHS
@pytest.mark.parametrize("stage", ["thinker", "talker", "code2wav"])
def test_whom_a_failure_forgets_to_name_ends_all_the_same(stage: str, depth: int) -> None:
    world = World(toy_config(), depth)
    for session, response in (("a", "r"), ("b", "other")):
        talk(world, session, user("u", "good morning", toy.tone(1)))
        ask(world, session, response)
    world.device.is_vague = True
    world.device.failing.add(stage)
    world.run()
    assert not world.device.failing, "the step has failed"
    ends = [heard.end for heard in world.responses.values()]
    assert ("failed", "stage_failed") in [(end.status, end.reason) for end in ends if end is not None]
    finish(world)


@DEPTHS
def test_one_bad_medium_fails_those_who_need_it_only(depth: int) -> None:
    """All are encoded in one step, which fails; one by one, the others come through."""
    world = World(toy_config(rows=4, blocks=48, media=4), depth)
    good, bad = [toy.tone(1), toy.picture(1)], toy.tone(2)
    world.encoder.bad.add(bad.key)
    for number, media in enumerate(([good[0]], [bad], [good[1], bad], good)):
        talk(world, f"s{number}", user("u", "what is it", *media))
        ask(world, f"s{number}", f"r{number}")
    finish(world)
    ends = [heard.end.status for heard in world.responses.values() if heard.end is not None]
    assert [status == "failed" for status in ends] == [False, True, True, False]


@pytest.mark.parametrize("room", [1, 2, 5])
def test_the_context_counts_the_reply(room: int) -> None:
    """Far less than the KV could hold; what is cut by it is incomplete."""
    spoken = "a b c d e f g h i j"
    prompt = 15
    world = World(toy_config(**ROOMY, context=prompt + room))
    for number in range(20):
        talk(world, f"s{number}", user("u", spoken))
        ask(world, f"s{number}", f"r{number}", speech=bool(number % 2))
    finish(world)
    cut = [heard for heard in world.responses.values() if heard.end and heard.end.status == "incomplete"]
    assert cut
    for heard in cut:
        assert heard.end is not None
        assert heard.end.reason == "max_output_tokens"
        assert len(heard.prompts["thinker"].token_ids) + len(heard.text) == prompt + room


def test_a_prompt_over_the_context_fails_and_says_both_numbers() -> None:
    world = World(toy_config(**ROOMY, context=15))
    talk(world, "s", user("u", "a b c d e f g h i j"))
    heard = ask(world, "s", "r")
    world.run()
    assert heard.end is not None
    assert (heard.end.status, heard.end.reason) == ("failed", "context_length_exceeded")
    assert "16 is over the limit of 15" in heard.end.message
