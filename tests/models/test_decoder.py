"""The decoder against transformers' text model in fp64: prefill, capture, deepstack, paged decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from antiphon.models.qwen3_omni.family import FAMILY
from antiphon.nn.attention import LayerKv, PagedBatch, over
from antiphon.nn.step import StepInputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from antiphon.models.decoder_stage import Thinker
    from antiphon.models.qwen3_omni.config import Qwen3OmniConfig

BLOCK = 4
Rows = list[tuple[int, int]]  # (tokens of the sequence that are cached, tokens of this step)


def inputs(n: int, hidden: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tables(lengths: Sequence[int]) -> list[list[int]]:
    """Interleaved block tables, so that no sequence's blocks lie side by side."""
    count = len(lengths)
    return [[row + count * i for i in range(-(-length // BLOCK))] for row, length in enumerate(lengths)]


def whole(thinker: Thinker, x: torch.Tensor, positions: torch.Tensor, **options: Any) -> Any:
    """One sequence in one step."""
    n = len(x)
    batch = PagedBatch.build([n], [0], tables([n]), BLOCK)
    pages = thinker.decoder.new_pages(64, BLOCK)
    return thinker.decoder.forward(StepInputs(x, positions, over(pages, batch), **options))


def test_prefill_equals_transformers_hidden_states(reference: Any, thinker: Thinker) -> None:
    n, hidden = 23, thinker.decoder.config.hidden_size
    x, visual = inputs(n, hidden), torch.tensor([3, 4, 5, 6, 11, 12])
    deepstack = [inputs(len(visual), hidden, seed) for seed in (1, 2)]
    positions = torch.randint(0, 50, (3, n), generator=torch.Generator().manual_seed(3))
    mask = torch.zeros(1, n, dtype=torch.bool)
    mask[0, visual] = True
    theirs = reference.thinker.model.language_model(
        inputs_embeds=x[None],
        position_ids=positions[:, None],
        visual_pos_masks=mask,
        deepstack_visual_embeds=deepstack,
        output_hidden_states=True,
    )
    for capture in range(len(thinker.decoder.layers) + 1):
        ours, captured = whole(thinker, x, positions, capture=capture, deepstack=deepstack, visual=visual)
        torch.testing.assert_close(ours, theirs.last_hidden_state[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(captured, theirs.hidden_states[capture][0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("step", [1, 3, 7])
def test_chunked_prefill_and_decoding_equal_one_prefill(thinker: Thinker, step: int) -> None:
    n = 21
    x, positions = inputs(n, thinker.decoder.config.hidden_size), torch.arange(n)
    expected, _ = whole(thinker, x, positions)
    pages = thinker.decoder.new_pages(64, BLOCK)
    for start in range(0, n, step):
        part = slice(start, start + step)
        batch = PagedBatch.build([step], [start], tables([n]), BLOCK)
        out, _ = thinker.decoder.forward(StepInputs(x[part], positions[part], over(pages, batch)))
        torch.testing.assert_close(out, expected[part], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "steps",
    [
        [[(0, 5), (0, 1), (0, 9)], [(5, 1), (1, 1), (9, 1)], [(6, 1), (2, 1), (10, 1)]],
        [[(0, 4), (0, 7)], [(4, 1), (7, 6), (0, 3)], [(5, 1), (13, 1), (3, 1)], [(6, 5), (14, 1), (4, 2)]],
    ],
    ids=["decode together", "mixed"],
)
def test_batched_equals_alone(thinker: Thinker, steps: list[Rows]) -> None:
    lengths = [18, 18, 18]
    xs = [inputs(n, thinker.decoder.config.hidden_size, seed) for seed, n in enumerate(lengths)]
    alone = [whole(thinker, x, torch.arange(len(x)))[0] for x in xs]
    pages = thinker.decoder.new_pages(64, BLOCK)
    for rows in steps:
        parts = [slice(cached, cached + new) for cached, new in rows]
        x = torch.cat([xs[i][part] for i, part in enumerate(parts)])
        positions = torch.cat([torch.arange(part.start, part.stop) for part in parts])
        batch = PagedBatch.build([n for _, n in rows], [c for c, _ in rows], tables(lengths), BLOCK)
        out, _ = thinker.decoder.forward(StepInputs(x, positions, over(pages, batch)))
        expected = torch.cat([alone[i][part] for i, part in enumerate(parts)])
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_thinker_embeds_and_scores_as_transformers(reference: Any, thinker: Thinker) -> None:
    ids = torch.randint(0, thinker.vocab_size, (1, 12), generator=torch.Generator().manual_seed(0))
    theirs = reference.thinker(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    n = ids.shape[1]
    batch = PagedBatch.build([n], [0], tables([n]), BLOCK)
    pages = thinker.decoder.new_pages(8, BLOCK)
    step = StepInputs(thinker.embed(ids[0]), torch.arange(n), over(pages, batch))
    hidden, captured = thinker.decoder.forward(step)
    assert captured is None
    assert torch.equal(thinker.decoder.logits(hidden), theirs.float())


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-4), (torch.bfloat16, 0.3)])
def test_other_types_come_close(
    thinker: Thinker,
    config: Qwen3OmniConfig,
    tensors: dict[str, torch.Tensor],
    dtype: torch.dtype,
    atol: float,
) -> None:
    other = FAMILY.load("thinker", tensors, config, dtype=dtype)
    x = inputs(12, thinker.decoder.config.hidden_size)
    visual, deepstack = torch.tensor([2, 3]), [inputs(2, thinker.decoder.config.hidden_size, seed=1)]
    expected, _ = whole(thinker, x, torch.arange(12), deepstack=deepstack, visual=visual)
    hidden, _ = whole(other, x.to(dtype), torch.arange(12), deepstack=deepstack, visual=visual)
    assert hidden.dtype is dtype
    logits = other.decoder.logits(hidden)
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits, thinker.decoder.logits(expected), rtol=0, atol=atol)


@pytest.mark.parametrize("groups", [[0, 0, 1, 1], [0, 1, 2, 3]])
def test_each_layer_reads_through_its_own_table(thinker: Thinker, groups: list[int]) -> None:
    """Prefill, a mixed chunk and decoding, with other blocks in every group of layers."""
    xs = [inputs(18, thinker.decoder.config.hidden_size, seed) for seed in range(3)]
    alone = [whole(thinker, x, torch.arange(18))[0] for x in xs]
    pages = thinker.decoder.new_pages(64, BLOCK)
    generators = [torch.Generator().manual_seed(group) for group in (0, 1)]
    dealt = [torch.randperm(60, generator=generator).view(-1, 5)[:3] for generator in generators]
    dealt += [group.flip(0) for group in dealt]
    for rows in [[(0, 4), (0, 7)], [(4, 1), (7, 6), (0, 3)], [(5, 1), (13, 1), (3, 1)]]:
        parts = [slice(cached, cached + new) for cached, new in rows]
        first = PagedBatch.build([n for _, n in rows], [c for c, _ in rows], dealt[0].tolist(), BLOCK)
        batches = [first, *(first.retabled(group.tolist()) for group in dealt[1:])]
        kv = [LayerKv(*page, batches[group]) for page, group in zip(pages, groups, strict=True)]
        x = torch.cat([xs[i][part] for i, part in enumerate(parts)])
        positions = torch.cat([torch.arange(part.start, part.stop) for part in parts])
        out, _ = thinker.decoder.forward(StepInputs(x, positions, kv))
        expected = torch.cat([alone[i][part] for i, part in enumerate(parts)])
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
