"""Several replicas of a stage, several devices: the tokens stay transformers', turn after turn."""

from __future__ import annotations

import pytest

from antiphon import Omni
from antiphon.core.config import Unit
from exactness.conftest import World
from exactness.talk import SIZES, Talk
from exactness.test_reference import check

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")

TWO = (
    Unit("encoders", "encoders", "a"),
    Unit("thinker.0", "thinker", "a"),
    Unit("thinker.1", "thinker", "b"),
    Unit("talker.0", "talker", "b"),
    Unit("talker.1", "talker", "c"),
    Unit("code2wav.0", "code2wav", "b"),
    Unit("code2wav.1", "code2wav", "c"),
)


@pytest.mark.parametrize("places", [{}, {"b": "cpu:0", "c": "cpu:0"}])
def test_replies_of_replicas(world: World, places: dict[str, str]) -> None:
    """Also where the replicas are on another torch device than the rest (one that a CPU has)."""
    omni = Omni(world.path, dtype="float64", units=TWO, **SIZES, places=places)
    talk = Talk(omni.engine)
    contents = (0, 1, 3, 5)
    for index in contents:
        talk.open(str(index), world.item(index))
        talk.ask(str(index))
    talk.run()
    for index in contents:
        check(talk.said[str(index)], world.expect_content(index), world.eos)
    used = {name for name, count in talk.driver._steps.items() if count}
    assert used == {unit.name for unit in TWO}
    talk.close(*map(str, contents))
    talk.run()
    for ar in talk.driver.node.stages.ar.values():
        assert ar.kv.blocks.num_free == ar.kv.num_blocks
