"""Ranks' parts of a decoder, run side by side in threads, give what the whole decoder gives."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from antiphon.core.errors import ConfigError
from antiphon.models.decoder import Decoder
from antiphon.models.decoder_config import DecoderConfig
from antiphon.models.layout import Layout, decoder_layout
from antiphon.models.sharding import cut, divide_rows, keep_params, shard_decoder, slice_of
from antiphon.nn.attention import PagedBatch, over
from antiphon.nn.step import StepInputs

DENSE = DecoderConfig(
    hidden_size=16, num_layers=3, num_heads=8, num_kv_heads=2, head_dim=8, intermediate_size=24,
    rms_eps=1e-6, rope_theta=1e4,
)  # fmt: skip
MIXED = replace(DENSE, num_experts=6, num_picks=2, expert_size=12, shared_expert_size=20, intermediate_size=7)


class Meeting:
    """Adds up what all threads bring."""

    def __init__(self, ranks: int) -> None:
        self.parts: dict[int, torch.Tensor] = {}
        self.barrier = threading.Barrier(ranks, timeout=20)

    def total(self, rank: int, part: torch.Tensor) -> torch.Tensor:
        self.parts[rank] = part
        self.barrier.wait()
        total = sum(self.parts[i] for i in range(self.barrier.parties))
        self.barrier.wait()
        return total


def layout_of(config: DecoderConfig) -> Layout:
    layout = Layout()
    decoder_layout(layout, "", "model.", config)
    return layout


def run(decoder: Decoder) -> torch.Tensor:
    batch = PagedBatch.build([5, 1, 3], [0, 0, 0], [[0, 1], [2], [3]], block_size=4)
    noise = torch.Generator().manual_seed(1)
    x = torch.randn(9, 16, dtype=torch.float64, generator=noise)
    return decoder.forward(StepInputs(x, torch.arange(9.0), over(decoder.new_pages(4, 4), batch)))[0]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("config", [DENSE, MIXED], ids=["dense", "experts"])
def test_parts_give_the_whole(config: DecoderConfig, ranks: int) -> None:
    """With 4 ranks, two share each of the two KV heads."""
    whole = layout_of(config)
    noise = torch.Generator().manual_seed(0)
    tensors = {
        name: 0.3 * torch.randn(source.shape, dtype=torch.float64, generator=noise)
        for name, source in whole.sources.items()
    }
    expected = run(Decoder(config, whole.fill(tensors, "cpu", torch.float64)))
    ours, meeting = shard_decoder(config, ranks), Meeting(ranks)

    def rank(number: int) -> torch.Tensor:
        layout = layout_of(ours)
        mine = cut(tensors.items(), whole.sources, layout.sources, (number, ranks))
        decoder = Decoder(ours, layout.fill(mine, "cpu", torch.float64))
        for layer in decoder.layers:
            layer.total = lambda part: meeting.total(number, part)
        return run(decoder)

    with ThreadPoolExecutor(ranks) as pool:
        for got in pool.map(rank, range(ranks)):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_ranks_share_what_there_are_fewer_of() -> None:
    rows = torch.arange(8)
    assert [slice_of(rows, (2,), (rank, 4)).tolist() for rank in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [slice_of(rows, (4,), (rank, 4)).tolist()[0] for rank in range(4)] == [0, 0, 4, 4]
    assert slice_of(rows, (8,), (3, 4)).tolist() == rows.tolist()


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel 3 does not divide the model's num_heads, 8"):
        shard_decoder(DENSE, 3)
    with pytest.raises(ConfigError, match="2 and the model's 3 KV heads don't divide each other"):
        shard_decoder(replace(DENSE, num_heads=6, num_kv_heads=3), 2)
    assert shard_decoder(MIXED, 4).intermediate_size == 7


def test_a_head_is_divided_if_it_can_be() -> None:
    layout = Layout()
    layout.whole("head", "lm_head.weight", 10, 4)
    layout.whole("embedding", "embed.weight", 10, 4)
    divide_rows(layout, "head", 3)
    assert layout.params["head"] == (10, 4)
    divide_rows(layout, "head", 2)
    assert layout.params == {"head": (5, 4), "embedding": (10, 4)}
    assert layout.sources["lm_head.weight"].shape == (5, 4)
    kept = keep_params(layout, ("head",))
    assert (list(kept.params), list(kept.sources)) == (["head"], ["lm_head.weight"])
