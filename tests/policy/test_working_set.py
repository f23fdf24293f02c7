"""Who is on the device for an interval: what is chosen fits, and is worth no less than the greedy choice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.plans import ints
from antiphon.policy.base import Tier
from antiphon.policy.working_set import Gains, Numbers, by_age, by_gain, chosen_of
from policy.views import stage

NUMBERS = st.lists(st.integers(0, 40), unique=True, max_size=12)


@given(NUMBERS, st.lists(st.integers(0, 40), max_size=12))
def test_places_are_those_of_a_search(order: list[int], asked: list[int]) -> None:
    expected = [order.index(one) if one in order else -1 for one in asked]
    assert Numbers(ints(order)).places(ints(asked)).tolist() == expected


def test_the_oldest_first_and_among_equal_gains_whose_reader_has_begun() -> None:
    view = stage(4, 4, age_s=[1.0, 3.0, 2.0, 9.0], begun=np.array([False, False, True, False]))
    among = np.array([True, True, True, False])
    gains = Gains(np.array([1.0, 1.0, 1.0, 5.0]), ints([1] * 4))
    assert by_age(view, among).tolist() == [1, 2, 0]
    assert by_gain(view, among, gains).tolist() == [2, 1, 0]
    view.tier[1] = Tier.BEST_EFFORT
    assert by_age(view, among).tolist() == [2, 0, 1], "people first"


@given(st.data())
def test_what_is_chosen_fits_and_swaps_lose_nothing(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    num_rows = data.draw(st.integers(0, size))
    blocks = ints(data.draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)))
    gain = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size)), np.float64)
    gains = Gains(gain, blocks)
    num_blocks, num_free_rows = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 6))
    view = stage(num_rows, size, num_blocks=num_blocks, num_free_rows=num_free_rows)
    fixed = np.zeros(size, np.bool_)
    rank = by_gain(view, ~fixed, gains)
    greedy = chosen_of(view, fixed, rank, gains, swaps=False)
    swapped = chosen_of(view, fixed, rank, gains, swaps=True)
    for chosen in (greedy, swapped):
        assert int(blocks[chosen].sum()) <= num_blocks
        assert int(np.count_nonzero(chosen)) <= num_rows + num_free_rows
    assert gain[swapped].sum() >= gain[greedy].sum()


def test_what_was_too_large_takes_the_place_of_what_is_worth_less() -> None:
    view = stage(3, 3, num_blocks=10)
    gains = Gains(np.array([9.0, 5.0, 1.0]), ints([6, 7, 2]))
    nobody = np.zeros(3, np.bool_)
    rank = by_gain(view, ~nobody, gains)
    assert chosen_of(view, nobody, rank, gains, swaps=False).tolist() == [True, False, True]
    gains = Gains(np.array([9.0, 5.0, 1.0]), ints([6, 4, 5]))
    assert chosen_of(view, nobody, ints([0, 2, 1]), gains, swaps=True).tolist() == [True, True, False]


def test_who_keeps_a_row_counts_before_all_others() -> None:
    view = stage(1, 3, num_blocks=8, num_free_rows=1)
    gains = Gains(np.array([0.0, 5.0, 9.0]), ints([5, 3, 4]))
    fixed = np.array([True, False, False])
    assert chosen_of(view, fixed, ints([2, 1]), gains, swaps=True).tolist() == [True, True, False]
