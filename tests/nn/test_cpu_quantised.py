"""Products with quantised weights: bit for bit those of the dequantised ones in fp32 panels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.checkpoint.gguf import parse_gguf
from antiphon.core.quantised import Groups, Quantised, eight_bits
from antiphon.nn.cpu import has_compiler
from fakes.model_files import gguf
from fakes.quantised import NUMBERS, quantise

if not has_compiler():
    pytest.skip("nothing is compiled", allow_module_level=True)

from antiphon.nn.cpu import panels, quantised
from antiphon.nn.cpu.compiler import has_feature

if not (has_feature("avx2") and has_feature("fma")):
    pytest.skip("this CPU has no vectors", allow_module_level=True)

BITS = {
    "Q8_0": 8.5,
    "Q4_0": 4.5,
    "Q4_1": 5,
    "Q4_K": 4.625,
    "Q5_0": 10,
    "Q5_1": 10,
    "Q5_K": 10,
    "Q6_K": 12,
    "I8": 8.125,
}
"""Of a number in memory, on average."""


def weight(encoding: str, out: int, depth: int) -> Quantised:
    noise = np.random.default_rng(0).normal(size=(out, depth)).astype(np.float32)
    if encoding == "I8":
        scales = np.abs(noise[:, :1]) + 0.1
        quants = np.clip(np.rint(noise * 40), -128, 127).astype(np.int8)[:, None]
        return eight_bits(Groups(scales, np.zeros_like(scales), quants), depth)
    found = parse_gguf(gguf({}, {"t": ((out, depth), NUMBERS[encoding], quantise(noise, encoding))}), "f")
    blocks = found.tensors["t"].in_blocks()
    assert blocks is not None
    assert np.array_equal(blocks.rows(slice(None)), found.read("t"))
    return blocks


def whole_panels(blocks: Quantised, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """fp32, of the dequantised weight."""
    monkeypatch.setattr(panels, "is_bf16", lambda _: False)
    return panels.lay_out(torch.from_numpy(blocks.rows(slice(None))))


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("encoding", BITS)
@pytest.mark.parametrize("sizes", [(112, 512), (64, 1024)])
def test_products_have_the_bits_of_the_dequantised_weight(
    encoding: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = weight(encoding, *sizes)
    laid_out, whole = quantised.lay_out_quantised(blocks), whole_panels(blocks, monkeypatch)
    for rows in (0, 1, 2, 3, 4, 5, 7, 8, 9, 17, 40, 300):
        x = noise(rows, sizes[1])
        assert torch.equal(quantised.times_quantised(x, laid_out), panels.times_panels(x, whole))
    x = noise(2, 3, sizes[1])
    assert torch.equal(quantised.times_quantised(x, laid_out), panels.times_panels(x, whole))


@pytest.mark.parametrize("encoding", BITS)
def test_it_stays_in_its_bits(encoding: str) -> None:
    laid_out = quantised.lay_out_quantised(weight(encoding, 64, 512))
    assert 8 * laid_out.nbytes == BITS[encoding] * 64 * 512
    assert quantised.depth_of(laid_out) == 512
    assert quantised.is_quantised(laid_out)


@pytest.mark.parametrize("encoding", ["Q8_0", "Q4_K", "I8"])
def test_rows_are_read_from_panels(encoding: str) -> None:
    blocks = weight(encoding, 96, 512)
    laid_out, chosen = quantised.lay_out_quantised(blocks), torch.tensor([95, 0, 17, 17])
    assert torch.equal(
        quantised.rows_of_panels(laid_out, chosen), torch.from_numpy(blocks.rows(chosen.numpy()))
    )
    assert quantised.rows_of_panels(laid_out, chosen[:0]).shape == (0, 512)
    for wrong in ([96], [-1]):
        with pytest.raises(IndexError):
            quantised.rows_of_panels(laid_out, torch.tensor(wrong))


def test_a_large_weight_is_laid_out_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = weight("Q4_1", 112, 64)
    whole = quantised.lay_out_quantised(blocks)
    monkeypatch.setattr(quantised, "PANELS_LAID_OUT", 3)
    assert torch.equal(quantised.lay_out_quantised(blocks), whole)


def test_odd_sizes_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "can_lay_out", lambda weight: weight.shape[0] % 16 == 0)
    assert quantised.can_lay_out_quantised(weight("Q8_0", 32, 64))
    assert not quantised.can_lay_out_quantised(weight("Q8_0", 40, 64))
    odd = Groups(np.ones((16, 1), np.float32), np.zeros((16, 1), np.float32), np.ones((16, 1, 6), np.int8))
    assert not quantised.can_lay_out_quantised(eight_bits(odd, 6))


@pytest.mark.parametrize("sizes", [(112, 512), (64, 1024)])
def test_what_fp16_holds_is_kept_in_it(sizes: tuple[int, int]) -> None:
    weight = noise(*sizes).half().float()
    halves, whole = quantised.in_half_panels(weight), panels.lay_out(weight)
    assert halves is not None
    assert (halves.dtype, halves.nbytes, quantised.depth_of(halves)) == (
        torch.float16,
        2 * weight.numel(),
        sizes[1],
    )
    for rows in (0, 1, 2, 3, 4, 5, 8, 9, 17, 150):
        x = noise(rows, sizes[1])
        assert torch.equal(quantised.times_quantised(x, halves), panels.times_panels(x, whole))
    chosen = torch.tensor([sizes[0] - 1, 0, 17])
    assert torch.equal(quantised.rows_of_panels(halves, chosen), weight[chosen])
    weight[3, 5] = 1 + 2**-12
    assert quantised.in_half_panels(weight) is None
