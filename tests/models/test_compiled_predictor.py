"""The compiled passes, and the operators in fp32, against the operators in fp64, which equal transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from antiphon.models.qwen3_omni import predictor as module
from antiphon.models.qwen3_omni.family import FAMILY
from antiphon.nn import cpu

if TYPE_CHECKING:
    from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
    from antiphon.models.qwen3_omni.predictor import CodePredictor
    from antiphon.models.qwen3_omni.talker import Talker

ROWS = [1, 3, 4, 7]


@pytest.fixture(scope="module")
def single(tensors: dict[str, torch.Tensor], config: Qwen3OmniConfig) -> CodePredictor:
    return FAMILY.load("talker", tensors, config, dtype=torch.float32).predictor


def forced(
    predictor: CodePredictor, hidden: torch.Tensor, codes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits [codebooks - 1, r, V] of a frame whose codes are given, and the frame."""
    seen: list[torch.Tensor] = []

    def pick(logits: torch.Tensor, codebook: int) -> torch.Tensor:
        seen.append(logits)
        return codes[:, codebook]

    frame = predictor.frame(hidden.to(predictor._passes.norm.weight.dtype), codes[:, 0], pick)
    return torch.stack(seen), frame


def agree(predictor: CodePredictor, talker: Talker, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    width = talker.config.talker.hidden_size
    for _ in range(2):  # a frame must not see the one before
        hidden = torch.randn(rows, width, dtype=torch.float64, generator=generator)
        shape = rows, talker.config.num_codebooks
        codes = torch.randint(0, talker.config.predictor_vocab, shape, generator=generator)
        ours, frame = forced(predictor, hidden, codes)
        theirs, _ = forced(talker.predictor, hidden, codes)
        assert torch.equal(frame, codes)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


@pytest.mark.parametrize("rows", ROWS)
def test_operators_in_fp32(
    single: CodePredictor, talker: Talker, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "_compiled", None)
    agree(single, talker, rows)


@pytest.mark.parametrize("rows", ROWS)
def test_compiled_passes(single: CodePredictor, talker: Talker, rows: int) -> None:
    pytest.importorskip("numba")
    assert single._compiled is not None
    agree(single, talker, rows)


def test_many_rows_are_left_to_operators(single: CodePredictor, talker: Talker) -> None:
    agree(single, talker, module.COMPILED_ROWS + 1)


def test_other_types_are_left_to_operators(talker: Talker) -> None:
    assert talker.predictor._compiled is None


def test_without_the_compiler(
    tensors: dict[str, torch.Tensor], config: Qwen3OmniConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "has_compiler", lambda: False)
    assert FAMILY.load("talker", tensors, config, dtype=torch.float32).predictor._compiled is None
