"""How near a decoder in bf16 arithmetic stays to fp32, every token scored behind the same text.

The weights are random, so many scores lie close together; what released ones give is in `benchmarks/bf16.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from antiphon.checkpoint.demo import make_demo
from antiphon.core.config import EngineOptions
from antiphon.engine.load import Loader, open_source
from antiphon.nn.attention import PagedBatch, over
from antiphon.nn.cpu import has_pairs
from antiphon.nn.step import StepInputs

TOKENS, BLOCK = 512, 16
FARTHEST, USUAL = 0.12, 0.015
"""Shares of the spread of all scores: no score is farther off, and the root of the mean square."""

pytestmark = pytest.mark.skipif(not has_pairs(), reason="this CPU has no products in bf16")


def scores(checkpoint: Path, dtype: str, chunk: int) -> Tensor:
    """Of each of the same random tokens, `chunk` tokens a step."""
    opened = open_source(str(checkpoint), EngineOptions(device="cpu", dtype=dtype), lambda *_: None)
    thinker = Loader(opened, lambda *_: None).decoder("thinker")
    ids = torch.randint(thinker.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(0))
    pages, found = thinker.new_pages(TOKENS // BLOCK, BLOCK), []
    with torch.inference_mode():
        for first in range(0, TOKENS, chunk):
            batch = PagedBatch.build([chunk], [first], [list(range(TOKENS // BLOCK))], BLOCK)
            places = torch.arange(first, first + chunk)
            step = StepInputs(thinker.embed(ids[first : first + chunk]), places, over(pages, batch))
            found.append(thinker.logits(thinker.forward(step)[0]).clone())
    return torch.cat(found)


@pytest.mark.parametrize("model", ["qwen3", "llama"])
def test_scores_stay_near_and_the_highest_is_the_same(model: str, tmp_path: Path) -> None:
    checkpoint = make_demo(tmp_path / model, model=model, size="small", dtype="bfloat16")
    whole = scores(checkpoint, "float32", 64)
    spread = float(whole.std())
    first, second = whole.topk(2, 1).values.unbind(1)
    for chunk in (64, 1):
        rounded = scores(checkpoint, "auto", chunk)
        apart = (rounded - whole).abs() / spread
        assert 0 < float(apart.max()) < FARTHEST
        assert float(apart.square().mean().sqrt()) < USUAL
        same = rounded.argmax(1) == whole.argmax(1)
        assert float(same.float().mean()) > 0.96
        assert bool(same[first - second > FARTHEST * spread].all()), "only near ties are drawn otherwise"


def test_stored_in_fp32_it_keeps_every_bit(tmp_path: Path) -> None:
    checkpoint = make_demo(tmp_path / "whole", model="qwen3", size="tiny")
    assert torch.equal(scores(checkpoint, "auto", 64), scores(checkpoint, "float32", 64))
