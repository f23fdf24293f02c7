"""Attention back-ends give what the reference gives; name, device and dtype settle which one runs."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core import config as known
from antiphon.core.config import ATTENTION, EngineOptions
from antiphon.core.errors import ConfigError
from antiphon.engine.choices import suit
from antiphon.engine.device import DTYPES
from antiphon.nn.attention import PagedBatch, paged_attention
from antiphon.nn.backends import BACKENDS, Attention, pick_backend
from antiphon.nn.cpu import paged as cpu

HEADS, KV_HEADS, DIM = 4, 2, 8
PAGES = torch.zeros(40, 16, KV_HEADS, DIM, dtype=torch.float64)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HERE = [name for name, backend in BACKENDS.items() if not backend.obstacle(CPU, torch.float64)]


def layout(rows: list[tuple[int, int]], block_size: int, cuts: list[int], seed: int) -> list[list[int]]:
    """Block tables out of one pool: the pool is cut at `cuts` and its pieces are shuffled, so that runs of
    every length occur; rows take what they need in turn.
    """
    widths = [-(-(cached + new) // block_size) for cached, new in rows]
    pieces = np.split(np.arange(sum(widths)), sorted({cut % (sum(widths) + 1) for cut in cuts}))
    order = np.random.default_rng(seed).permutation(len(pieces))
    dealt = np.concatenate([pieces[i] for i in order])
    return [part.tolist() for part in np.split(dealt, np.cumsum(widths)[:-1])]


def compare(attention: Attention, rows: list[tuple[int, int]], tables: list[list[int]], block: int) -> None:
    lengths = [n for _, n in rows], [c for c, _ in rows]
    noise = torch.Generator().manual_seed(len(rows))
    shape = sum(map(len, tables)), block, KV_HEADS, DIM
    k, v = (torch.randn(shape, dtype=torch.float64, generator=noise) for _ in range(2))
    q = torch.randn(sum(lengths[0]), HEADS, DIM, dtype=torch.float64, generator=noise)
    expected = paged_attention(q, k, v, PagedBatch.build(*lengths, tables, block))
    batch = PagedBatch.build(*lengths, tables, block)
    for _ in range(2):  # as two layers of one step
        torch.testing.assert_close(attention(q, k, v, batch), expected, rtol=0, atol=1e-12)


ROWS = st.lists(
    st.tuples(st.integers(0, 300), st.one_of(st.just(1), st.integers(1, 9))), min_size=1, max_size=6
)


@pytest.mark.parametrize("name", [name for name in HERE if name != "reference"])
@settings(max_examples=60, deadline=None)
@given(rows=ROWS, block=st.sampled_from([1, 4, 16]), cuts=st.lists(st.integers(0, 999), max_size=12))
def test_equals_the_reference_on_any_batch(
    name: str, rows: list[tuple[int, int]], block: int, cuts: list[int]
) -> None:
    compare(BACKENDS[name].create(), rows, layout(rows, block, cuts, seed=len(cuts)), block)


def test_the_cpu_takes_each_row_its_cheapest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side: a view; grown: a view and what is left; scattered or short: gathered, alike together."""
    monkeypatch.setattr(cpu, "LONG_ROW_TOKENS", 100)
    beside, grown = list(range(8)), [*range(8, 14), 20, 18]
    scattered = [[30, 28, 26, 24, 22, 32, 34], [31, 29, 27, 25, 23, 33, 35]]
    tables = [beside, grown, *scattered, [36, 37]]
    batch = PagedBatch.build([1] * 5, [127, 120, 100, 99, 20], tables, 16)
    prepared = cpu.prepare(batch, PAGES)
    assert [cut.runs for cut in prepared.cuts] == [[(0, 128)], [(128, 224)]]
    assert prepared.cuts[0].rest is None
    assert prepared.cuts[1].rest.tolist() == [*range(320, 336), *range(288, 297)]
    (group,) = prepared.groups
    assert group.tokens.tolist() == [4, 3, 2]
    alone = PagedBatch.build([1], [20], [[36, 37]], 16)
    assert [cut.runs for cut in cpu.prepare(alone, PAGES).cuts] == [[(576, 597)]]


def test_rows_of_one_group_hold_no_more_than_the_cache() -> None:
    rows = [(length, i) for i, length in enumerate([100, 1000, 1100, 1200, 3000, 9000])]
    groups = list(cpu.in_groups(rows))
    assert groups == [[0, 1, 2], [3], [4], [5]]
    assert [row for group in groups for row in group] == list(range(6))


def test_a_prefill_reads_neighbouring_blocks_as_a_slice() -> None:
    batch = PagedBatch.build([5, 6], [3, 30], [[7], [2, 3, 4]], 16)
    assert [chunk.blocks for chunk in cpu.prepare(batch, PAGES).chunks] == [slice(7, 8), slice(2, 5)]
    scattered = PagedBatch.build([5], [30], [[2, 4, 3]], 16)
    assert isinstance(cpu.prepare(scattered, PAGES).chunks[0].blocks, torch.Tensor)


def test_auto_takes_what_is_verified_on_the_device() -> None:
    assert pick_backend("auto", CPU, torch.float64) == "cpu"
    assert pick_backend("auto", CUDA, torch.bfloat16) == "reference"
    assert pick_backend("reference", CPU, torch.float32) == "reference"


@pytest.mark.parametrize("has", [True, False])
def test_auto_rounds_only_where_it_may_and_can(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--dtype auto` lets it; with a dtype that is asked for nothing is rounded."""
    monkeypatch.setattr("antiphon.nn.backends.has_pairs", lambda: has)
    chosen = {dtype: suit(EngineOptions(device="cpu", dtype=dtype), CPU)[1] for dtype in known.DTYPES}
    assert chosen.pop("auto") == ("cpu-bf16" if has else "cpu")
    assert set(chosen.values()) == {"cpu"}
    assert pick_backend("auto", CPU, torch.float64, may_round=True) == "cpu"
    if has:
        assert pick_backend("cpu-bf16", CPU, torch.float32) == "cpu-bf16"
        with pytest.raises(ConfigError, match=r"cpu-bf16 computes in torch.float32, not in torch.float64"):
            pick_backend("cpu-bf16", CPU, torch.float64)
    else:
        with pytest.raises(ConfigError, match="cpu-bf16 needs AVX512-BF16"):
            pick_backend("cpu-bf16", CPU, torch.float32)


def test_options_know_every_name() -> None:
    assert set(ATTENTION) == {"auto", *BACKENDS}
    assert set(known.DTYPES) == {"auto", *DTYPES}


def test_what_cannot_run_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match="'flash' is unknown; use auto, cpu-bf16, cpu, flashinfer, triton, reference"
    ):
        pick_backend("flash", CPU, torch.float32)
    with pytest.raises(ConfigError, match="cpu runs on cpu, not on cuda"):
        pick_backend("cpu", CUDA, torch.float32)
    with pytest.raises(
        ConfigError, match=r"computes in torch.float16 and torch.bfloat16, not in torch.float32"
    ):
        pick_backend("flashinfer", CUDA, torch.float32)
    monkeypatch.setattr("antiphon.nn.backends.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package flashinfer, which is not installed"):
        pick_backend("flashinfer", CUDA, torch.bfloat16)


class Wrapper:
    """What FlashInfer documents of its paged wrapper, computed by the reference. Counts its plans."""

    plans = 0

    def __init__(self, workspace: torch.Tensor, layout: str) -> None:
        assert (workspace.dtype, layout) == (torch.uint8, "NHD")

    def plan(
        self, qo, kv, indices, last, heads, kv_heads, dim, page_size, *, causal, q_data_type, kv_data_type
    ):
        Wrapper.plans += 1
        assert all(column.dtype is torch.int32 for column in (qo, kv, indices, last))
        assert (heads, kv_heads, dim, causal) == (HEADS, KV_HEADS, DIM, True)
        assert q_data_type is kv_data_type
        tables = [part.tolist() for part in indices.tensor_split(kv[1:-1].long())]
        queries = qo.diff()
        cached = (kv.diff() - 1) * page_size + last - queries
        self.batch = PagedBatch.build(queries.tolist(), cached.tolist(), tables, page_size)

    def run(self, q: torch.Tensor, pages: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return paged_attention(q, *pages, self.batch)


@pytest.mark.parametrize("rows", [[(3, 1), (40, 1)], [(0, 7), (31, 1), (16, 16), (5, 4)]], ids=str)
def test_flashinfer_is_told_what_it_documents(
    rows: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library itself needs a GPU: here its documented interface stands in."""
    library = ModuleType("flashinfer")
    library.__dict__.update(vars(SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Wrapper)))
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    monkeypatch.delitem(sys.modules, "antiphon.nn.flashinfer_attention", raising=False)
    monkeypatch.setattr(Wrapper, "plans", 0)
    attention = importlib.import_module("antiphon.nn.flashinfer_attention").FlashInfer()
    compare(attention, rows, layout(rows, 16, [2, 5], seed=1), 16)
    assert Wrapper.plans == 1
    monkeypatch.delitem(sys.modules, "antiphon.nn.flashinfer_attention")
