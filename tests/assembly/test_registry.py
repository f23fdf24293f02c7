"""Policies by name, dotted path, entry point and file; options with the nearest name where one is wrong."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from antiphon.assembly import registry
from antiphon.assembly.registry import (
    DECISIONS,
    SHIPPED,
    decider,
    digest,
    find_policy,
    is_foreign,
    known_policies,
    make_policy,
    options_of,
    placed,
    policy_label,
)
from antiphon.core.errors import ConfigError, nearest
from antiphon.policy.lru import Lru

OWN = """
from __future__ import annotations
from dataclasses import dataclass
from antiphon.policy.base import NO_HOLD

RUNS = []
RUNS.append(1)
not_a_class = 7

@dataclass
class Own:
    lead_s: float = 2.0
    keep: tuple[str, ...] = ()
    needed: int | None = None
    name = "own"

    def decide(self, view, now):
        return NO_HOLD

class Strict:
    def __init__(self, *, must: int) -> None:
        if must < 0:
            raise ValueError("must is below 0")

    def decide_pace(self, view, now):
        return NO_HOLD

class Mute:
    pass
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py"


def test_every_policy_that_ships_is_made_and_named_as_it_is_registered() -> None:
    for decision, names in SHIPPED.items():
        for name in names:
            made = make_policy(decision, name, {})
            assert made.name == name
            assert decider(made, decision) is not None
            assert not is_foreign(decision, name)
            assert digest(decision, name) == "", "it changes with the version only"


def test_what_decide_must_take_is_said(tmp_path: Path) -> None:
    (tmp_path / "few.py").write_text("class Few:\n    def decide(self, view):\n        return None\n")
    words = r"few.py:Few: `decide\(view\)` must take \(self, view, budget, now\) to decide step"
    with pytest.raises(ConfigError, match=words):
        make_policy("step", f"{tmp_path}/few.py:Few", {})


def test_where_a_file_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("x = 1\nimport neighbour_of_mine\n")
    with pytest.raises(ConfigError, match=r"neighbour_of_mine' \(bad.py:2\). A policy's file cannot import"):
        make_policy("step", f"{tmp_path}/bad.py:Bad", {})


def test_a_policy_from_a_file_takes_its_options_in_their_types(own: str) -> None:
    made = make_policy("pace", f"{own}:Own", {"lead_s": 3, "keep": ["a", "b"]})
    assert (made.lead_s, made.keep, made.needed) == (3.0, ("a", "b"), None)
    assert list(options_of(type(made))) == ["lead_s", "keep", "needed"]
    assert decider(make_policy("pace", f"{own}:Strict", {"must": 1}), "pace") is not None


def test_a_file_is_run_once_for_each_content(own: str) -> None:
    first = find_policy("pace", f"{own}:Own")
    assert find_policy("pace", f"{own}:Own") is first
    before = digest("pace", f"{own}:Own")
    Path(own).write_text(OWN.replace("2.0", "4.0"))
    changed = find_policy("pace", f"{own}:Own")
    assert changed is not first
    assert changed().lead_s == 4.0
    assert digest("pace", f"{own}:Own") != before
    assert not (Path(own).parent / "__pycache__").exists(), "nothing is left beside an operator's file"


def test_a_policy_by_dotted_path_has_a_digest_too() -> None:
    path = "antiphon.policy.lru:Lru"
    assert find_policy("evict", path) is Lru
    assert is_foreign("evict", path)
    assert len(digest("evict", path)) == 32


def test_a_policy_that_an_installed_package_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "antiphon.policy.lru:Lru", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: (point,) if group == registry.GROUP else ())
    monkeypatch.setattr(registry, "installed", registry.installed.__wrapped__)
    assert "mine" in known_policies("evict")
    assert find_policy("evict", "mine") is Lru
    assert not is_foreign("evict", "mine")
    assert len(digest("evict", "mine")) == 32


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        (
            "unpased",
            {},
            r"pace: no policy 'unpased'; did you mean unpaced\? There are token-buffer, unpaced, urgency",
        ),
        ("lru", {}, "pace: 'lru' decides evict, not pace; for that there are token-buffer, unpaced"),
        ("OWN:Onw", {}, r"pace: policy own.py:Onw: no 'Onw' in .*/own.py; did you mean Own\?"),
        ("OWN:not_a_class", {}, "pace: policy own.py:not_a_class is not a class"),
        ("nowhere.py:Own", {}, "pace: policy nowhere.py:Own: cannot read nowhere.py"),
        ("no.such.module:Own", {}, "pace: policy no.such.module:Own cannot be loaded: ModuleNotFoundError"),
        (
            "OWN:Own",
            {"laed_s": 2},
            r"no option 'laed_s'; did you mean lead_s\? It takes lead_s, keep, needed",
        ),
        ("OWN:Own", {"lead_s": "x"}, "lead_s is 'x': Expected `float`, got `str`"),
        ("OWN:Own", {"lead_s": True}, "lead_s is True: Expected `float`, got `bool`"),
        ("OWN:Own", {"lead_s": float("nan")}, "lead_s is nan, which is not a number"),
        ("OWN:Strict", {}, "own.py:Strict: it needs a value for must"),
        ("OWN:Strict", {"must": -1}, "own.py:Strict cannot be made: ValueError: must is below 0"),
        ("OWN:Mute", {}, "has neither `decide` nor `decide_pace`"),
        ("OWN:Mute", {"x": 1}, "no option 'x'. It takes none"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_allowed(policy: str, options: dict, said: str, own: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_policy("pace", policy.replace("OWN", own), options)


def test_a_file_that_cannot_be_run_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"bad.py:Own cannot be loaded: ZeroDivisionError"):
            find_policy("pace", f"{tmp_path}/bad.py:Own")


def test_names_for_people(tmp_path: Path) -> None:
    assert policy_label(placed("own.py:Own", tmp_path)) == "own.py:Own"
    assert placed("package.module:Own", tmp_path) == "package.module:Own"
    assert placed("/there/own.py:Own", tmp_path) == "/there/own.py:Own"
    assert nearest("evcit", DECISIONS) == "; did you mean evict?"
    assert nearest("zzz", DECISIONS) == ""
    models = ("qwen2.5-omni-7b", "qwen3-omni-30b-a3b")
    assert nearest("qwen3-omni", models) == "; did you mean qwen3-omni-30b-a3b?", "it begins so"
