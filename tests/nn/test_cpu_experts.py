"""Experts walked through by compiled code against every expert computed with operators."""

from __future__ import annotations

import pytest
import torch

from antiphon.nn import moe

SIZES = {"picks": 2, "experts": 5, "inner": 12, "hidden": 24}


def situation(tokens: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(tokens)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    weights, experts = noise(tokens, SIZES["experts"]).softmax(-1).topk(SIZES["picks"])
    gate_up = noise(SIZES["experts"], 2 * SIZES["inner"], SIZES["hidden"])
    down = noise(SIZES["experts"], SIZES["inner"], SIZES["hidden"])
    return noise(tokens, SIZES["hidden"]), experts, weights, gate_up, down


@pytest.mark.parametrize("tokens", [1, 3, 16])
def test_compiled_experts_give_the_same_sums(tokens: int) -> None:
    pytest.importorskip("numba")
    arguments = situation(tokens)
    assert moe.is_compiled_faster(arguments[1].numel(), arguments[3])
    with torch.inference_mode():
        ours = moe.run_experts(*arguments)
    torch.testing.assert_close(ours, moe.dense(*arguments), rtol=1e-5, atol=1e-4)


def test_what_is_left_to_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe, "has_compiler", lambda: True)
    gate_up = situation(1)[3]
    assert moe.is_compiled_faster(4, gate_up)
    assert not moe.is_compiled_faster(10**9, gate_up)
    assert not moe.is_compiled_faster(4, gate_up.double())
    assert not moe.is_compiled_faster(4, gate_up[:, :-2])
    monkeypatch.setattr(moe, "has_compiler", lambda: False)
    assert not moe.is_compiled_faster(4, gate_up)
