"""Stop strings: found across every cut, and never shown, not even in part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.wire.stopping import StopStrings


def written(text: str, stops: tuple[str, ...], size: int = 1, after: int = 0) -> tuple[str, bool]:
    """Pushed in pieces of `size` characters, each a token."""
    found = StopStrings(stops, after)
    out = "".join(found.push(text[at : at + size], at // size + 1) for at in range(0, len(text), size))
    return out + found.flush(), found.is_found


@pytest.mark.parametrize(
    ("text", "stops", "want"),
    [
        ("one\n\ntwo", ("\n\n",), "one"),
        ("aab", ("ab",), "a"),
        ("aaab", ("aab",), "a"),
        ("abcd", ("bcd", "c"), "ab"),
        ("abc", ("c", "bc"), "a"),
        ("stop", ("stop",), ""),
        ("no en", ("end", "en!"), "no en"),
        ("abab", ("abac",), "abab"),
        ("xyxyz", ("xyz",), "xy"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 99])
def test_the_text_ends_before_it(text: str, stops: tuple[str, ...], want: str, size: int) -> None:
    assert written(text, stops, size) == (want, any(stop in text for stop in stops))


@given(
    st.text("abc", max_size=24),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(1, 5), max_size=24),
)
def test_however_it_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    found = StopStrings(tuple(stops))
    pieces, at = [], 0
    for size in [*cuts, len(text) + 1]:
        pieces.append(found.push(text[at : at + size], 1))
        at += size
        assert not any(stop in "".join(pieces) for stop in stops), "nothing leaks"
    whole = "".join(pieces) + found.flush()
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert found.is_found == bool(ends)
    if ends:
        starts = [min(ends) - len(stop) for stop in stops if text[: min(ends)].endswith(stop)]
        assert whole == text[: min(starts)]
    else:
        assert whole == text


def test_the_first_tokens_are_not_looked_at() -> None:
    assert written("abab", ("a",), after=2) == ("ab", True)
    assert written("abab", ("ba",), after=2) == ("abab", False), "what has gone out is not part of any"
