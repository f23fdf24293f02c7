"""Products with weights laid out in any way, against the plain product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from antiphon.nn import cpu, products
from antiphon.nn.products import PACKED_NUMEL, add_linear, can_pack, in_whole_panels, linear, pack

ROWS = (0, 1, 2, 7, 16, 40, 100)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def is_packed(weight: torch.Tensor) -> bool:
    """Whether a weight of two dimensions is laid out in another way."""
    return weight.is_mkldnn or weight.dim() == 3


@pytest.fixture(params=["panels", "oneDNN"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `pack` does."""
    if request.param == "oneDNN":
        monkeypatch.setattr(cpu, "has_compiler", lambda: False)
    elif not is_packed(pack(noise(512, 264))) or pack(noise(512, 264)).is_mkldnn:
        pytest.skip("no panels on this CPU")
    return request.param


@pytest.mark.parametrize("left", [(1, 1000), (1, 0)])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("outputs", [512, 520, 528])
def test_all_ways_give_the_plain_product(
    outputs: int, rows: int, packed: bool, left: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "left_rows", lambda: left)
    weight, bias, x = noise(outputs, 264), noise(outputs, seed=1), noise(rows, 264, seed=2)
    residual = noise(rows, outputs, seed=3)
    kept = residual.clone()
    layout = pack(weight) if packed else weight
    for out, expected in (
        (linear(x, layout), F.linear(x, weight)),
        (linear(x, layout, bias), F.linear(x, weight, bias)),
        (add_linear(residual, x, layout), residual + F.linear(x, weight)),
    ):
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
        assert out.is_contiguous()
    assert torch.equal(residual, kept)


def test_a_weight_with_outputs_of_zeros_behind_its_own_is_in_panels(layout: str) -> None:
    weight, x = noise(523, 264), noise(3, 264, seed=1)
    wide = in_whole_panels(weight)
    assert wide.shape == (528, 264)
    assert layout == "oneDNN" or pack(wide).dim() == 3
    out = linear(x, pack(wide))
    torch.testing.assert_close(out[:, :523], F.linear(x, weight), rtol=1e-5, atol=1e-4)
    assert not out[:, 523:].any()
    for kept in (wide, weight.double(), torch.empty(523, 264, device="meta")):
        assert in_whole_panels(kept) is kept


def test_only_large_fp32_weights_on_a_cpu_are_packed() -> None:
    if not can_pack():
        pytest.skip("this torch has no packed products")
    wide = PACKED_NUMEL // 256
    assert is_packed(pack(noise(wide, 256)))
    for weight in (noise(wide - 1, 256), noise(wide, 256).double(), noise(2, wide, 256)):
        assert pack(weight) is weight
    meta = torch.empty(wide, 256, device="meta")
    assert pack(meta) is meta


@pytest.mark.parametrize("sizes", [(512, 512), (528, 256)])
def test_a_row_of_a_packed_product_has_the_same_bits_in_any_batch(
    layout: str, sizes: tuple[int, int]
) -> None:
    if layout == "oneDNN" and not can_pack():
        pytest.skip("this torch has no packed products")
    weight, x = pack(noise(*sizes)), noise(600, sizes[1], seed=1)
    together = linear(x, weight)
    for rows in (1, 2, 5, 15, 16, 31, 33, 257):
        assert torch.equal(linear(x[:rows], weight), together[:rows])
        assert torch.equal(linear(x[-rows:], weight), together[-rows:])


def test_a_sum_of_panels_is_one_chain_in_order(layout: str) -> None:
    if layout != "panels":
        pytest.skip("of panels alone")
    weight, x = noise(512, 264), noise(3, 264, seed=1)
    total = torch.zeros(3, 512)
    for term in range(264):  # a product of two fp32 and the sum are exact enough in fp64 to round once
        total = (x[:, term, None].double() * weight[:, term].double() + total.double()).float()
    assert torch.equal(linear(x, pack(weight)), total)


def test_inputs_may_be_strided_and_deep() -> None:
    weight = noise(512, 264)
    for x in (noise(16, 528)[:, :264], noise(264, 16).t(), noise(2, 3, 264), noise(32, 264)[::2]):
        torch.testing.assert_close(linear(x, pack(weight)), F.linear(x, weight), rtol=1e-5, atol=1e-4)


def in_halves(weight: torch.Tensor) -> torch.Tensor:
    """The nearest numbers that bf16 has."""
    return weight.bfloat16().float()


@pytest.mark.parametrize("sizes", [(512, 264), (528, 256), (512, 1040)])
def test_a_weight_of_bf16_numbers_has_half_the_bytes_and_the_same_products(
    layout: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if layout != "panels":
        pytest.skip("of panels alone")
    from antiphon.nn.cpu import panels

    weight, x = in_halves(noise(*sizes)), noise(300, sizes[1], seed=1)
    halves = pack(weight)
    monkeypatch.setattr(panels, "is_bf16", lambda _: False)
    whole = pack(weight)
    assert 2 * halves.nbytes == whole.nbytes
    for rows in (1, 2, 3, 5, 8, 15, 16, 17, 33, 64, 257, 300):
        assert torch.equal(linear(x[:rows], halves), linear(x[:rows], whole))


@pytest.mark.skipif(not cpu.has_pairs(), reason="this CPU has no products in bf16")
@pytest.mark.parametrize("sizes", [(512, 264), (528, 256), (48, 1040)])
def test_in_bf16_both_factors_are_rounded_and_sums_are_not(sizes: tuple[int, int]) -> None:
    """And a row has the same bits whatever rows are beside it."""
    from antiphon.nn.cpu import panels

    weight, x = in_halves(noise(*sizes)), noise(600, sizes[1], seed=1)
    laid_out, exact = panels.lay_out(weight), in_halves(x).double() @ weight.double().t()
    whole = in_bf16(x, laid_out, 1)
    torch.testing.assert_close(whole.double(), exact, rtol=1e-5, atol=4e-4)
    for rows in (1, 2, 3, 5, 8, 15, 16, 17, 33, 64, 257, 600):
        for threads in (1, 2):
            assert torch.equal(in_bf16(x[-rows:], laid_out, threads), whole[-rows:])


@pytest.mark.skipif(not cpu.has_pairs(), reason="this CPU has no products in bf16")
def test_a_weight_that_bf16_lacks_is_multiplied_as_it_is() -> None:
    from antiphon.nn.cpu import panels

    laid_out, x = panels.lay_out(noise(512, 264)), noise(20, 264, seed=1)
    assert torch.equal(in_bf16(x, laid_out, 1), panels.times_panels(x, laid_out))


def in_bf16(x: torch.Tensor, laid_out: torch.Tensor, threads: int) -> torch.Tensor:
    """x times a weight in panels, rounded where the weight is bf16."""
    from antiphon.nn.cpu import panels

    x = x.contiguous()
    out = x.new_empty(len(x), 16 * len(laid_out))
    job = panels.product_job(x, laid_out, out, threads, rounds=True)
    job.rows = len(x)
    panels.product_loop().run(job, threads)
    return out


def test_one_number_that_bf16_lacks_keeps_a_weight_whole(layout: str) -> None:
    if layout != "panels":
        pytest.skip("of panels alone")
    weight = in_halves(noise(512, 264))
    assert pack(weight).dtype is torch.bfloat16
    weight[17, 200] *= 1 + 2**-12
    assert pack(weight).dtype is torch.float32
    torch.testing.assert_close(linear(torch.eye(264), pack(weight)), weight.t(), rtol=0, atol=0)
