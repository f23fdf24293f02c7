"""Packed experts against every expert computed with operators."""

from __future__ import annotations

import pytest
import torch

from antiphon.nn import cpu, moe

EXPERTS, PICKS = 5, 2
TOKENS = 1, 2, 3, 7, 16, 33, 300


def situation(tokens: int, inner: int = 16, hidden: int = 32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(tokens)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    weights, experts = noise(tokens, EXPERTS).softmax(-1).topk(PICKS)
    gate_up, down = (
        noise(EXPERTS, 2 * inner, hidden) / hidden**0.5,
        noise(EXPERTS, inner, hidden) / inner**0.5,
    )
    return noise(tokens, hidden), experts, weights, gate_up, down


def packed(gate_up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate_up, down = moe.pack_experts(gate_up, down)
    if gate_up.dim() != moe.PACKED_DIMS:
        pytest.skip("no tiles on this CPU")
    return gate_up, down


@pytest.mark.parametrize("inner", [16, 264])
@pytest.mark.parametrize("tokens", TOKENS)
def test_packed_experts_give_the_same_sums(tokens: int, inner: int) -> None:
    x, experts, weights, gate_up, down = situation(tokens, inner)
    with torch.inference_mode():
        ours = moe.run_experts(x, experts, weights, *packed(gate_up, down))
        theirs = moe.dense(x, experts, weights, gate_up, down)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_token_has_the_same_bits_whatever_tokens_are_beside_it() -> None:
    x, experts, weights, gate_up, down = situation(40)
    laid_out = packed(gate_up, down)
    together = moe.run_experts(x, experts, weights, *laid_out)
    for first, last in ((0, 1), (3, 5), (7, 20), (0, 40)):
        mine = slice(first, last)
        assert torch.equal(moe.run_experts(x[mine], experts[mine], weights[mine], *laid_out), together[mine])


def test_numbers_of_bf16_take_half_the_bytes_and_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, experts, weights, *whole = situation(20)
    gate_up, down = (weight.bfloat16().float() for weight in whole)
    halves = packed(gate_up, down)
    assert all(2 * half.nbytes == weight.nbytes for half, weight in zip(halves, whole, strict=True))
    mixed = halves[0], packed(gate_up, whole[1])[1]
    assert [weight.dtype for weight in mixed] == [torch.bfloat16, torch.float32]
    from antiphon.nn.cpu import panels

    monkeypatch.setattr(panels, "is_bf16", lambda _: False)
    for tokens in (1, 2, 20):
        arguments = x[:tokens], experts[:tokens], weights[:tokens]
        wide = moe.run_experts(*arguments, *packed(gate_up, down))
        assert torch.equal(moe.run_experts(*arguments, *halves), wide)


def test_what_is_left_to_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    gate_up, down = situation(1)[3:]
    for weights in (
        (gate_up.double(), down.double()),
        (gate_up[:, :-2], down[:, :-1]),
        (gate_up[:, :, :-2], down[:, :, :-2]),
    ):
        assert moe.pack_experts(*weights) == weights
    monkeypatch.setattr(cpu, "has_compiler", lambda: False)
    assert moe.pack_experts(gate_up, down) == (gate_up, down)
