"""A conversation that outgrows the context leaves its oldest messages behind, or fails, as was asked for."""

from __future__ import annotations

from antiphon.core.conversation import Item, TextPart, ToolCallPart, ToolOutputPart
from antiphon.core.facts import ItemAdded, PromptFailed, ResponseRequested, SessionOpened, TurnForeseen
from antiphon.flow.record import shortened
from fakes import toy
from fakes.world import World, toy_config
from flow.test_turns import ROOMY, ask, finish, talk, user

WORDS = "one two three four five six"


def names(items: tuple[Item, ...] | None) -> str | None:
    return None if items is None else " ".join(item.id for item in items)


def said(name: str, role: str = "user") -> Item:
    return Item(name, role, (TextPart(name),))  # type: ignore[arg-type]


def test_the_oldest_goes_first_and_system_messages_stay() -> None:
    items = (said("s", "system"), said("a"), said("b", "assistant"), said("c"))
    once = shortened(items)
    assert names(once) == "s b c"
    assert once is not None
    twice = shortened(once)
    assert names(twice) == "s c"
    assert twice is not None
    assert shortened(twice) is None
    assert shortened((said("s", "system"),)) is None
    assert shortened(()) is None


def test_of_a_prompt_that_is_far_too_long_half_of_what_is_too_much_goes_at_once() -> None:
    items = (said("s", "system"), *(said(f"m{at:02}" * 10) for at in range(40)))
    assert len(shortened(items, 1.0) or ()) == 40
    assert len(shortened(items, 2.0) or ()) == 31, "a quarter"
    assert len(shortened(items, 100.0) or ()) == 22
    seen = Item("seen", "user", (toy.picture(1),))
    assert len(shortened((*items[:4], seen, *items[4:]), 100.0) or ()) == 39, "media have no characters"
    assert len(shortened((seen, *items[1:]), 100.0) or ()) == 40, "who knows what is too long without it"
    kept, rounds = items, 0
    while len(kept) > 3 and rounds < 99:
        kept, rounds = shortened(kept, len(kept) / 3) or kept, rounds + 1
    assert rounds < 12


def test_a_call_goes_with_its_output() -> None:
    call = Item("call", "assistant", (ToolCallPart("1", "f", "{}"),))
    other = Item("other", "assistant", (ToolCallPart("2", "f", "{}"),))
    out = Item("out", "tool", (ToolOutputPart("1", "x"),))
    out2 = Item("out2", "tool", (ToolOutputPart("2", "x"),))
    assert names(shortened((call, out, said("c")))) == "c"
    assert names(shortened((call, other, out, out2, said("c")))) == "other out2 c"
    assert shortened((call, out)) is None, "the last of all is what is to be answered"


def conversation(world: World, count: int) -> None:
    talk(world, "s", *(user(f"u{number}", WORDS) for number in range(count)))


def test_it_is_shortened_until_it_fits_and_stays_so() -> None:
    world = World(toy_config(**{**ROOMY, "context": 60}))
    conversation(world, 10)
    first = ask(world, "s", "r1", retention=0.5)
    world.run()
    assert first.end is not None
    assert first.end.status in ("completed", "incomplete")
    length = len(first.prompts["thinker"].token_ids)
    assert 30 - 9 <= length < 30
    record = world.node._orchestrator._sessions.record("s")
    kept = [item.id for item in record.items]
    assert kept[0] != "u0"
    assert "u9" in kept
    world.send(ItemAdded("s", user("next", "hi")))
    second = ask(world, "s", "r2", retention=0.5)
    finish(world)
    assert second.end is not None
    assert second.end.usage.cached_tokens >= length, "the next prompt begins with the same tokens"


def test_disabled_fails() -> None:
    world = World(toy_config(**{**ROOMY, "context": 60}))
    conversation(world, 10)
    heard = ask(world, "s", "r1")
    world.run()
    assert heard.end is not None
    assert (heard.end.status, heard.end.reason) == ("failed", "context_length_exceeded")
    assert len(world.node._orchestrator._sessions.record("s").items) == 10


def test_what_alone_is_too_long_fails() -> None:
    world = World(toy_config(**{**ROOMY, "context": 20}))
    talk(world, "s", user("u0", "hi"), user("u1", " ".join([WORDS] * 5)))
    heard = ask(world, "s", "r1", retention=1.0)
    world.run()
    assert heard.end is not None
    assert (heard.end.status, heard.end.reason) == ("failed", "context_length_exceeded")


def test_the_last_message_may_fill_more_than_the_share() -> None:
    world = World(toy_config(**{**ROOMY, "context": 20}))
    talk(world, "s", user("u0", WORDS), user("u1", WORDS + " " + WORDS[:3]))
    heard = ask(world, "s", "r1", retention=0.2)
    finish(world)
    assert heard.end is not None
    assert heard.end.status in ("completed", "incomplete")


def test_a_prompter_that_refuses_the_length_is_asked_for_less() -> None:
    world = World(toy_config(**ROOMY))
    render = world._prompter.render
    world._prompter.render = lambda order: (  # type: ignore[method-assign]
        render(order)
        if len(order.items) < 3
        else PromptFailed(order.request, "too long", "context_length_exceeded")
    )
    world.send(SessionOpened("t"))
    conversation(world, 5)
    heard = ask(world, "s", "r1", retention=0.8)
    finish(world)
    assert heard.end is not None
    assert heard.end.status in ("completed", "incomplete")


def test_given_items_are_shortened_without_the_record() -> None:
    world = World(toy_config(**{**ROOMY, "context": 60}))
    conversation(world, 1)
    items = tuple(user(f"i{number}", WORDS) for number in range(10))
    heard = ask(world, "s", "r1", retention=0.8, items=items, remember=False)
    world.run()
    assert heard.end is not None
    assert heard.end.status in ("completed", "incomplete")
    assert [item.id for item in world.node._orchestrator._sessions.record("s").items] == ["u0"]


def test_what_is_read_in_a_pause_is_shortened_as_its_turn_will_be() -> None:
    world = World(toy_config(**{**ROOMY, "context": 60}))
    conversation(world, 9)
    world.run()
    record = world.node._orchestrator._sessions.record("s")
    pause = TurnForeseen("s", user("u9", WORDS), ResponseRequested("s", "", "", retention=0.5))
    world.send(pause)
    world.run()
    read = world.node._orchestrator.prepared["thinker"].tokens
    assert 30 - 9 <= read < 30
    assert len(record.items) == 9, "the turn may not come"
    world.send(pause)
    world.run()
    assert world.node._orchestrator.prepared["thinker"].tokens == read, "what was read is not read again"
    world.send(ItemAdded("s", user("u9", WORDS)))
    heard = ask(world, "s", "r1", retention=0.5)
    finish(world)
    assert heard.end is not None
    assert len(heard.prompts["thinker"].token_ids) == read
    assert heard.end.usage.cached_tokens > read - 9
