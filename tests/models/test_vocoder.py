"""The streaming vocoder against transformers' code2wav of all frames at once: any chunking, any batching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from antiphon.models.qwen3_omni.vocoder import State, Vocoder

FRAMES = 100  # more than the sliding window of 72


def random_codes(vocoder: Vocoder, rows: int, frames: int, seed: int = 0) -> torch.Tensor:
    shape = rows, vocoder.config.num_codebooks, frames
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocoder.config.codebook_size, shape, generator=generator)


@pytest.fixture(scope="module")
def codes(vocoder: Vocoder) -> torch.Tensor:
    return random_codes(vocoder, 1, FRAMES)


@pytest.fixture(scope="module")
def full(reference: Any, codes: torch.Tensor) -> torch.Tensor:
    return reference.code2wav(codes)[:, 0]


@pytest.mark.parametrize(
    "chunks", [[1], [4], [25], [100], [2, 1, 30, 5, 62]], ids=["1", "4", "25", "all", "mixed"]
)
def test_any_chunking_is_the_whole(
    vocoder: Vocoder, codes: torch.Tensor, full: torch.Tensor, chunks: list[int]
) -> None:
    if len(chunks) == 1:
        chunks = chunks * (FRAMES // chunks[0])
    state: State | None = None
    parts, start = [], 0
    for size in chunks:
        pcm, state = vocoder.decode(codes[..., start : start + size], state)
        assert pcm.shape == (1, vocoder.config.num_samples(start, size))
        parts.append(pcm)
        start += size
    assert state is not None
    assert state[0].tolist() == [FRAMES]
    torch.testing.assert_close(torch.cat(parts, 1), full, rtol=0, atol=1e-7)


def test_sizes(vocoder: Vocoder) -> None:
    config = vocoder.config
    assert (config.samples_per_frame, config.delay_samples) == (1920, 555)
    assert config.num_samples(0, 3) + config.num_samples(3, 2) == 5 * 1920 - 555


def test_streams_at_different_places_are_decoded_together(vocoder: Vocoder) -> None:
    firsts = [3, 80, 11]
    codes = random_codes(vocoder, 3, 90, seed=1)
    rows = [codes[i : i + 1] for i in range(3)]
    started = [vocoder.decode(row[..., :first])[1] for row, first in zip(rows, firsts, strict=True)]
    parts = [row[..., first : first + 4] for row, first in zip(rows, firsts, strict=True)]
    alone = [vocoder.decode(part, state) for part, state in zip(parts, started, strict=True)]
    pcm, state = vocoder.decode(torch.cat(parts), tuple(map(torch.cat, zip(*started, strict=True))))
    assert state[0].tolist() == [7, 84, 15]
    for i, (wave, after) in enumerate(alone):
        torch.testing.assert_close(pcm[i], wave[0], rtol=0, atol=1e-6)
        for ours, theirs in zip((part[i : i + 1] for part in state), after, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_first_chunks_are_decoded_together(vocoder: Vocoder, reference: Any) -> None:
    codes = random_codes(vocoder, 3, 5, seed=2)
    pcm, state = vocoder.decode(codes)
    torch.testing.assert_close(pcm, reference.code2wav(codes)[:, 0], rtol=0, atol=1e-6)
    assert all(part.shape[0] == 3 for part in state)


def test_a_state_keeps_its_size(vocoder: Vocoder) -> None:
    _, first = vocoder.decode(random_codes(vocoder, 1, 1))
    _, later = vocoder.decode(random_codes(vocoder, 1, 90), first)
    assert [part.shape for part in first] == [part.shape for part in later]
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in later)
