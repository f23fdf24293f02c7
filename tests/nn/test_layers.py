"""Tables, norms, positions and experts against their definitions, in the arithmetic of the reference."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

from antiphon.nn.cpu import in_panels
from antiphon.nn.layers import ROWS, Table, gated_mlp, rms_norm, swiglu
from antiphon.nn.moe import (
    DENSE_TOKENS,
    dense,
    gathered,
    grouped,
    ragged,
    route,
    run_experts,
    waits_for_device,
)
from antiphon.nn.products import add_linear
from antiphon.nn.rope import KEPT_POSITIONS, Rope, rotate


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm_casts_as_transformers(dtype: torch.dtype) -> None:
    norm = modeling.Qwen3OmniMoeRMSNorm(48, eps=1e-6)
    norm.weight.data = noise(48, seed=1, dtype=dtype)
    x = noise(5, 48, dtype=dtype)
    ours, theirs = rms_norm(x, norm.weight.data, 1e-6), norm(x)
    assert ours.dtype is dtype
    if dtype is torch.float32:
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_heads_may_have_norms_of_their_own(dtype: torch.dtype) -> None:
    x, weight = noise(3, 4, 8, dtype=dtype), noise(4, 8, seed=1, dtype=dtype)
    together = rms_norm(x, weight, 1e-6)
    for head in range(4):
        torch.testing.assert_close(together[:, head], rms_norm(x[:, head].contiguous(), weight[head], 1e-6))


def test_mlp_parts() -> None:
    x, gate, up, down = noise(3, 8), noise(6, 8, seed=1), noise(6, 8, seed=2), noise(8, 6, seed=3)
    inner = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    fused = torch.cat((gate, up))
    torch.testing.assert_close(swiglu(x @ fused.T), inner)
    torch.testing.assert_close(gated_mlp(x, fused, down), inner @ down.T)
    torch.testing.assert_close(add_linear(x, inner, down), x + inner @ down.T)


def reference_rotation(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return modeling.apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("section", [None, (6, 5, 5)])
def test_rotation_equals_transformers(section: tuple[int, int, int] | None, dtype: torch.dtype) -> None:
    from transformers import Qwen3OmniMoeConfig

    config = Qwen3OmniMoeConfig().thinker_config.text_config
    config.head_dim = 32
    config.rope_parameters = {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": section or (6, 5, 5),
    }
    theirs = modeling.Qwen3OmniMoeThinkerTextRotaryEmbedding(config)
    positions = torch.randint(0, 5000, (3, 7), generator=torch.Generator().manual_seed(0)).float()
    if section is None:
        positions = positions[:1].expand(3, -1)
    x = noise(7, 2, 32, dtype=dtype)
    cos, sin = theirs(x, positions[:, None])
    expected, _ = reference_rotation(x, cos[0], sin[0])
    rope = Rope(32, 1e6, section)
    ours = rotate(x, *rope.cos_sin(positions if section else positions[0], dtype))
    atol = 1e-14 if dtype is torch.float64 else 2e-2
    torch.testing.assert_close(ours, expected, rtol=0, atol=atol)


def test_one_row_of_positions_means_three_equal_rows() -> None:
    rope = Rope(32, 1e6, (6, 5, 5))
    positions = torch.arange(9)
    one, three = rope.cos_sin(positions, torch.float64), rope.cos_sin(positions.expand(3, -1), torch.float64)
    assert torch.equal(one[0], three[0])
    assert torch.equal(one[1], three[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_kept_cosines_are_those_of_the_position(dtype: torch.dtype) -> None:
    """Also after positions further on, and beyond those that are kept."""
    rope, other = Rope(32, 1e4), Rope(32, 1e4)
    for places in ([0, 3, 1], [1023], [5000, 2], [7], [KEPT_POSITIONS - 1], [KEPT_POSITIONS + 5, 1]):
        positions = torch.tensor(places)
        ours = rope.cos_sin(positions, dtype)
        theirs = other.cos_sin(positions[None], dtype)  # more than one dimension: not kept
        for mine, direct in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, direct[0], rtol=0, atol=1e-6)
    assert [len(part) for part in rope.cos_sin(torch.zeros(0), dtype)] == [0, 0]


def test_routing_sums_to_one_in_fp32() -> None:
    experts, weights = route(noise(6, 8), noise(10, 8, seed=1), 3, normalise=True)
    assert experts.shape == weights.shape == (6, 3)
    torch.testing.assert_close(weights.sum(-1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-6)
    assert torch.equal(weights, weights.float().double())
    _, raw = route(noise(6, 8), noise(10, 8, seed=1), 3, normalise=False)
    assert (raw.sum(-1) < 1).all()


@pytest.mark.parametrize("tokens", [1, 2, DENSE_TOKENS, DENSE_TOKENS + 1])
def test_all_ways_to_run_experts_agree(tokens: int) -> None:
    count, size, width, picks = 6, 5, 8, 2
    x, gate_up, down = (
        noise(tokens, width),
        noise(count, 2 * size, width, seed=1),
        noise(count, size, width, seed=2),
    )
    experts, weights = route(x, noise(count, width, seed=3), picks, normalise=True)
    expected = torch.zeros_like(x)
    for token in range(tokens):
        for pick in range(picks):
            expert = int(experts[token, pick])
            inner = swiglu(x[token] @ gate_up[expert].T)
            expected[token] += weights[token, pick] * (inner @ down[expert])
    for way in (gathered, dense, grouped, run_experts):
        torch.testing.assert_close(
            way(x, experts, weights, gate_up, down),
            expected,
            rtol=0,
            atol=1e-12,
            msg=lambda m, w=way: f"{w}: {m}",
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_ragged_groups_give_the_same_sums(tokens: int, dtype: torch.dtype) -> None:
    """Torch's grouped product knows no fp64; experts that nobody picked are groups of no tokens."""
    count, size, width, picks = 9, 16, 8, 2
    x, gate_up, down, router = (
        noise(*shape, seed=seed, dtype=dtype)
        for seed, shape in enumerate(
            [(tokens, width), (count, 2 * size, width), (count, size, width), (count, width)]
        )
    )
    experts, weights = route(x, router, picks, normalise=True)
    assert len(experts.unique()) < count or tokens == 40
    expected = grouped(x.double(), experts, weights.double(), gate_up.double(), down.double())
    out = ragged(x, experts, weights, gate_up, down)
    assert out.dtype is dtype
    near = 1e-4 if dtype is torch.float32 else 0.05
    assert (out.double() - expected).norm() <= near * expected.norm()


def test_only_groups_that_the_host_must_know_of_wait_for_the_device() -> None:
    weights = torch.zeros(2, 4, 4)
    assert [waits_for_device(n, weights) for n in (1, DENSE_TOKENS, DENSE_TOKENS + 1)] == [False, False, True]


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_rows_are_the_same_whatever_they_are_kept_in(dtype: torch.dtype, kept: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(ROWS + 7, 5, generator=generator, dtype=torch.float64).to(dtype)
    if dtype is not torch.float64:
        weight = weight.float()
    table = Table(weight)
    ids = torch.tensor([0, ROWS + 6, 3, 3])
    assert torch.equal(table.rows(ids), weight[ids])
    assert table.rows(ids).dtype is weight.dtype is table.dtype
    assert table._weight.dtype is kept
    assert len(table) == ROWS + 7


def test_one_number_that_does_not_fit_keeps_the_table_wide() -> None:
    weight = torch.ones(2 * ROWS, 2)
    weight[-1, -1] = 1 + 2.0**-20
    assert torch.equal(Table(weight).rows(torch.tensor([2 * ROWS - 1])), weight[-1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_are_read_from_panels(dtype: torch.dtype) -> None:
    weight = noise(48, 32, dtype=dtype).float()
    panels = in_panels(weight)
    if panels is None:
        pytest.skip("no panels on this CPU")
    table = Table(panels)
    ids = torch.tensor([47, 0, 16, 15, 15])
    assert torch.equal(table.rows(ids), weight[ids])
    assert table.rows(ids[:0]).shape == (0, 32)
    assert table.dtype is torch.float32
    assert len(table) == 48
