"""Speech, text or a tool call: what of a reply is spoken."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened
from antiphon.core.plans import RenderPrompt
from antiphon.core.sampling import Sampling
from fakes import toy
from fakes.world import Heard, World, toy_config
from flow.test_turns import DEPTHS, ROOMY, ask, finish, talk, until, user

TOOLS = ('{"type": "function"}',)


def calling_late(world: World) -> Heard:
    """A reply that calls after some words: names are tried until one of them draws so."""
    for number in range(400):
        heard = ask(world, "s", f"r{number}", tools=TOOLS, remember=False)
        world.run()
        if toy.CALL in heard.text[2:-1]:
            return heard
    raise AssertionError("no reply calls after words")


@DEPTHS
def test_a_call_after_words_is_not_spoken(depth: int) -> None:
    world = World(toy_config(**ROOMY), depth)
    talk(world, "s", user("u", "what is the weather"))
    heard = calling_late(world)
    assert heard.audio
    spoken = heard.text.index(toy.CALL)
    assert len(heard.text) > spoken + 1, "the call itself goes on"
    same = ask(world, "s", heard.spec.response, remember=False)
    world.run()
    assert same.text == heard.text
    assert same.audio != heard.audio, "without tools the same tokens are words"
    finish(world)


@DEPTHS
@pytest.mark.parametrize("speech", [True, False])
def test_a_reply_that_must_call_never_starts_the_talker(depth: int, speech: bool) -> None:
    world = World(toy_config(**ROOMY), depth)
    talk(world, "s", user("u", "what is the weather"))
    heard = ask(world, "s", "r", tools=TOOLS, tool_choice="required", speech=speech)
    finish(world)
    assert heard.end is not None
    assert heard.end.status in ("completed", "incomplete")
    assert heard.text[0] == toy.CALL
    assert not heard.audio
    assert heard.end.usage.output_audio_tokens == 0
    assert heard.end.usage.output_text_tokens == len(heard.text)


@DEPTHS
@pytest.mark.parametrize("calls", [True, False])
def test_a_call_in_writing_has_no_reader(depth: int, calls: bool) -> None:
    """A client waits for the call, so it never counts as text that a person has still to read."""
    world = World(toy_config(**ROOMY), depth)
    talk(world, "s", user("u", "good morning to you"))
    tools: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required"} if calls else {}
    heard = ask(world, "s", "r", speech=False, rate=4.0, **tools)
    until(world, lambda: heard.text)
    slot = world.node.monitor.slot("s", "r")
    assert slot is not None
    assert world.node.frontier.rates(0, np.array([slot])).tolist() == [inf if calls else 4.0]
    finish(world)


def test_choice_none_leaves_the_tools_out() -> None:
    world = World(toy_config(**ROOMY))
    world.node.decide([SessionOpened("s"), ItemAdded("s", user("u", "hi"))], 0.0)
    for choice, tools in (("none", ()), ("auto", TOOLS)):
        spec = ResponseRequested("s", choice, choice, tools=TOOLS, tool_choice=choice)
        (order,) = world.node.decide([spec], 0.0).orders
        assert isinstance(order, RenderPrompt)
        assert order.tools == tools


def test_best_effort_is_overtaken_and_gives_way() -> None:
    """One row: work nobody waits for loses its place in the queue, and keeps no KV of the session."""
    world = World(toy_config(rows=1, blocks=100, step_tokens=64))
    talk(world, "s", user("u", "hello there"))
    first = ask(world, "s", "first", speech=False)
    late = ask(world, "s", "late", speech=False, tier="best_effort", remember=False)
    urgent = ask(world, "s", "urgent", speech=False, remember=False)
    order: list[str] = []
    for _ in range(300):
        world.turn()
        for heard in (first, late, urgent):
            if heard.end is not None and heard.spec.response not in order:
                order.append(heard.spec.response)
    assert order == ["first", "urgent", "late"]
    finish(world)


def test_best_effort_rows_are_the_first_to_be_preempted() -> None:
    world = World(toy_config(rows=3, blocks=12, step_tokens=64))
    talk(world, "s", user("u", "hello"))
    ask(world, "s", "late", speech=False, tier="best_effort", remember=False)
    world.turn()
    world.turn()
    for number in range(4):
        ask(world, "s", f"urgent{number}", speech=False, remember=False)
    thinker = world.node.stages.ar["thinker"]
    for _ in range(60):
        world.turn()
        turns = [request.tier for request in thinker.waiting.in_turn]
        assert turns == sorted(turns), "best effort stands behind all else"
    finish(world)


LENGTH = 12


def reply_of(world: World, seed: int) -> Heard:
    """What is said under a seed."""
    sampling = {"thinker": Sampling(max_tokens=LENGTH, seed=seed)}
    heard = ask(world, "s", f"seed{seed}", speech=False, remember=False, sampling=sampling)
    world.run()
    return heard


@DEPTHS
def test_best_effort_gives_up_its_row_to_who_waits(depth: int) -> None:
    world = World(toy_config(rows=1, blocks=100, step_tokens=64), depth)
    talk(world, "s", user("u", "hello there"))
    seed = next(seed for seed in range(99) if len(reply_of(world, seed).text) == LENGTH)
    sampling = {"thinker": Sampling(max_tokens=LENGTH, seed=seed)}
    late = ask(world, "s", "late", speech=False, tier="best_effort", remember=False, sampling=sampling)
    until(world, lambda: late.text)  # it runs while nobody waits
    urgent = ask(world, "s", "urgent", speech=False, remember=False)
    until(world, lambda: urgent.end is not None)
    assert late.end is None
    assert world.node.stages.ar["thinker"].num_preemptions == 1
    finish(world)


def test_the_next_turn_goes_on_from_a_forced_call() -> None:
    world = World(toy_config(**ROOMY))
    talk(world, "s", user("u", "what is the weather"))
    first = ask(world, "s", "first", tools=TOOLS, tool_choice="required")
    world.run()
    second = ask(world, "s", "second", tools=TOOLS)
    finish(world)
    assert second.end is not None
    said = len(first.prompts["thinker"].token_ids) + len(first.text) - 2
    assert second.end.usage.cached_tokens >= said - 4


def test_items_may_be_named() -> None:
    """An item without parts stands for the record's; what the record does not know stays empty."""
    world = World(toy_config(**ROOMY))
    talk(world, "s", user("a", "one"), user("b", "two"))
    world.turn()
    spec = ResponseRequested("s", "r", "i", items=(user("b"), user("c", "three"), user("d")))
    (order,) = world.node.decide([spec], 0.0).orders
    assert isinstance(order, RenderPrompt)
    assert order.items == (user("b", "two"), user("c", "three"), user("d"))


def test_best_effort_leaves_the_session_s_kv_alone() -> None:
    world = World(toy_config(**ROOMY))
    talk(world, "s", user("u", "hello there my friend"))
    ask(world, "s", "first", speech=False)
    world.run()
    thinker = world.node.stages.ar["thinker"]
    held = thinker.kv.blocks.num_idle
    ask(world, "s", "late", speech=False, tier="best_effort", remember=False, items=(user("i", "write"),))
    world.run()
    assert thinker.kv.blocks.num_idle == held
    assert "s" in thinker.kv.resting.owners
    finish(world)
