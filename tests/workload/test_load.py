"""Workloads as files: what ships, what is written wrong, and where the error says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.core.errors import ConfigError
from antiphon.workload.load import find, load, named, names, parsed
from workload.shapes import drawn

HEAD = "name: mine\nload:\n  closed: {concurrency: 1, sessions: 2}\n"


@pytest.mark.parametrize("name", names())
def test_what_ships(name: str) -> None:
    chosen = named(name)
    assert chosen.name == name
    assert chosen.description
    scripts = drawn(chosen, 7)
    assert 0 < len(scripts) < 1000
    assert scripts == drawn(named(name), 7)
    assert scripts != drawn(chosen, 8)


def test_the_library_has_what_is_promised() -> None:
    promised = (
        "voice-chat barge-in readers burst-readers mixed best-effort agents sharegpt-speech interactive smoke"
    )
    assert set(promised.split()) <= set(names())


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(HEAD + "people: {talker: {}}\n")
    assert find(str(mine)) == load(mine)
    assert find("smoke") == named("smoke")
    monkeypatch.chdir(tmp_path)
    assert find("mine.yaml").name == "mine"
    with pytest.raises(
        ConfigError, match=r"unknown workload 'mine'; known: agents, .*or the path of a YAML file"
    ):
        find("mine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("people: {talker: {thinks: 3}}", "line 4: people.talker.thinks: no such key"),
        (
            "people:\n  talker:\n    think_s: -3",
            "line 6: people.talker.think_s: input should be greater than",
        ),
        (
            "people:\n  talker:\n    think_s: {uniform: [3, 1]}",
            "line 6: people.talker.think_s.*goes from 3 down",
        ),
        (
            "people:\n  talker:\n    think_s: {normal: 3}",
            "line 6: people.talker.think_s: expected a number or a law",
        ),
        (
            "people:\n  talker:\n    barge_in:\n      probability: 1.5",
            "line 7: people.talker.barge_in.probability",
        ),
        (
            "people:\n  talker:\n    replies: text\n    barge_in: {probability: 1}",
            "barge_in needs audible replies",
        ),
        ("people: {}", "nobody comes"),
        ("people: {talker: {share: 0}}", "nobody comes"),
        ("people: {a: {}}\njobs: {a: {}}", "groups must have different names"),
        (
            "people: {a: {}}\njobs: {b: {arrivals: {poisson: {rate_per_s: 1}}}}",
            "b: arrivals of their own need an open",
        ),
        (
            "people: {a: {}}\nturn_detection: psychic",
            "line 5: turn_detection: input should be 'manual' or 'server_vad'",
        ),
        ("people: {a: {}}\ntrace: {speed: 2}", "line 5: trace.file: field required"),
        ("people: {a: {}}\nagents: {b: {}}", "line 5: agents.b.graph: field required"),
    ],
)
def test_mistakes_are_named_with_line_and_key(tmp_path: Path, text: str, words: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(HEAD + text)
    with pytest.raises(ConfigError, match=words) as caught:
        load(mine)
    assert str(caught.value).startswith(str(mine))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("open: {arrivals: {poisson: {rate_per_s: 1}}}", "load.open: has no end"),
        ("closed: {concurrency: 2}", "load.closed: has no end"),
        ("closed: {concurrency: 2, sessions: 1}", "1 sessions can't keep 2 going"),
        (
            "closed: {concurrency: 0, sessions: 1}",
            "load.closed.concurrency: input should be greater than or equal",
        ),
        ("closed: {concurrency: 1.5, sessions: 1}", "load.closed.concurrency"),
        ("{}", "exactly one of `open` and `closed`"),
        ("open: {arrivals: {poisson: {rate_per_s: 1, rate: 2}}, sessions: 3}", "poisson.rate: no such key"),
    ],
)
def test_impossible_loads(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(f"name: mine\npeople: {{a: {{}}}}\nload:\n  {text}\n", "mine.yaml")


def test_several_mistakes_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(
            "name: ''\nload: {closed: {concurrency: 1, sessions: 1}}\npeople: {a: {x: 1, y: 2}}", "mine.yaml"
        )
    assert [word in str(caught.value) for word in ("line 1: name", "people.a.x", "people.a.y")] == [True] * 3


@pytest.mark.parametrize(
    ("text", "words"),
    [("name: [", r":1: no YAML|:2: no YAML"), ("- a", "is a mapping"), ("", "is a mapping")],
)
def test_no_workload(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(text, "mine.yaml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read as a workload"):
        load(tmp_path / "none.yaml")


def test_a_trace_is_found_beside_its_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("t_s,input_tokens,output_tokens\n0,13,7\n2,26,9\n")
    mine = tmp_path / "mine.yaml"
    body = "name: mine\nload: {open: {arrivals: {replay: {speed: 2}}}}\npeople: {a: {}}\n"
    monkeypatch.setenv("MY_TRACES", str(tmp_path))
    for file in ("t.csv", "$MY_TRACES/t.csv"):
        mine.write_text(f"{body}trace: {{file: {file}}}\n")
        assert [script.arrival_s for script in drawn(load(mine))] == [0, 1]
    mine.write_text(f"{body}trace: {{file: missing.csv}}\n")
    with pytest.raises(ConfigError, match=r"missing.csv: can't be read as a trace"):
        load(mine)
