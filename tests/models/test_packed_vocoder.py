"""The vocoder in fp32 on a CPU: packed convolutions against the same vocoder in fp64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from antiphon.models.qwen3_omni import vocoder as vocoders
from antiphon.models.qwen3_omni.convolutions import Convolutions
from antiphon.models.qwen3_omni.family import FAMILY

if TYPE_CHECKING:
    from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
    from antiphon.models.qwen3_omni.vocoder import Vocoder

CHUNKS = (1, 4, 4, 2, 9, 4, 60, 4, 3)


@pytest.fixture(scope="module")
def packed(tensors: dict[str, torch.Tensor], config: Qwen3OmniConfig) -> Vocoder:
    vocoder = FAMILY.load("code2wav", tensors, config, dtype=torch.float32)
    if isinstance(vocoder.convolutions, Convolutions):
        pytest.skip("no compiler for loops, or no packed convolutions, on this machine")
    return vocoder


@pytest.fixture(scope="module")
def codes(packed: Vocoder) -> torch.Tensor:
    shape = 5, packed.config.num_codebooks, sum(CHUNKS)
    return torch.randint(0, packed.config.codebook_size, shape, generator=torch.Generator().manual_seed(0))


def in_chunks(vocoder: Vocoder, codes: torch.Tensor) -> list[torch.Tensor]:
    state, parts, start = None, [], 0
    for size in CHUNKS:
        pcm, state = vocoder.decode(codes[..., start : start + size], state)
        assert pcm.shape == (len(codes), vocoder.config.num_samples(start, size))
        parts.append(pcm)
        start += size
    return parts


def test_it_is_the_vocoder(packed: Vocoder, vocoder: Vocoder, codes: torch.Tensor) -> None:
    whole, _ = vocoder.decode(codes)
    torch.testing.assert_close(torch.cat(in_chunks(packed, codes), 1).double(), whole, rtol=0, atol=5e-5)


def test_a_stream_has_the_same_bits_beside_any_other(packed: Vocoder, codes: torch.Tensor) -> None:
    together = in_chunks(packed, codes)
    alone = in_chunks(packed, codes[3:4])
    for both, one in zip(together, alone, strict=True):
        assert torch.equal(both[3:4], one)


def test_streams_at_different_places_are_decoded_together(packed: Vocoder, codes: torch.Tensor) -> None:
    started = [packed.decode(codes[i : i + 1, :, :first])[1] for i, first in enumerate((3, 70, 11))]
    alone = [packed.decode(codes[i : i + 1, :, 80:84], state)[0] for i, state in enumerate(started)]
    pcm, state = packed.decode(codes[:3, :, 80:84], tuple(map(torch.cat, zip(*started, strict=True))))
    assert state[0].tolist() == [7, 74, 15]
    assert torch.equal(pcm, torch.cat(alone))


def test_what_a_stream_remembers_is_not_changed_by_decoding(packed: Vocoder, codes: torch.Tensor) -> None:
    _, state = packed.decode(codes[:1, :, :5])
    before = [part.clone() for part in state]
    first, _ = packed.decode(codes[:1, :, 5:9], state)
    again, _ = packed.decode(codes[:1, :, 5:9], state)
    assert torch.equal(first, again)
    assert all(torch.equal(part, was) for part, was in zip(state, before, strict=True))


def test_without_a_compiler_operators_decode(
    tensors: dict[str, torch.Tensor], config: Qwen3OmniConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocoders, "has_compiler", lambda: False)
    assert isinstance(
        FAMILY.load("code2wav", tensors, config, dtype=torch.float32).convolutions, Convolutions
    )
