"""Products and attention of prompts by AMX, against those in pairs and in fp64."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")

from antiphon.nn import cpu
from antiphon.nn.cpu import compiler, panels
from antiphon.nn.cpu.compiler import has_amx, has_pairs
from antiphon.nn.cpu.kv_prefetch import Soon

needs_amx = pytest.mark.skipif(not has_amx(), reason="this CPU has no AMX, or its kernel refuses it")
needs_pairs = pytest.mark.skipif(not has_pairs(), reason="this CPU has no products in bf16")

ROWS = (1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 47, 49, 64, 255, 256, 257, 300, 600)
SIZES = [(16, 32), (48, 1056), (528, 96), (1536, 576), (80, 4096)]
"""One panel, odd numbers of them, odd numbers of tiles of terms, and blocks of fewer rows than others."""


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def product(x: Tensor, weight: Tensor, threads: int = 1, soon: Tensor | None = None) -> Tensor:
    """x times a weight in panels, in bf16. soon: blocks that are asked for meanwhile."""
    x, out = x.contiguous(), torch.full((len(x), 16 * len(weight)), torch.nan)
    job = panels.product_job(x, weight, out, threads, rounds=True)
    job.rows = len(x)
    blocks = torch.arange(0 if soon is None else len(soon))
    asked = Soon(blocks=blocks.data_ptr(), num_blocks=len(blocks), block_bytes=4096)
    if soon is not None:
        asked.keys = asked.values = soon.data_ptr()
    panels.ask_for([job], asked)
    panels.product_loop().run(job, threads)
    return out


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A kernel that gives no tile registers."""
    monkeypatch.setattr(compiler, "allows_tiles", lambda: False)
    has_amx.cache_clear()
    yield
    monkeypatch.undo()
    has_amx.cache_clear()


@needs_amx
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_both_factors_are_rounded_and_a_row_has_the_same_bits_in_any_batch(sizes: tuple[int, int]) -> None:
    weight, x = noise(*sizes).bfloat16().float(), noise(600, sizes[1], seed=1)
    laid_out = panels.lay_out(weight)
    whole = product(x, laid_out)
    exact = x.bfloat16().double() @ weight.double().t()
    torch.testing.assert_close(whole.double(), exact, rtol=1e-5, atol=1e-6 * sizes[1])
    for rows in ROWS:
        for threads in (1, 2, 3):
            assert torch.equal(product(x[-rows:], laid_out, threads), whole[-rows:])


@needs_amx
@pytest.mark.parametrize("rows", [1, 8, 40, 300])
def test_what_is_asked_for_meanwhile_changes_nothing(rows: int) -> None:
    laid_out, x = panels.lay_out(noise(160, 96).bfloat16().float()), noise(rows, 96, seed=1)
    assert torch.equal(product(x, laid_out, 2, torch.zeros(50, 1024)), product(x, laid_out))


@needs_amx
@pytest.mark.parametrize("depth", [36, 264, 1040])
def test_depths_without_whole_tiles_of_terms_are_multiplied_in_pairs(depth: int) -> None:
    weight, x = noise(64, depth).bfloat16().float(), noise(20, depth, seed=1)
    assert panels.form_in_bf16(depth) == panels.PAIRS
    exact = x.bfloat16().double() @ weight.double().t()
    found = product(x, panels.lay_out(weight))
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=4e-4)


@needs_pairs
def test_where_the_kernel_refuses_pairs_are_multiplied(refused: None) -> None:
    assert not has_amx()
    assert panels.form_in_bf16(256) == panels.PAIRS
    weight, x = noise(64, 256).bfloat16().float(), noise(40, 256, seed=1)
    exact = x.bfloat16().double() @ weight.double().t()
    found = product(x, panels.lay_out(weight))
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=4e-4)
    told = [name for name in cpu.vectors() if "AMX" in name]
    assert told in ([], [cpu.REFUSED])


@needs_amx
def test_by_amx_it_is_near_what_pairs_give(request: pytest.FixtureRequest) -> None:
    weight, x = panels.lay_out(noise(512, 576).bfloat16().float()), noise(130, 576, seed=1)
    assert panels.form_in_bf16(576) == panels.AMX
    by_amx = product(x, weight)
    request.getfixturevalue("refused")
    in_pairs = product(x, weight)
    assert 0 < float((by_amx - in_pairs).abs().max()) < 2e-4


@needs_amx
def test_it_is_told_and_asked_for_once() -> None:
    assert "AMX in bf16" in cpu.vectors()
    assert compiler.allows_tiles()  # asking again is allowed


@needs_pairs
def test_a_system_without_the_call_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.nn.cpu.compiler.platform.machine", lambda: "aarch64")
    assert not compiler.allows_tiles()


@needs_amx
def test_a_process_that_has_not_asked_falls_back() -> None:
    """A kernel's refusal is its answer to the call, whatever the CPU has."""
    program = (
        "from antiphon.nn.cpu import compiler; compiler.TILE_REGISTERS = 63; "
        "print(compiler.has_amx_instructions(), compiler.has_amx())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
