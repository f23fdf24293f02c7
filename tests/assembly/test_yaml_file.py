"""YAML that operators write: what is refused, and on which line."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from antiphon.assembly import yaml_file
from antiphon.assembly.yaml_file import check_plain, child, parse, spaced
from antiphon.core.errors import ConfigError


def test_values_have_their_lines() -> None:
    found, node = parse("a: 1\nb:\n  c: [x, y]\n  d -> e: 2\n", "file", "a mapping")
    assert found == {"a": 1, "b": {"c": ["x", "y"], "d -> e": 2}}
    line, inner = child(node, "b") or (0, None)
    assert line == 2
    line, places = child(inner, "c") or (0, None)
    assert line == 3
    assert (child(places, "1") or (0, None))[0] == 3
    assert [child(places, part) for part in ("2", "x")] == [None, None]
    assert (child(inner, "d -> e") or (0, None))[0] == 4
    assert [child(node, "z"), child((child(node, "a") or (0, None))[1], "b")] == [None, None]


def test_arrows_are_spaced() -> None:
    assert [spaced(name) for name in ("a->b", "a  -> b", "ab", 3)] == ["a -> b", "a -> b", "ab", 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "file: a mapping; this is not"),
        ("", "file: a mapping; this is not"),
        ("a: [1\nb: 2\n", "file:2: not valid YAML"),
        ("a: 1\na: 2\n", "file:2: a is there twice"),
        ("x:\n  a->b: 1\n  a -> b: 2\n", "file:3: a -> b is there twice"),
        ("x:\n  1: 2\n", "file:2: a key must be text, and '1' is not"),
        ("? [a]\n: 1\n", "file:1: a key must be text, and 'it' is not"),
        ("a: 2001-99-99\n", "file: not valid YAML: month must be in 1..12"),
        ("[" * 4000, "nested too deep"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "file", "a mapping")
    assert said in str(caught.value)


def test_aliases_that_blow_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "MAX_NODES", 40)
    text = "a: &a [1, 2, 3, 4]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n"
    with pytest.raises(ConfigError, match="over 40 values with its aliases"):
        parse(text, "file", "a mapping")


def test_merged_keys_are_yaml() -> None:
    assert parse("a: &a {x: 1}\nb: {<<: *a, y: 2}\n", "file", "")[0]["b"] == {"x": 1, "y": 2}


def test_what_a_record_can_hold_is_plain() -> None:
    check_plain("it", {"a": [1, 2.5, None, True, "text"], "b": {"c": -(1 << 63)}})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [date(2026, 1, 1)]}, "it.a[0] is a date, which no record can hold; put it in quotes"),
        ({"a": float("nan")}, "it.a is nan"),
        ([1 << 63], "it[0] is a number of over 64 bits"),
        ("\ud800", "which is not text"),
        ({"\ud800": 1}, "which is not text"),
    ],
)
def test_what_a_record_cannot_hold(value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_plain("it", value)
    assert said in str(caught.value)
