"""Prompts are cut to the time of a step: as much as fits, never nothing, and a small piece first."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.core.facts import NO_INTS, Ints
from antiphon.core.plans import ArStep, ints
from antiphon.latency.costs import ProfiledCodec, ProfiledDecoder
from antiphon.latency.cutting import LEAST_SHARE, LEAST_TOKENS, within
from antiphon.latency.ladder import Ladder
from antiphon.latency.models import ArModel, AttentionModel, CodecModel
from antiphon.latency.observed import EVERY, FIRST_TOKENS, GROWTH, WINDOW, ObservedSteps
from antiphon.policy.base import Budget, StepCost, granted
from fakes.readings import bounded

SECONDS = st.floats(0, 0.01)
ROWS = st.lists(st.tuples(st.integers(0, 3000) | st.just(1), st.integers(0, 9000)), max_size=12)


@st.composite
def models(draw: st.DrawFn) -> ArModel:
    knots = sorted(draw(st.sets(st.integers(1, 2000), min_size=1, max_size=5)))
    values = np.cumsum(draw(st.lists(SECONDS, min_size=len(knots), max_size=len(knots)))).tolist()
    dense = Ladder(tuple(knots), tuple(values))
    attention = AttentionModel(draw(st.floats(0, 1e-7)), draw(st.floats(0, 1e-4)), draw(st.floats(0, 1e-3)))
    head = Ladder((1, 64), (1e-4, 1e-3))
    return ArModel(draw(st.integers(1, 40)), dense, head, attention, draw(st.floats(0, 1e-8)), step_s=0.001)


def observed() -> tuple[ObservedSteps, list[tuple[int, float]]]:
    """Of a machine that takes 4 ms a step, 1 ms a token, and a little for what is attended to; with the
    prompts' tokens and the seconds of its steps that had any."""
    rng, none = np.random.default_rng(3), NO_INTS
    model, prompts = ObservedSteps(is_decoder=True), list[tuple[int, float]]()
    for number in range(200):
        rows = int(rng.integers(1, 16))
        counts, starts = np.ones(rows, np.int64), rng.integers(1, 4000, rows)
        if number % 3 == 0:
            counts[0], starts[0] = rng.integers(2, 1000), rng.integers(0, 2000)
        at = np.arange(rows)
        model.ordered(ArStep("t", number, (), none, (), none, none, at, starts, counts, np.ones_like(at), ""))
        load = int((counts * starts + counts * (counts + 1) // 2).sum())
        took_s = 0.004 + 1e-3 * int(counts.sum()) + 1e-8 * load
        model.reported(number, took_s)
        if number % 3 == 0:
            prompts.append((int(counts[0]), took_s))
    assert len(prompts) < WINDOW + EVERY, "all of them count"
    return model, prompts


OBSERVED, PROMPTS = observed()


def extrapolated_s(tokens: int) -> float:
    """What so many tokens of prompts take at least by what was reported, whatever the fit says."""
    if tokens > GROWTH * max(tokens for tokens, _ in PROMPTS):
        return inf
    return tokens * min(took_s / tokens for tokens, took_s in PROMPTS)


def check(
    cost: StepCost,
    rows: list[tuple[int, int]],
    bound_s: float,
    least_s: Callable[[int], float] = lambda _: 0.0,
) -> None:
    """least_s: what so many tokens of prompts take at least."""
    counts, contexts = ints([count for count, _ in rows]), ints([start for _, start in rows])
    asked = counts.copy()
    cut = cost.within(bounded(bound_s), counts, contexts)
    assert cut is not None
    assert (counts == asked).all(), "what was asked is another's"

    def seconds(counts: Ints) -> float:
        runs = counts > 0
        prompt_tokens = int(counts[counts > 1].sum())
        return max(cost.seconds(counts[runs], contexts[runs]), least_s(prompt_tokens))

    prompts = counts > 1
    assert (cut[~prompts] == counts[~prompts]).all()
    assert (cut <= counts).all()
    if not prompts.any():
        return
    least = np.where(prompts, 0, counts)
    first = int(prompts.argmax())
    least[first] = min(counts[first], LEAST_TOKENS)
    allowed_s = max(bound_s, seconds(least) / (1 - LEAST_SHARE))
    assert seconds(cut) <= allowed_s * (1 + 1e-9)
    assert cut[first] > 1, "a prompt makes progress"
    assert not (cut[prompts] == 1).any()
    assert not (counts - cut == 1).any(), "no token is left alone"
    short = (cut < counts).nonzero()[0]
    if len(short):
        first = int(short[0])
        assert not cut[first + 1 :][prompts[first + 1 :]].any(), "in their order"
        more = cut.copy()
        more[first] = min(int(cut[first] * 17 / 16) + 3, counts[first])
        assert seconds(more) > allowed_s * (1 - 1e-9), "as much as fits"


@given(models(), ROWS, st.floats(0, 3))
def test_a_step_takes_no_longer_by_a_profile(
    model: ArModel, rows: list[tuple[int, int]], bound_s: float
) -> None:
    check(ProfiledDecoder(model), rows, bound_s)


@given(ROWS, st.floats(0, 3))
@example([(1, 5), (8000, 0), (3, 0)], 0.2)
@example([(8000, 0)], 0.0)
def test_a_step_takes_no_longer_by_what_was_reported(rows: list[tuple[int, int]], bound_s: float) -> None:
    check(OBSERVED, rows, bound_s, extrapolated_s)


def test_a_prompt_gets_its_share_of_a_step_that_others_fill() -> None:
    cut = OBSERVED.within(bounded(0.05), ints([1] * 100 + [500]), ints([0] * 101))
    assert cut is not None
    assert 20 <= cut[-1] <= 30, "a fifth of 130 ms, at 1 ms a token"


def test_a_prompt_does_not_crawl_where_the_bound_is_below_its_fixed_cost() -> None:
    """A step of a prompt takes 300 ms, and a millisecond a token; the bound is 50 ms."""
    dense, head = Ladder((1, 2, 1002), (1e-3, 0.3, 1.3)), Ladder((1, 64), (0.0, 0.0))
    cost = ProfiledDecoder(ArModel(1, dense, head, AttentionModel(0.0, 0.0, 0.0), 0.0, step_s=0.0))
    cut = cost.within(bounded(0.05), ints([1, 900]), ints([5, 0]))
    assert cut is not None
    assert 70 <= cut[1] <= 78, "a quarter of 300 ms"


def dear() -> ProfiledDecoder:
    """A step of a prompt takes 300 ms, and a millisecond a token."""
    dense, head = Ladder((1, 2, 2002), (1e-3, 0.3, 2.3)), Ladder((1, 64), (0.0, 0.0))
    return ProfiledDecoder(ArModel(1, dense, head, AttentionModel(0.0, 0.0, 0.0), 0.0, step_s=0.0))


@pytest.mark.parametrize(
    ("unread_s", "fewest", "most"), [(0.0, 0, 0), (5.9, 0, 0), (6.1, 850, 910), (inf, 850, 910)]
)
def test_a_piece_that_is_worth_its_fixed_cost_waits_until_it_is_a_fifth_of_the_time(
    unread_s: float, fewest: int, most: int
) -> None:
    cut = dear().within(bounded(0.05, unread_s), ints([1, 1800]), ints([5, 0]))
    assert cut is not None
    assert cut[0] == 1
    assert fewest <= cut[1] <= most, "four times 300 ms"


def test_what_is_left_of_a_prompt_waits_no_longer_than_for_itself() -> None:
    asked = ints([1, 100]), ints([5, 0])
    for unread_s, tokens in ((1.9, 0), (2.1, 100)):
        cut = dear().within(bounded(0.05, unread_s), *asked)
        assert cut is not None
        assert cut.tolist() == [1, tokens], "of 400 ms"
    cut = dear().within(bounded(0.41, 0.0), *asked)
    assert cut is not None
    assert cut.tolist() == [1, 100], "there is time for it"


def test_rows_that_take_long_alone_leave_a_prompt_a_fifth_of_the_time() -> None:
    for unread_s, fewest, most in ((0.005, 0, 0), (0.125, 20, 26), (9.0, 20, 26)):
        cut = OBSERVED.within(bounded(0.05, unread_s), ints([1] * 100 + [500]), ints([0] * 101))
        assert cut is not None
        assert fewest <= cut[-1] <= most, "a fifth of 130 ms, at 1 ms a token"


@given(models(), ROWS, st.floats(0, 3), st.floats(0, 9))
def test_prompts_get_what_fits_or_what_they_are_owed_or_nothing(
    model: ArModel, rows: list[tuple[int, int]], bound_s: float, unread_s: float
) -> None:
    cost = ProfiledDecoder(model)
    counts, contexts = ints([count for count, _ in rows]), ints([start for _, start in rows])
    cut = cost.within(bounded(bound_s, unread_s), counts, contexts)
    assert cut is not None

    def seconds(counts: Ints) -> float:
        runs = counts > 0
        return cost.seconds(counts[runs], contexts[runs])

    prompts = counts > 1
    assert (cut[~prompts] == counts[~prompts]).all()
    assert (cut <= counts).all()
    if not prompts.any():
        return
    first = int(prompts.argmax())
    whole = np.where(prompts, 0, counts)
    owed_s = seconds(whole) + LEAST_SHARE * unread_s
    whole[first] = counts[first]
    assert seconds(cut) <= max(bound_s, owed_s, seconds(np.where(prompts, 0, counts))) * (1 + 1e-9)
    if not cut[prompts].any():
        assert max(bound_s, owed_s) < seconds(whole), "there is no time for the first of them"
    at_last = cost.within(bounded(bound_s, inf), counts, contexts)
    assert at_last is not None
    assert at_last[first] > 1


def test_a_few_tokens_do_not_tell_the_fixed_cost_of_many() -> None:
    """Up to 16 tokens take 5 ms, and 17 take 37 ms."""
    dense, head = Ladder((1, 16, 17, 1024), (5e-3, 5e-3, 37e-3, 0.17)), Ladder((1, 64), (0.0, 0.0))
    cost = ProfiledDecoder(ArModel(1, dense, head, AttentionModel(0.0, 0.0, 0.0), 0.0, step_s=0.0))
    for unread_s, fewest, most in ((0.4, 0, 0), (0.8, 600, 800)):
        cut = cost.within(bounded(0.05, unread_s), ints([1, 1000]), ints([5, 0]))
        assert cut is not None
        assert fewest <= cut[1] <= most


def test_nothing_is_cut_without_a_model_of_times() -> None:
    counts, contexts = ints([1, 900]), ints([5, 0])
    assert within(lambda _: nan, bounded(0.01), counts, contexts) is None
    assert granted(Budget(500, 8, 0.01), None, counts, contexts).tolist() == [1, 499]


def test_the_first_piece_beside_others_is_small() -> None:
    none = ObservedSteps(is_decoder=True)
    counts, contexts = ints([1, 900]), ints([5, 0])
    first = granted(Budget(500, 8, 0.01), none, counts, contexts)
    assert 0.9 * FIRST_TOKENS <= first[1] <= FIRST_TOKENS
    assert first[0] == 1
    assert granted(Budget(500, 8), none, counts, contexts).tolist() == [1, 499], "nobody lives beside it"


def test_frames_of_a_codec_are_not_cut() -> None:
    counts = ints([4, 4])
    for cost in (ProfiledCodec(CodecModel(step_s=9.0)), ObservedSteps(is_decoder=False)):
        assert cost.within(bounded(0.001), counts, NO_INTS) is counts


def test_what_is_granted_keeps_to_tokens_rows_and_seconds() -> None:
    counts, contexts = ints([1, 900, 1, 1]), ints([5, 0, 5, 5])
    assert granted(Budget(500, 3), OBSERVED, counts, contexts).tolist() == [1, 499, 0, 0]
    assert granted(Budget(902, 3), OBSERVED, counts, contexts).tolist() == [1, 900, 1, 0]
    timely = granted(Budget(500, 3, 0.1), OBSERVED, counts, contexts)
    assert 80 < timely[1] < 100
    assert timely[[0, 2, 3]].tolist() == [1, 1, 0], "what a prompt gives up, replies may have"
    assert granted(Budget(8, 8, inf), None, NO_INTS, NO_INTS).tolist() == []
    assert granted(Budget(8, 8, nan), None, ints([4]), ints([0])).tolist() == [4]
