"""The tiny checkpoint in transformers (fp64), in our modules, and in our prompter."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.family import FAMILY
from models.rooms import RELEASED, Room

if TYPE_CHECKING:
    from pathlib import Path

    from antiphon.models.decoder_stage import Thinker
    from antiphon.models.qwen3_omni.encoders import Encoders
    from antiphon.models.qwen3_omni.talker import Talker
    from antiphon.models.qwen3_omni.vocoder import Vocoder

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def raw_config(tiny_checkpoint: Path) -> dict[str, Any]:
    return json.loads((tiny_checkpoint / "config.json").read_text())


@pytest.fixture(scope="session")
def config(raw_config: dict[str, Any]) -> Qwen3OmniConfig:
    return Qwen3OmniConfig.from_dict(raw_config)


@pytest.fixture(scope="session")
def tensors(tiny_checkpoint: Path) -> Tensors:
    return {name: t for path in tiny_checkpoint.glob("*.safetensors") for name, t in load_file(path).items()}


@pytest.fixture(scope="session")
def reference(tiny_checkpoint: Path) -> Any:
    """transformers' model: fp64, eager experts, batch 1 is the law."""
    from transformers import Qwen3OmniMoeForConditionalGeneration

    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        tiny_checkpoint, dtype=torch.float64, experts_implementation="eager"
    ).eval()
    model.talker.config.audio_config = model.config.thinker_config.audio_config  # a trap of transformers 5.23
    return model.requires_grad_(False)


@pytest.fixture(scope="session")
def thinker(tensors: Tensors, config: Qwen3OmniConfig) -> Thinker:
    return FAMILY.load("thinker", tensors, config, dtype=torch.float64)


@pytest.fixture(scope="session")
def talker(tensors: Tensors, config: Qwen3OmniConfig) -> Talker:
    return FAMILY.load("talker", tensors, config, dtype=torch.float64)


@pytest.fixture(scope="session")
def vocoder(tensors: Tensors, config: Qwen3OmniConfig) -> Vocoder:
    return FAMILY.load("code2wav", tensors, config, dtype=torch.float64)


@pytest.fixture(scope="session")
def encoders(tensors: Tensors, config: Qwen3OmniConfig) -> Encoders:
    return FAMILY.load("encoders", tensors, config, dtype=torch.float64)


@pytest.fixture(scope="module")
def demo(tiny_checkpoint: Path) -> Room:
    return Room(tiny_checkpoint)


@pytest.fixture(scope="module", params=["demo", "released"])
def room(request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path_factory: Any) -> Room:
    if request.param == "demo":
        return Room(tiny_checkpoint)
    path = tmp_path_factory.mktemp("released")
    for file in tiny_checkpoint.glob("*.json"):
        shutil.copy(file, path)
    (path / "chat_template.json").write_text(json.dumps({"chat_template": RELEASED}))
    return Room(path)
