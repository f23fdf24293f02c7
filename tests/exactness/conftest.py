"""Engines and oracles of the whole room, each made once; what an oracle has answered once is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from antiphon import Omni
from antiphon.checkpoint import demo_config
from antiphon.checkpoint.demo import make_demo
from antiphon.core.conversation import Item
from antiphon.core.model_source import PARTS
from antiphon.runtime.omni import Content, parts_of
from exactness import cascade
from exactness.oracle import Expected, Oracle
from exactness.talk import MAX_CODES, MAX_TEXT, SIZES, Talk

if TYPE_CHECKING:
    from exactness.oracle25 import Oracle25


CODE_GROUPS = 4
"""Of the world's talker. Each group is a step for every frame, ours and the reference's, and half of the time
of this room with the usual 16, which `test_reference` asks for once."""


@dataclass
class World:
    """fp64 on both sides, so that equal means equal."""

    path: Path
    omni: Omni
    oracle: Oracle | Oracle25
    contents: list[Content]
    seed: int = 0
    _known: dict[tuple, Expected] = field(default_factory=dict)

    @property
    def eos(self) -> int:
        return self.omni.engine.node.ar["thinker"].stop_ids[0]

    def expect(self, items: tuple[Item, ...], eos: int | None = None) -> Expected:
        key = (items, eos)
        if key not in self._known:
            self._known[key] = self.oracle.answer(
                items, max_text=MAX_TEXT, max_codes=MAX_CODES, eos=self.eos if eos is None else eos
            )
        return self._known[key]

    def expect_content(self, index: int) -> Expected:
        return self.expect((self.item(index),))

    def item(self, index: int) -> Item:
        return user(self.contents[index])

    def talk(self, **overrides) -> Talk:
        return Talk(self.omni.engine, **overrides)


def user(content: Content, name: str = "q") -> Item:
    return Item(name, "user", parts_of(content))


def mixed_contents(seed: int) -> list[Content]:
    """Text, audio, image and mixed inputs of several sizes."""
    rng = np.random.default_rng(seed)

    def tone(seconds: float) -> dict:
        return {"audio": (0.1 * rng.standard_normal(int(16000 * seconds))).astype(np.float32)}

    def picture(height: int, width: int) -> dict:
        return {"image": rng.integers(0, 255, (height, width, 3), dtype=np.uint8)}

    return [
        ["hello world, how are you today?"],
        [tone(2.3), "What do you hear?"],
        [picture(96, 128), "What is in this image?"],
        [picture(64, 96), tone(0.7), "one two three"],
        ["compare ", tone(1.0), " with ", tone(1.6), " please"],
        [picture(64, 64), "left or right?", picture(128, 64)],
        [tone(9.4)],
    ]


def make_world(path: Path, seed: int) -> World:
    make_demo(path, size="tiny", seed=seed)
    omni = Omni(path, device="cpu", dtype="float64", step_tokens=4096, **SIZES)
    return World(path, omni, Oracle(path, omni.engine.prompter), mixed_contents(seed), seed)


@pytest.fixture(scope="session", params=[0, pytest.param(7, marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo_config, "NUM_CODE_GROUPS", CODE_GROUPS)
        return make_world(tmp_path_factory.mktemp("exact") / "tiny", request.param)


@pytest.fixture(scope="session")
def cascades(cascade_checkpoint: Path) -> dict[bool, cascade.Oracle]:
    """With the silent tail and with whole windows."""
    windows = cascade_checkpoint.parent / "windows"
    windows.mkdir()
    content = (cascade_checkpoint / "config.json").read_text().replace("{", '{"silent_tail": false,', 1)
    for part in PARTS:
        content = content.replace(f': "{part}"', f': "{cascade_checkpoint / part}"')
    (windows / "config.json").write_text(content)
    return {
        tail: cascade.Oracle(
            cascade_checkpoint, Omni(path, device="cpu", dtype="float64", **SIZES), tail=tail
        )
        for tail, path in ((True, cascade_checkpoint), (False, windows))
    }


@pytest.fixture(params=[True, False], ids=["tail", "window"])
def oracle(request: pytest.FixtureRequest, cascades: dict[bool, cascade.Oracle]) -> cascade.Oracle:
    return cascades[request.param]


@pytest.fixture
def omni(oracle: cascade.Oracle) -> Omni:
    return oracle.omni
