"""With captured decode steps and codec frames, tokens and frames are transformers' too. The stand-in for CUDA
graphs takes the same way through buckets, padding and static tensors; only the replay itself is another."""

from __future__ import annotations

import pytest
import torch

from antiphon.core.config import EngineOptions
from antiphon.engine.load import Engine, Loader, build_engine, in_lane, open_source
from exactness.conftest import World
from exactness.talk import Talk
from exactness.test_reference import ask_all
from fakes.capture import Recorder

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")


def silent(what: str, done: int, total: int) -> None:
    pass


def captured_engine(path: str, recorder: Recorder, **options) -> Engine:
    chosen = EngineOptions(device="cpu", dtype="float64", **options)
    opened = open_source(path, chosen, silent)
    return build_engine(opened, chosen, "captured", Loader(opened, silent, capture=recorder))


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def engine(world: World, recorder: Recorder) -> Engine:
    return captured_engine(str(world.path), recorder, step_tokens=4096)


@pytest.mark.parametrize("world", [0], indirect=True)
@pytest.mark.parametrize("pause", [0, 3])
def test_tokens_are_the_references(world: World, engine: Engine, recorder: Recorder, pause: int) -> None:
    """Everybody at once, and one after the other: rows join and leave, buckets change up and down."""
    ask_all(world, Talk(engine), range(len(world.contents)), pause)
    assert recorder.replays > 2 * recorder.captures > 0


@pytest.mark.parametrize("world", [0], indirect=True)
def test_with_chunked_prompts_few_rows_and_a_step_in_flight(world: World, engine: Engine) -> None:
    laned = in_lane(engine, torch.device("cpu"))
    ask_all(world, Talk(laned, step_tokens=33, max_rows=3), [1, 3, 5, 0], pause=2)
