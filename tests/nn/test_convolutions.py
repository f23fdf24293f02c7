"""Packed convolutions against torch's, at lengths whose layouts differ."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from antiphon.nn.convolutions import PackedConv, as_ordinary, can_pack

pytestmark = pytest.mark.skipif(not can_pack(), reason="this torch has no packed convolutions")

LENGTHS = (1, 4, 16, 80, 300, 2000)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("into", "out", "kernel", "dilation"),
    [(192, 192, 7, 1), (96, 96, 7, 9), (24, 24, 7, 3), (256, 384, 7, 1), (24, 1, 7, 1), (192, 192, 1, 1)],
)
def test_any_length_gives_the_plain_convolution(into: int, out: int, kernel: int, dilation: int) -> None:
    weight, bias = noise(out, into, kernel), noise(out, seed=1)
    conv = PackedConv(weight, bias, dilation)
    assert conv.remembered == (kernel - 1) * dilation
    for length in LENGTHS:
        x = noise(2, length + conv.remembered, into, seed=length)
        exact = F.conv1d(x.transpose(1, 2).double(), weight.double(), bias.double(), dilation=dilation)
        y = conv(x)
        assert y.is_contiguous()
        assert (y - exact.transpose(1, 2)).abs().max() < 2e-3
        residual = noise(2, length, out, seed=2)
        expected = residual + y
        conv.add_to(residual, x)
        torch.testing.assert_close(residual, expected, rtol=1e-5, atol=1e-4)


def test_a_depthwise_convolution() -> None:
    weight, bias, x = noise(64, 1, 7), noise(64, seed=1), noise(3, 22, 64, seed=2)
    expected = F.conv1d(x.transpose(1, 2), weight, bias, groups=64).transpose(1, 2)
    torch.testing.assert_close(PackedConv(weight, bias, groups=64)(x), expected, rtol=1e-5, atol=1e-5)


def test_an_input_has_the_same_bits_in_any_batch() -> None:
    for kernel, length in ((7, 16), (7, 640), (1, 128)):
        conv = PackedConv(noise(192, 192, kernel), noise(192, seed=1))
        x = noise(8, length + conv.remembered, 192, seed=2)
        together, added = conv(x), noise(8, length, 192, seed=3)
        alone = added[2:3].clone()
        conv.add_to(added, x)
        conv.add_to(alone, x[2:3])
        assert torch.equal(conv(x[:3]), together[:3])
        assert torch.equal(alone, added[2:3])


@pytest.mark.parametrize("taps", [1, 2])
@pytest.mark.parametrize("stride", [2, 5])
def test_a_transposed_convolution_is_an_ordinary_one(taps: int, stride: int) -> None:
    weight, bias, x = noise(8, 6, taps * stride), noise(6, seed=1), noise(2, 8, 9, seed=2)
    whole = F.conv_transpose1d(x, weight, bias, stride=stride)
    reached = whole[..., (taps - 1) * stride : whole.shape[-1] - (taps - 1) * stride]
    side_by_side = F.conv1d(x, *as_ordinary(weight, bias, stride)).transpose(1, 2)
    found = side_by_side.unflatten(2, (stride, -1)).flatten(1, 2).transpose(1, 2)
    torch.testing.assert_close(found, reached, rtol=1e-5, atol=1e-5)
