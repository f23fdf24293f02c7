"""An embedding that is the head too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from antiphon.checkpoint.demo import make_demo
from antiphon.core.config import EngineOptions
from antiphon.engine.load import Loader, open_source


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_in_memory_once_where_the_head_is_in_panels(dtype: str, tmp_path: Path) -> None:
    source = make_demo(tmp_path / "tied", model="qwen2", size="small", dtype=dtype)
    stored = load_file(source / "model.safetensors")["model.embed_tokens.weight"].float()
    opened = open_source(str(source), EngineOptions(device="cpu", dtype="float32"), lambda *_: None)
    model = Loader(opened, lambda *_: None).decoder("thinker")
    head = model.decoder.stack.head
    assert (model._embedding._panels is head) == (head.dim() == 3)
    ids = torch.tensor([0, 17, len(stored) - 1, 17])
    assert torch.equal(model.embed(ids), stored[ids])
    assert model.vocab_size == len(stored)
