"""A growing column equals the list it was made of, and its views stay as they were."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antiphon.stage.growing import GrowingInts

INTS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20)


@given(INTS, st.lists(INTS, max_size=8))
def test_it_is_what_was_appended_and_views_stay(first: list[int], more: list[list[int]]) -> None:
    given_keys = np.array(first, np.int64)
    column, whole = GrowingInts(given_keys), list(first)
    views = [(column.view, list(whole))]
    for values in more:
        column.extend(values)
        whole += values
        views.append((column.view, list(whole)))
    assert len(column) == len(whole)
    for view, expected in views:
        assert view.tolist() == expected
    assert given_keys.tolist() == first
