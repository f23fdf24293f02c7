"""Rows given up at any moment, and KV shared between sessions: the tokens stay transformers'."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon import Sampling
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import PromptReady, StagePrompt
from antiphon.core.plans import RenderPrompt
from exactness.conftest import World, user
from exactness.talk import Talk
from exactness.test_reference import check, watch_joins
from fakes.readings import num_shared
from fakes.whims import whims_of

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")

SAMPLED = {
    "thinker": Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.3, max_tokens=10, seed=5),
    "talker": Sampling(temperature=0.9, top_k=50, repetition_penalty=1.2, max_tokens=16, seed=6),
}
SOME = (1, 3, 4)
"""Contents with audio, with both media, with two recordings."""


def disturb(talk: Talk, stages: tuple[str, ...], every: int, keep: bool) -> None:
    """Preempt one row of each stage every so many steps, to the end. `keep`: what is parked may be reused."""
    schedulers = [talk.driver.node.stages.ar[stage] for stage in stages]
    whims = [whims_of(scheduler) for scheduler in schedulers]
    steps = 0
    while talk.step():
        steps += 1
        if steps % every == 0:
            for whim in whims:
                whim.victims = [steps // every]
        for scheduler in () if keep else schedulers:
            for name in talk.said:
                scheduler.forget(name)
    assert all(scheduler.num_preemptions > 2 for scheduler in schedulers)


@pytest.mark.parametrize(
    ("stage", "every", "keep"),
    [("thinker", 3, False), ("thinker", 5, True), ("talker", 3, False), ("talker", 7, True)],
)
def test_preempted_greedily(world: World, stage: str, every: int, keep: bool) -> None:
    talk = world.talk(step_tokens=40 if every == 5 else 4096)
    for index in SOME:
        talk.open(str(index), world.item(index))
        talk.ask(str(index))
    disturb(talk, (stage,), every, keep)
    for index in SOME:
        check(talk.said[str(index)], world.expect_content(index), world.eos)
    talk.close(*map(str, SOME))
    talk.run()
    talk.check_all_free()


def test_preempted_while_sampling(world: World) -> None:
    """Draw counters go on and the penalty counts what was drawn before."""
    replies = []
    for every in (None, 3):
        talk = world.talk()
        for index in SOME:
            talk.open(str(index), world.item(index))
            talk.ask(str(index), sampling=SAMPLED)
        if every is None:
            talk.run()
        else:
            disturb(talk, ("thinker", "talker"), every, keep=False)
        replies.append([(talk.said[str(index)].text, talk.said[str(index)].codes) for index in SOME])
    assert replies[0] == replies[1]
    assert max(len(codes) for _, codes in replies[0]) > 5


def test_a_pool_too_small_for_all(world: World) -> None:
    """The prompts of all fit, their replies do not; who came last makes room."""
    size = world.omni.engine.node.ar["talker"].block_size
    prompts = [prompts_of(world, index) for index in SOME]
    pools = {
        stage: {"num_blocks": sum(-(-len(each[stage].token_ids) // size) for each in prompts)}
        for stage in ("thinker", "talker")
    }
    talk = world.talk(headroom_blocks=0, **pools)
    for index in SOME:
        talk.open(str(index), world.item(index))
        talk.ask(str(index))
    talk.run()
    for index in SOME:
        check(talk.said[str(index)], world.expect_content(index), world.eos)
    assert sum(ar.num_preemptions for ar in talk.driver.node.stages.ar.values())


def prompts_of(world: World, index: int) -> dict[str, StagePrompt]:
    ready = world.omni.engine.prompter.render(RenderPrompt(0, (world.item(index),), speech=True))
    assert isinstance(ready, PromptReady)
    return ready.prompts


@pytest.mark.parametrize("pause", [3, 1000])
def test_sessions_that_begin_alike_share_blocks(world: World, pause: int) -> None:
    """The first still runs, or has gone idle, when the others come; each gets the oracle's tokens."""
    system = Item("system", "system", (TextPart("You are a patient host. " * 12),))
    tone = world.contents[4]
    talk = world.talk()
    thinker_joins, talker_joins = watch_joins(talk)
    asked = {name: (system, user([*tone, f"I am {name}."])) for name in ("ann", "bob", "cleo")}
    shared = 0
    for name, items in asked.items():
        talk.open(name, *items)
        talk.ask(name)
        for _ in range(pause):
            more = talk.step()
            shared = max(shared, *(num_shared(ar.kv.blocks) for ar in talk.driver.node.stages.ar.values()))
            if not more:
                break
    talk.run()
    for name, items in asked.items():
        check(talk.said[name], world.expect(items), world.eos)
    size = world.omni.engine.node.ar["thinker"].block_size
    cached = [talk.said[name].end.usage.cached_tokens for name in asked]
    assert cached == thinker_joins
    assert cached[0] == 0
    assert cached[1] == cached[2] >= 3 * size
    assert talker_joins[1] >= size, "and the talker's as far as it is shown the same"
    assert shared >= 3
    talk.close(*asked)
    talk.run()
    talk.check_all_free()


def test_equal_words_in_another_context_are_not_shared(world: World) -> None:
    """The talker is not shown the system's words, but the hidden states it is shown depend on them."""
    talk = world.talk()
    asked = {
        name: (Item("system", "system", (TextPart(f"{name} speaks. " * 10),)), world.item(1))
        for name in ("ann", "bob")
    }
    for name, items in asked.items():
        talk.open(name, *items)
        talk.ask(name)
        talk.run()
    for name, items in asked.items():
        check(talk.said[name], world.expect(items), world.eos)
    assert not np.array_equal(*(talk.said[name].codes for name in asked))
