"""With a step in flight while the next is decided, tokens, frames and waveform are transformers' too."""

from __future__ import annotations

import pytest
import torch

from antiphon.engine.load import in_lane
from exactness.conftest import World
from exactness.talk import Talk
from exactness.test_reference import ask_all, check

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")


def talk_in_lane(world: World, **overrides) -> Talk:
    return Talk(in_lane(world.omni.engine, torch.device("cpu")), **overrides)


@pytest.mark.parametrize(("pause", "sizes"), [(0, {}), (2, {"step_tokens": 33, "max_rows": 2})])
def test_many_at_once(world: World, pause: int, sizes: dict) -> None:
    ask_all(world, talk_in_lane(world, **sizes), range(len(world.contents)), pause)


@pytest.mark.parametrize("moment", [2, 11, 30])
def test_an_abort_with_a_step_in_flight(world: World, moment: int) -> None:
    talk = talk_in_lane(world, max_rows=2)
    for index in (3, 1, 4):
        talk.open(str(index), world.item(index))
        talk.ask(str(index))
    talk.step(moment)
    talk.cancel("3")
    talk.run()
    for index in (1, 4):
        check(talk.said[str(index)], world.expect_content(index), world.eos)
    talk.close("1", "3", "4")
    talk.run()
    talk.check_all_free()
