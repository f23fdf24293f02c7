"""Two processes that compute one model together give the reference's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from antiphon import Omni
from antiphon.engine.leader import LeadingModel
from exactness.conftest import World
from exactness.talk import SIZES, Talk
from exactness.test_reference import ask_all

pytestmark = [
    pytest.mark.usefixtures("forked_processes"),
    pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`"),
    pytest.mark.parametrize("world", [0], indirect=True),
]

CONTENTS = [0, 1, 3, 5]
"""Text, audio, images and what mixes them."""


def ranks(world: World, **options: Any) -> Iterator[Omni]:
    omni = Omni(
        world.path,
        device="cpu",
        dtype="float64",
        step_tokens=4096,
        **SIZES,
        tensor_parallel=2,
        **options,
    )
    yield omni
    followers = omni.engine.check.__self__
    followers.check()
    followers.stop()
    assert [process.returncode for process in followers._processes] == [0], "the end of its orders is its end"


@pytest.fixture(scope="module")
def pair(world: World) -> Iterator[Omni]:
    yield from ranks(world)


@pytest.fixture
def thinkers(world: World) -> Iterator[Omni]:
    """The talker is whole, beside a thinker in two parts."""
    yield from ranks(world, divided=("thinker",))


def test_batched_tokens_are_the_references(world: World, pair: Omni) -> None:
    ask_all(world, Talk(pair.engine), CONTENTS)


def test_tokens_of_chunked_prompts_are_the_references(world: World, pair: Omni) -> None:
    ask_all(world, Talk(pair.engine, step_tokens=33), CONTENTS, pause=3)


def decoder_of(omni: Omni, stage: str) -> Any:
    model = omni.engine.executors[stage].runner._model
    if isinstance(model, LeadingModel):
        model = model._model
    return model.new_pages.__self__


def test_one_stage_may_be_divided_alone(world: World, thinkers: Omni) -> None:
    ask_all(world, Talk(thinkers.engine), CONTENTS)
    heads = [decoder_of(thinkers, stage).config.num_heads for stage in ("thinker", "talker")]
    whole = [decoder_of(world.omni, stage).config.num_heads for stage in ("thinker", "talker")]
    assert heads == [whole[0] // 2, whole[1]]


def test_every_rank_has_half_of_the_layers(world: World, pair: Omni) -> None:
    for stage in ("thinker", "talker"):
        ours, whole = decoder_of(pair, stage), decoder_of(world.omni, stage)
        assert ours.config.num_heads * 2 == whole.config.num_heads
        for mine, full in zip(ours.layers, whole.layers, strict=True):
            for name in ("o", "gate_up", "down"):
                assert getattr(mine, name).numel() * 2 == getattr(full, name).numel()
