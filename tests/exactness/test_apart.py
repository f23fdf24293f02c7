"""With every stage in a process of its own, replies are transformers' too, and the loss of a process costs
nobody who does not need it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from antiphon import Omni
from antiphon.core.config import LinkOptions
from antiphon.core.conversation import Item, TokensPart
from exactness import test_interruptions as interruptions
from exactness import test_reference as reference
from exactness.conftest import World, user
from exactness.talk import SIZES, Talk
from exactness.test_reference import check

pytestmark = [
    pytest.mark.usefixtures("forked_processes"),
    pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`"),
    pytest.mark.timeout(240),
]

TCP = (LinkOptions("encoders", "thinker", "tcp"), LinkOptions("thinker", "talker", "tcp"))
WAYS = {"": {}, "a step ahead, over tcp": {"depth": 1, "links": TCP}}
STAGES = ("encoders", "thinker", "talker", "code2wav")
SPEECH_STAGES = ("talker", "code2wav")
BACK_S = 60.0
SOON_S = 3.0
"""A tenth of that where nobody else uses the machine. A limit of silence is a minute."""

CASES: dict[str, Callable[[World], None]] = {
    "batched": reference.test_batched,
    "arrivals": partial(reference.test_arrivals_while_others_run, pause=3),
    "few rows": reference.test_fewer_rows_than_requests,
    "conversation": lambda world: reference.converse(world, world.talk()),
    "text only": reference.test_text_only,
    "empty": reference.test_an_empty_reply_has_no_sound,
    "abort early": partial(reference.test_an_abort_touches_nobody_else, moment=4),
    "abort late": partial(reference.test_an_abort_touches_nobody_else, moment=30),
    "cancelled": reference.test_cancelled_turns_leave_a_conversation_that_goes_on,
    "interrupted": partial(interruptions.test_a_reply_cut_while_it_was_made, keep=3),
}
SLOW_CASES: dict[str, Callable[[World], None]] = {
    "alone": reference.test_alone,
    "chunks": partial(reference.test_prompts_in_chunks, step_tokens=33),
    "stop": reference.test_the_text_ends_by_itself,
    "one token": reference.test_a_reply_of_one_token_has_no_sound,
    "cut": partial(interruptions.test_a_reply_cut_after_its_end, keep=2),
}


@pytest.fixture(scope="module", params=WAYS)
def apart(world: World, request: pytest.FixtureRequest) -> Iterator[World]:
    """The same world, its stages in processes."""
    if request.param and world.seed:
        pytest.skip("over other ways one checkpoint is enough")
    omni = Omni(
        world.path,
        device="cpu",
        dtype="float64",
        step_tokens=4096,
        **SIZES,
        stages_apart=True,
        **WAYS[request.param],
    )
    yield replace(world, omni=omni)
    omni.close()


@pytest.mark.parametrize("case", CASES)
def test_replies(apart: World, case: str) -> None:
    CASES[case](apart)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW_CASES)
def test_more_replies(apart: World, case: str) -> None:
    SLOW_CASES[case](apart)


def wait_until_whole(talk: Talk) -> None:
    """All units are there again."""
    deadline = time.monotonic() + BACK_S
    while talk.driver.lost:
        assert time.monotonic() < deadline, talk.driver.lost
        talk.driver.advance([])
        talk.driver.wait(0.1)
    talk.driver.advance([])


@pytest.mark.parametrize("after", [6, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("victim", STAGES)
def test_a_stage_is_killed_under_load(apart: World, victim: str, after: int) -> None:
    """Whoever needed it is told so within a second, the others say what they would have said, and each
    conversation goes on from what was heard."""
    if apart.seed or (apart.omni.engine.depth and victim not in STAGES[1:3]):
        pytest.skip("one checkpoint is enough, and a step ahead the two that draw tokens")
    talk, processes = apart.talk(), apart.omni.engine.processes.processes
    first = {str(index): user(apart.contents[index], "user-0") for index in (0, 1, 3)}
    for name, item in first.items():
        talk.open(name, item)
        talk.ask(name, f"{name}-0", speech=name != "0")
    wait_until_whole(talk)
    talk.step(after)
    os.kill(processes.pids[victim], signal.SIGKILL)
    killed = time.monotonic()
    while victim not in talk.driver.lost:
        talk.step()
    talk.step()
    assert time.monotonic() - killed < SOON_S
    ended = {name: talk.said[f"{name}-0"].end for name in first}
    talk.run()
    for name, item in first.items():
        end = talk.said[f"{name}-0"].end
        if end.status == "failed":
            assert end.reason == "stage_lost"
            is_late = "is starting again" in end.message
            assert is_late or "killed (SIGKILL)" in end.message
            assert is_late or ended[name] == end, "told at once"
            assert not (name == "0" and victim in SPEECH_STAGES), "who reads needs no voice"
        elif name != "0":
            check(talk.said[f"{name}-0"], apart.expect((item,)), apart.eos)
    wait_until_whole(talk)
    for name, item in first.items():
        said = tuple(talk.said[f"{name}-0"].text)
        reply = (Item(f"reply-{name}-0", "assistant", (TokensPart(said),)),) if said else ()
        talk.add(name, user("Go on.", "user-1"))
        talk.ask(name, f"{name}-1")
        talk.run()
        check(talk.said[f"{name}-1"], apart.expect((item, *reply, user("Go on.", "user-1"))), apart.eos)
    talk.close(*first)
    talk.run()
    talk.check_all_free()
