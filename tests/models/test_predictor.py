"""The code predictor against transformers' greedy generate, and its rows against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from antiphon.models.qwen3_omni.talker import Talker


def pick(logits: torch.Tensor, _codebook: int) -> torch.Tensor:
    return logits.argmax(-1)


def situation(talker: Talker, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    config = talker.config
    hidden = torch.randn(rows, config.talker.hidden_size, dtype=torch.float64, generator=generator)
    return hidden, torch.randint(0, config.talker_vocab - 1024, (rows,), generator=generator)


@pytest.mark.parametrize("rows", [1, 5])
def test_frames_equal_transformers(reference: Any, talker: Talker, rows: int) -> None:
    hidden, c0 = situation(talker, rows)
    codes = talker.predictor.frame(hidden, c0, pick)
    assert codes.shape == (rows, talker.config.num_codebooks)
    for i in range(rows):
        first = reference.talker.get_input_embeddings()(c0[i])
        theirs = reference.talker.code_predictor.generate(
            inputs_embeds=torch.stack((hidden[i], first))[None],
            max_new_tokens=talker.config.num_codebooks - 1,
            do_sample=False,
        )
        assert codes[i].tolist() == [int(c0[i]), *theirs[0].tolist()]


def test_rows_do_not_feel_each_other(talker: Talker) -> None:
    hidden, c0 = situation(talker, 4)
    together: list[torch.Tensor] = []
    codes = talker.predictor.frame(hidden, c0, lambda x, i: together.append(x) or pick(x, i))
    for row in range(4):
        alone: list[torch.Tensor] = []
        frame = talker.predictor.frame(
            hidden[row : row + 1],
            c0[row : row + 1],
            lambda x, i, alone=alone: alone.append(x) or pick(x, i),
        )
        assert torch.equal(frame[0], codes[row])
        for ours, theirs in zip(alone, together, strict=True):
            torch.testing.assert_close(ours[0], theirs[row], rtol=0, atol=1e-6)


def test_pick_sees_fp32_logits_of_each_codebook(talker: Talker) -> None:
    hidden, c0 = situation(talker, 2)
    seen: list[tuple[int, tuple[int, ...], torch.dtype]] = []

    def watch(logits: torch.Tensor, codebook: int) -> torch.Tensor:
        seen.append((codebook, tuple(logits.shape), logits.dtype))
        return torch.full((2,), codebook)

    codes = talker.predictor.frame(hidden, c0, watch)
    books = list(range(1, talker.config.num_codebooks))
    assert seen == [(i, (2, talker.config.predictor_vocab), torch.float32) for i in books]
    assert codes[:, 1:].tolist() == [books, books]
