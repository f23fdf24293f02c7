"""The sampler keeps what transformers' processors and warpers keep, with the same probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from antiphon.core.plans import ints
from antiphon.core.sampling import Guide, Sampling
from antiphon.engine.sampler import (
    PREDICTOR_TOP_K,
    PREDICTOR_TOP_P,
    Cuts,
    PredictorSampler,
    Sampler,
    biases,
    penalise,
    predictor_sampling,
    unwanted,
)

VOCAB = 211


def logits_of(rows: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("top_k", [0, 1, 5, 50, VOCAB, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.8, 0.3, 0.01])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_cuts_are_those_of_the_warpers(temperature: float, top_k: int, top_p: float) -> None:
    logits = logits_of(16)
    want = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        want = TopKLogitsWarper(top_k)(None, want)
    if top_p < 1:
        want = TopPLogitsWarper(top_p)(None, want)
    params = [Sampling(temperature=temperature, top_k=top_k, top_p=top_p)] * 16
    got = Cuts(params, "cpu")(logits)
    assert torch.equal(got.isinf(), want.isinf())
    torch.testing.assert_close(got.softmax(-1), want.softmax(-1))


def test_equals_of_the_kth_stay_as_in_the_reference() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    got = Cuts([Sampling(temperature=1.0, top_k=2)], "cpu")(logits)
    assert torch.equal(got, TopKLogitsWarper(2)(None, logits))


def test_rows_are_cut_each_by_its_own() -> None:
    params = [
        Sampling(temperature=0.5),
        Sampling(temperature=1.0, top_k=3),
        Sampling(temperature=2.0, top_p=0.5),
        Sampling(temperature=1.0, top_k=40, top_p=0.9),
    ]
    logits = logits_of(4)
    together = Cuts(params, "cpu")(logits)
    for row, param in enumerate(params):
        assert torch.equal(together[row], Cuts([param], "cpu")(logits[row : row + 1])[0])


@pytest.mark.parametrize("penalty", [1.05, 1.5, 0.7])
def test_penalty_is_the_processors(penalty: float) -> None:
    logits, ids = logits_of(3), torch.tensor([[3, 5, 5], [0, 1, 210], [7, 7, 7]])
    seen = torch.zeros(3, VOCAB, dtype=torch.bool).scatter_(1, ids, True)
    want = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits)
    assert torch.equal(penalise(logits, seen, torch.full((3, 1), penalty)), want)


def test_greedy_under_penalty_and_suppression_follows_the_processors() -> None:
    """A whole reply, token by token, with the prompt counted as transformers counts it."""
    suppressed = [2, 9, 40]
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[suppressed] = True
    sampler = Sampler(4, VOCAB, 0, mask, torch.device("cpu"))
    prompt = torch.tensor([1, 8, 200])
    sampler.join(2, Sampling(repetition_penalty=1.8), prompt)
    ids = prompt[None]
    for step in range(40):
        logits = logits_of(1, seed=step % 5)
        want = RepetitionPenaltyLogitsProcessor(1.8)(ids, logits)
        want = SuppressTokensLogitsProcessor(suppressed)(ids, want).argmax(-1)
        assert sampler.draw(logits, ints([2])).tolist() == want.tolist()
        ids = torch.cat([ids, want[None]], 1)


def test_a_new_request_on_a_row_starts_anew() -> None:
    fresh, used = (Sampler(2, VOCAB, 0, None, torch.device("cpu")) for _ in range(2))
    sampling = Sampling(temperature=1.0, repetition_penalty=1.3, seed=4)
    used.join(1, sampling, torch.arange(50))
    for step in range(5):
        used.draw(logits_of(1, step), ints([1]))
    for sampler in (fresh, used):
        sampler.join(1, sampling)
    for step in range(10):
        logits = logits_of(1, step)
        assert fresh.draw(logits, ints([1])).tolist() == used.draw(logits, ints([1])).tolist()


def test_one_seed_one_output_whatever_the_batch_and_the_row() -> None:
    mine = Sampling(temperature=0.9, top_k=50, top_p=0.95, repetition_penalty=1.05, seed=99)
    others = [
        Sampling(),
        Sampling(temperature=1.3, seed=1),
        Sampling(temperature=1.0, top_p=0.4, repetition_penalty=2.0, seed=2),
    ]

    def reply(row: int, neighbours: list[int]) -> list[int]:
        sampler = Sampler(8, VOCAB, 1, None, torch.device("cpu"))
        sampler.join(row, mine)
        for neighbour, sampling in zip(neighbours, others, strict=False):
            sampler.join(neighbour, sampling)
        rows = sorted([row, *neighbours])
        at = rows.index(row)
        out = []
        for step in range(30):
            logits = logits_of(len(rows), 1000 + step)
            logits[at] = logits_of(1, step)[0]
            out.append(sampler.draw(logits, ints(rows))[at].item())
        return out

    alone = reply(0, [])
    assert len(set(alone)) > 5
    assert reply(5, []) == reply(3, [0, 7]) == reply(7, [1, 2, 6]) == alone


def test_the_predictor_samples_when_the_talker_does() -> None:
    assert predictor_sampling(Sampling(seed=3)) == Sampling(seed=3)
    hot = predictor_sampling(Sampling(temperature=0.9, top_k=7, repetition_penalty=1.05, seed=3))
    assert hot == Sampling(temperature=1.0, top_k=PREDICTOR_TOP_K, top_p=PREDICTOR_TOP_P, seed=3)
    talker = Sampler(2, VOCAB, 1, None, torch.device("cpu"))
    talker.join(0, Sampling())
    talker.join(1, Sampling(temperature=0.9, seed=3))
    pick = PredictorSampler(talker, ints([0, 1]), 2)
    logits = logits_of(1).repeat(2, 1) / 3
    drawn = np.array([pick(logits, codebook).tolist() for codebook in range(1, 16)])
    assert (drawn[:, 0] == logits[0].argmax().item()).all()
    assert len(set(drawn[:, 1].tolist())) > 3, "codebooks have noise of their own"


def test_a_request_says_how_its_residual_codes_are_drawn() -> None:
    talker = Sampler(3, VOCAB, 1, None, torch.device("cpu"))
    hot = Sampling(temperature=0.9, seed=3)
    talker.join(0, hot, residual=Sampling())
    talker.join(1, Sampling(), residual=Sampling(temperature=1.0, top_k=2, seed=8))
    talker.join(2, hot)
    pick = PredictorSampler(talker, ints([0, 1, 2]), 2)
    logits = logits_of(1).repeat(3, 1) / 3
    drawn = np.array([pick(logits, codebook).tolist() for codebook in range(1, 30)])
    best = logits[0].argsort(descending=True)
    assert (drawn[:, 0] == best[0].item()).all()
    assert set(drawn[:, 1].tolist()) == set(best[:2].tolist())
    assert len(set(drawn[:, 2].tolist())) > 2
    talker.join(1, Sampling())
    again = PredictorSampler(talker, ints([1]), 2)
    assert again(logits[:1], 1).tolist() == [best[0].item()], "the next request begins anew"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_suppressed_ids_are_never_drawn_and_only_in_their_row(temperature: float) -> None:
    model = torch.zeros(VOCAB, dtype=torch.bool)
    logits = logits_of(1).repeat(2, 1)
    best = logits[0].argsort(descending=True).tolist()
    model[best[2]] = True
    mine = Sampling(temperature=temperature, seed=4, suppress=(best[0], best[1], VOCAB + 5))
    free = Sampling(temperature=temperature, seed=4)
    sampler = Sampler(2, VOCAB, 0, model, torch.device("cpu"))
    sampler.join(0, mine)
    sampler.join(1, free)
    drawn = np.array([sampler.draw(logits, ints([0, 1])).tolist() for _ in range(200)])
    assert not set(drawn[:, 0].tolist()) & set(best[:3])
    assert best[0] in drawn[:, 1]
    alone = Sampler(1, VOCAB, 0, model, torch.device("cpu"))
    alone.join(0, mine)
    assert [alone.draw(logits[:1], ints([0])).item() for _ in range(200)] == drawn[:, 0].tolist()


def test_nothing_suppressed_nothing_asked_of_the_device() -> None:
    assert unwanted([Sampling(), Sampling(suppress=(VOCAB,))], VOCAB, "cpu") is None


def test_who_joins_a_row_draws_by_its_own_parameters_from_the_first_draw_on() -> None:
    """What is found out about rows that draw together is kept no longer than they do."""
    sampler = Sampler(2, VOCAB, 0, None, torch.device("cpu"))
    logits, rows = logits_of(1).repeat(2, 1), ints([0, 1])
    best = logits[0].argsort(descending=True).tolist()
    assert sampler.draw(logits.clone(), rows).tolist() == [best[0]] * 2
    sampler.join(1, Sampling(suppress=(best[0],)))
    assert sampler.draw(logits.clone(), rows).tolist() == best[:2]
    assert sampler.draw(logits.clone(), rows[::-1].copy()).tolist() == [best[1], best[0]]
    sampler.join(1, Sampling(repetition_penalty=2.0), torch.tensor(best[:3]))
    assert sampler.draw(logits.clone(), rows)[1] not in best[:3]
    sampler.join(1, Sampling())
    assert sampler.draw(logits.clone(), rows).tolist() == [best[0]] * 2


@pytest.mark.parametrize("top_k", [0, 4])
def test_draws_are_distributed_as_the_reference_says(top_k: int) -> None:
    """Chi-square over a small vocabulary: as many degrees of freedom as kept ids less one."""
    vocab, num_rows, num_draws = 8, 4, 3000
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(1))
    want = TemperatureLogitsWarper(1.3)(None, logits[None])
    if top_k:
        want = TopKLogitsWarper(top_k)(None, want)
    shares = want.softmax(-1)[0].double().numpy()
    sampler = Sampler(num_rows, vocab, 0, None, torch.device("cpu"))
    for row in range(num_rows):
        sampler.join(row, Sampling(temperature=1.3, top_k=top_k, seed=100 + row))
    rows = ints(list(range(num_rows)))
    drawn = torch.cat([sampler.draw(logits.repeat(num_rows, 1), rows) for _ in range(num_draws)])
    counts = torch.bincount(drawn, minlength=vocab).numpy()
    kept = shares > 0
    assert not counts[~kept].any()
    expected = shares[kept] * num_rows * num_draws
    freedom = kept.sum() - 1
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


def test_no_reply_ends_before_it_has_its_least_tokens() -> None:
    stops = (5, 9, VOCAB + 1)
    sampler = Sampler(3, VOCAB, 0, None, torch.device("cpu"), stops)
    sampler.join(0, Sampling(min_tokens=3))
    sampler.join(1, Sampling(min_tokens=3), drawn=2)
    sampler.join(2, Sampling())
    drawn = []
    for _ in range(4):
        logits = torch.zeros(3, VOCAB)
        logits[:, 5], logits[:, 9], logits[:, 7] = 3.0, 2.0, 1.0
        drawn.append(sampler.draw(logits, ints([0, 1, 2])).tolist())
    assert drawn == [[7, 7, 5], [7, 5, 5], [7, 5, 5], [5, 5, 5]]


def test_biases_of_rows_that_stay_are_not_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Sampling] = []

    def counted(param: Sampling, *more: Any) -> Any:
        made.append(param)
        return biases(param, *more)

    monkeypatch.setattr("antiphon.engine.sampler.biases", counted)
    sampler = Sampler(3, VOCAB, 0, None, torch.device("cpu"))
    ways = [Sampling(bias=((token, 9.0), (2, -9.0))) for token in (3, 4, 5)]
    for row, way in enumerate(ways):
        sampler.join(row, way)
    likely = torch.zeros(3, VOCAB)
    likely[:, 2] = 5.0
    assert sampler.draw(likely.clone(), ints([0, 1, 2])).tolist() == [3, 4, 5]
    assert sampler.draw(likely[:2].clone(), ints([2, 0])).tolist() == [5, 3]
    sampler.join(1, Sampling())
    sampler.join(2, Sampling(bias=((VOCAB + 1, 9.0),)))
    assert sampler.draw(likely.clone(), ints([0, 1, 2])).tolist() == [3, 2, 2]
    assert made == ways, "each once"


def test_biases_are_added_before_all_else() -> None:
    """As transformers' sequence bias stands before its penalty."""
    sampler = Sampler(2, VOCAB, 0, None, torch.device("cpu"))
    bias = ((3, 4.0), (8, -100.0), (VOCAB + 5, 9.0))
    sampler.join(0, Sampling(repetition_penalty=1.5, bias=bias), torch.tensor([3]))
    sampler.join(1, Sampling(repetition_penalty=1.5))
    for step in range(30):
        logits = logits_of(2, step)
        want = logits.clone()
        want[0, 3] += 4.0
        want[0, 8] -= 100.0
        seen = sampler._seen.clone()
        want = penalise(want, seen, torch.full((2, 1), 1.5)).argmax(-1)
        assert sampler.draw(logits, ints([0, 1])).tolist() == want.tolist()


def test_a_head_without_guides_refuses_them_and_nobody_else() -> None:
    """Codes of sound are no text."""
    sampler = Sampler(2, 8, 0, None, torch.device("cpu"))
    sampler.join(0, Sampling())
    sampler.join(1, Sampling(guide=Guide("regex", "a")))
    logits = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]).repeat(2, 1)
    assert sampler.draw(logits.clone(), ints([0, 1]))[0].item() == 1
    assert sampler.refused == {1: "this stage follows no guides"}
    assert sampler.draw(logits[:1].clone(), ints([0])).tolist() == [1]
    assert sampler.refused == {}
