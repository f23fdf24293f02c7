"""Compiled passes between a decoder's products: against the operators, and a row's bits in any batch."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from antiphon.models.decoder import Decoder
from antiphon.models.decoder_config import DecoderConfig
from antiphon.nn.attention import PagedBatch, over
from antiphon.nn.backends import BACKENDS
from antiphon.nn.cpu import cpu_attention, has_pairs
from antiphon.nn.operators import OperatorSteps
from antiphon.nn.step import StepInputs

pytest.importorskip("numba")

from antiphon.nn.cpu import steps
from antiphon.nn.cpu.steps import SCORED, CompiledSteps, filled

HIDDEN, INNER, BLOCK = 256, 512, 4
Rows = list[tuple[int, int]]  # (tokens cached, tokens of this step)
CONFIGS = {
    "two_queries_a_key": DecoderConfig(HIDDEN, 2, 8, 4, 64, INNER, 1e-6, 1e4),
    "three_queries_a_key": DecoderConfig(HIDDEN, 2, 6, 2, 48, INNER, 1e-6, 1e4),
    "three_large_queries_a_key": DecoderConfig(HIDDEN, 2, 6, 2, 128, INNER, 1e-6, 1e4),
    "biases_and_no_norms_of_heads": DecoderConfig(
        HIDDEN, 2, 8, 4, 64, INNER, 1e-6, 1e4, qk_norm=False, qkv_bias=True
    ),
    "no_norms_of_heads": DecoderConfig(HIDDEN, 2, 8, 2, 32, INNER, 1e-6, 1e4, qk_norm=False),
    "mixture": DecoderConfig(HIDDEN, 2, 4, 4, 32, INNER, 1e-6, 1e4, None, 4, 2, 64),
}


needs_bf16 = pytest.mark.skipif(not has_pairs(), reason="this CPU has no products in bf16")


def decoder(
    config: DecoderConfig, head: Tensor | None = None, *, halves: bool = False, backend: str = "cpu"
) -> Decoder:
    """halves: weights are numbers that bf16 has."""
    noise = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> Tensor:
        made = torch.randn(shape, generator=noise) * shape[-1] ** -0.5
        return made.bfloat16().float() if halves else made

    params = {"norm": weight(HIDDEN) + 1}
    for layer in range(config.num_layers):
        sizes = {
            "input_norm": (HIDDEN,),
            "post_norm": (HIDDEN,),
            "q_norm": (config.head_dim,),
            "k_norm": (config.head_dim,),
            "qkv": (sum(config.qkv_rows), HIDDEN),
            "qkv_bias": (sum(config.qkv_rows) if config.qkv_bias else 0,),
            "o": (HIDDEN, config.num_heads * config.head_dim),
            "router": (config.num_experts, HIDDEN),
            "gate_up": (2 * INNER, HIDDEN),
            "down": (HIDDEN, INNER),
        }
        if config.is_moe:
            sizes["gate_up"] = (config.num_experts, 2 * config.expert_size, HIDDEN)
            sizes["down"] = (config.num_experts, config.expert_size, HIDDEN)
        params |= {f"layers.{layer}.{n}": weight(*shape) for n, shape in sizes.items() if 0 not in shape}
    made = Decoder(config, params, head=head)
    made.steps = BACKENDS[backend].steps_for(made.stack)
    return made


class Situation:
    """Rows with tables of their own in shared pages, and what their tokens bring."""

    def __init__(self, model: Decoder, rows: Rows, block: int = BLOCK) -> None:
        noise = torch.Generator().manual_seed(1)
        widths = [-(-sum(row) // block) for row in rows]
        self.model, self.rows, self.block = model, rows, block
        self.tables = [part.tolist() for part in torch.randperm(sum(widths), generator=noise).split(widths)]
        shape = (sum(widths), block, *model.config.kv_shape)
        self.pages = [
            (torch.randn(shape, generator=noise), torch.randn(shape, generator=noise)) for _ in model.layers
        ]
        self.x = torch.randn(sum(new for _, new in rows), HIDDEN, generator=noise)
        ends = list(itertools.accumulate(new for _, new in rows))
        self.tokens = [torch.arange(end - new, end) for end, (_, new) in zip(ends, rows, strict=True)]

    def run(self, picked: list[int], **options: object) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """These rows' hidden states, what was captured of them, and the pages afterwards."""
        rows = [self.rows[i] for i in picked]
        lengths = [new for _, new in rows], [cached for cached, _ in rows]
        batch = PagedBatch.build(*lengths, [self.tables[i] for i in picked], self.block)
        places = torch.cat([torch.arange(cached, cached + new) for cached, new in rows])
        pages = [(keys.clone(), values.clone()) for keys, values in self.pages]
        x = self.x[torch.cat([self.tokens[i] for i in picked])]
        with torch.inference_mode():
            hidden, captured = self.model.forward(StepInputs(x, places, over(pages, batch), **options))  # type: ignore[arg-type]
        return hidden, captured, [side for layer in pages for side in layer]


@pytest.mark.parametrize("block", [BLOCK, 16, 32])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "rows",
    [
        [(9, 1)],
        [(0, 1), (30, 1), (7, 1)],
        [(40, 1), (0, 7), (8, 1), (5, 6)],
        [(cached, 1) for cached in (33, 0, 15, 64, 16, 90, 3, 47, 31)],
    ],
    ids=["one", "three", "prompts between", "so many that products ask for keys"],
)
def test_it_computes_what_the_operators_do(
    name: str, rows: Rows, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoder(CONFIGS[name])
    assert isinstance(model.steps, CompiledSteps)
    situation, everyone = Situation(model, rows, block), list(range(len(rows)))
    visual, extra = torch.tensor([0]), [torch.ones(1, HIDDEN)]
    for capture in (0, 1, 2):
        options = {"capture": capture, "deepstack": extra, "visual": visual}
        ours = situation.run(everyone, **options)
        with monkeypatch.context() as patch:
            patch.setattr(model, "steps", OperatorSteps(model.stack, cpu_attention))
            theirs = situation.run(everyone, **options)
        for mine, other in zip((*ours[:2], *ours[2]), (*theirs[:2], *theirs[2]), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cpu-bf16", marks=needs_bf16)])
@pytest.mark.parametrize("block", [BLOCK, 16])
@pytest.mark.parametrize(
    "name", ["two_queries_a_key", "three_large_queries_a_key", "biases_and_no_norms_of_heads"]
)
def test_a_row_has_the_same_bits_in_any_batch(name: str, block: int, backend: str) -> None:
    """Alone, with others, with prompts, on one thread or two: also the split of few tokens' heads."""
    rows = [(cached, 1) for cached in (0, 3, 17, 64, 100, 101, 33, 8)] + [(0, 9), (12, 5)]
    model = decoder(CONFIGS[name], halves=backend != "cpu", backend=backend)
    situation = Situation(model, rows, block)
    alone = [situation.run([i])[0][0] for i in range(8)]
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for picked in ([0, 1], [7, 2, 4], list(range(8)), [3, 8, 5, 9], [6, 4, 9]):
                hidden, end = situation.run(picked)[0], 0
                for i in picked:
                    end += rows[i][1]
                    if i < 8:
                        assert torch.equal(hidden[end - 1], alone[i])
    finally:
        torch.set_num_threads(1)


@needs_bf16
@pytest.mark.parametrize("name", CONFIGS)
def test_in_bf16_it_is_near_what_fp32_computes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """And says that it is not the same."""
    rows, everyone = [(40, 1), (0, 37), (8, 1), (5, 6)], [0, 1, 2, 3]
    caplog.set_level("INFO", "antiphon.nn.backends")
    with_bf16 = decoder(CONFIGS[name], halves=True, backend="cpu-bf16")
    assert "2 layers whose weights are stored in bf16 are multiplied in it" in caplog.text
    whole = Situation(decoder(CONFIGS[name], halves=True), rows, 16).run(everyone)[0]
    hidden = Situation(with_bf16, rows, 16).run(everyone)[0]
    apart = (hidden - whole).norm(dim=1) / whole.norm(dim=1)
    assert 1e-5 < float(apart.min()) < float(apart.max()) < 1e-2


@needs_bf16
def test_what_is_stored_in_fp32_is_computed_in_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "antiphon.nn.backends")
    rows, config = [(40, 1), (0, 37)], CONFIGS["two_queries_a_key"]
    whole = Situation(decoder(config), rows, 16).run([0, 1])[0]
    assert torch.equal(Situation(decoder(config, backend="cpu-bf16"), rows, 16).run([0, 1])[0], whole)
    assert not caplog.text


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["two_queries_a_key", "mixture"])
def test_tokens_that_nobody_wants_change_nothing(name: str, compiled: bool) -> None:
    """Their keys and values are written all the same; and steps before and after are whole."""
    situation = Situation(decoder(CONFIGS[name]), [(40, 1), (0, 7), (8, 1), (5, 6)], 16)
    if not compiled:
        situation.model.steps = OperatorSteps(situation.model.stack, cpu_attention)
    everyone, last = [0, 1, 2, 3], torch.tensor([0, 7, 8, 14])
    visual, extra = torch.tensor([0, 9]), torch.ones(2, HIDDEN)
    for capture, deepstack in ((None, []), (1, [extra]), (2, []), (0, [extra, extra])):
        options = {"capture": capture, "deepstack": deepstack, "visual": visual}
        whole, captured, pages = situation.run(everyone, **options)
        for wanted in (last, last[2:], torch.tensor([14, 0]), last[:0], torch.arange(15)):
            hidden, narrow, after = situation.run(everyone, wanted=wanted, **options)
            torch.testing.assert_close(hidden, whole[wanted], rtol=1e-5, atol=1e-5)
            for mine, other in zip(after, pages, strict=True):
                assert torch.equal(mine, other)
            if captured is not None:
                assert narrow is not None
                torch.testing.assert_close(narrow, captured, rtol=0, atol=0)
        again, _, _ = situation.run(everyone, **options)
        assert torch.equal(again, whole)


@pytest.mark.parametrize("rows", [1, SCORED, SCORED + 1])
def test_scores_are_the_heads(rows: int) -> None:
    """Made on the way or not; once, and of no other step's hidden states."""
    head = torch.randn(96, HIDDEN, generator=torch.Generator().manual_seed(2))
    model = decoder(CONFIGS["two_queries_a_key"], head)
    situation = Situation(model, [(5, 1)] * rows, 16)
    hidden = situation.run(list(range(rows)))[0]
    expected = hidden @ head.t()
    for _ in range(2):
        torch.testing.assert_close(model.logits(hidden), expected, rtol=1e-4, atol=1e-4)
    later = situation.run([0])[0]
    torch.testing.assert_close(model.logits(hidden), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.logits(later), later @ head.t(), rtol=1e-4, atol=1e-4)


def test_what_it_is_given_stays_as_it_was() -> None:
    situation = Situation(decoder(CONFIGS["two_queries_a_key"]), [(5, 1), (6, 1)])
    before = situation.x.clone()
    situation.run([0, 1])
    assert torch.equal(situation.x, before)


def test_a_token_that_is_not_a_number_spoils_its_own_row_only() -> None:
    situation = Situation(decoder(CONFIGS["two_queries_a_key"]), [(5, 1), (6, 1)])
    good = situation.run([0, 1])[0]
    situation.x[0] = torch.nan
    hidden = situation.run([0, 1])[0]
    assert hidden[0].isnan().all()
    assert torch.equal(hidden[1], good[1])


def test_steps_of_any_size_after_each_other() -> None:
    """Buffers grow with a step and stay; whoever runs next finds nothing of it."""
    rows = [(0, 40), (9, 1), (3, 1), (0, 100), (20, 1)]
    situation = Situation(decoder(CONFIGS["two_queries_a_key"]), rows, 16)
    alone = {i: Situation(decoder(CONFIGS["two_queries_a_key"]), rows, 16).run([i])[0] for i in range(5)}
    for picked in ([1], [0], [1, 2], [3], [2, 4, 1], [0, 3], [1]):
        hidden = situation.run(picked)[0].split([rows[i][1] for i in picked])
        for i, mine in zip(picked, hidden, strict=True):
            torch.testing.assert_close(mine, alone[i], rtol=1e-4, atol=2e-5)


def test_the_same_decoder_inside_and_outside_of_inference() -> None:
    situation = Situation(decoder(CONFIGS["mixture"]), [(5, 1), (6, 1)])
    inside = situation.run([0, 1])[0]
    batch = PagedBatch.build([1, 1], [5, 6], situation.tables, BLOCK)
    pages = [(keys.clone(), values.clone()) for keys, values in situation.pages]
    outside = situation.model.forward(StepInputs(situation.x, torch.tensor([5, 6]), over(pages, batch)))[0]
    assert torch.equal(inside, outside)


def test_memory_is_not_given_back_before_its_last_use() -> None:
    """What is given back is overwritten at once here, or no more this process's."""
    asked = f"{__file__}::test_it_computes_what_the_operators_do"
    told = {"MALLOC_PERTURB_": "165", "MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TOP_PAD_": "0"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", asked, "-k", "queries and 16"],
        env={**os.environ, **told},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout.decode()[-2000:]


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cpu-bf16", marks=needs_bf16)])
def test_rows_that_fill_a_tile_change_nothing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list(range(1, 34))
    model = decoder(CONFIGS["two_queries_a_key"], halves=True, backend=backend)
    found = [Situation(model, [(5, new)]).run([0]) for new in sizes]
    with monkeypatch.context() as patch:
        patch.setattr(steps, "filled", lambda rows: rows)
        model = decoder(CONFIGS["two_queries_a_key"], halves=True, backend=backend)
        expected = [Situation(model, [(5, new)]).run([0]) for new in sizes]
    for mine, other in zip(found, expected, strict=True):
        for ours, theirs in zip((mine[0], *mine[2]), (other[0], *other[2]), strict=True):
            assert torch.equal(ours, theirs)


def test_products_compute_no_fewer_rows_than_there_are_and_no_more_than_there_is_room_for() -> None:
    for rows in range(130):
        room = max(steps.LEAST_ROOM, 1 << (rows - 1).bit_length() if rows else 0)
        assert rows <= filled(rows) <= room
        assert filled(rows) == filled(filled(rows))
