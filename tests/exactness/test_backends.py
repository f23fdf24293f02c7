"""Every attention back-end that runs here gives the reference's tokens, whatever is batched or chunked."""

from __future__ import annotations

import pytest
import torch

from antiphon import Omni
from antiphon.nn.backends import BACKENDS
from exactness.conftest import World
from exactness.talk import SIZES, Talk
from exactness.test_reference import ask_all

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")

HERE = [n for n, backend in BACKENDS.items() if not backend.obstacle(torch.device("cpu"), torch.float64)]


@pytest.mark.parametrize("world", [0], indirect=True)
@pytest.mark.parametrize("attention", HERE)
def test_tokens_are_the_references(world: World, attention: str) -> None:
    omni = Omni(
        world.path,
        device="cpu",
        dtype="float64",
        attention=attention,
        step_tokens=4096,
        block_size=4,
        **SIZES,
    )
    ask_all(world, Talk(omni.engine), range(len(world.contents)), pause=3)
    ask_all(world, Talk(omni.engine, step_tokens=33), [1, 3, 5], pause=2)


def test_auto_is_the_cpus_own_on_a_cpu(world: World) -> None:
    for stage in ("thinker", "talker"):
        model = world.omni.engine.executors[stage].runner._model
        assert model.decoder.steps.attention.__name__ == "cpu_attention"
