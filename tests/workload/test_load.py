"""Workloads as files: what ships, what is written wrong, and where the error says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.core.errors import ConfigError
from antiphon.workload.load import changed, find, load, named, names, parsed
from workload.shapes import drawn, people

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
        ConfigError,
        match=r"no workload 'mine'; did you mean mixed\? There are agents, .*or the path of a",
    ):
        find("mine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "people: {talker: {thinks: 3}}",
            r"line 4: people.talker.thinks: no such key; did you mean think_s\? There are .*think_s",
        ),
        ("peple: {talker: {}}", r"peple: no such key; did you mean people\? There are name, .*load"),
        (
            "people: {talker: {think_s: {uniform: [1, 2]}, barge_in: {probabilty: 1}}}",
            r"barge_in.probabilty: no such key; did you mean probability\? There are probability",
        ),
        (
            "people: {talker: {think_s: {gamma: {mean: 1, c: 2}}}}",
            r"think_s.gamma.c: no such key; did you mean cv\? There are mean, cv",
        ),
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
        (
            "open: {arrivals: {poisson: {rate_per_s: 1}}, sessions: 3, until: received}",
            "say `max_concurrency`, how many there are",
        ),
        (
            "open: {arrivals: {poisson: {rate_per_s: 1}}, sessions: 3, max_concurrency: 0}",
            "load.open.max_concurrency: input should be greater than or equal",
        ),
        ("closed: {concurrency: 2, sessions: 3, max_concurrency: 4}", "closed.max_concurrency: no such key"),
        ("{}", "exactly one of `open` and `closed`"),
        ("open: {arrivals: {poisson: {rate_per_s: 1, rate: 2}}, sessions: 3}", "poisson.rate: no such key"),
    ],
)
def test_impossible_loads(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(f"name: mine\npeople: {{a: {{}}}}\nload:\n  {text}\n", "mine.yaml")


def test_arrivals_beside_a_load_need_its_end_and_sizes_are_pairs() -> None:
    text = HEAD.replace("closed: {concurrency: 1, ", "open: {arrivals: {poisson: {rate_per_s: 1}}, ")
    jobs = "jobs: {b: {arrivals: {poisson: {rate_per_s: 1}}}}"
    with pytest.raises(ConfigError, match="b: arrivals of their own need the load's `duration_s`"):
        parsed(f"{text}people: {{a: {{}}}}\n{jobs}", "mine.yaml")
    with pytest.raises(ConfigError, match=r"line 4: people\.a\.pictures\.sizes\.1\.0"):
        parsed(f"{HEAD}people: {{a: {{pictures: {{sizes: [[4, 4], [0, 4]]}}}}}}", "mine.yaml")


def test_measured_laws(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("measure,percentile,value\ngap_s,10,-1\ngap_s,90,4\n")
    mine = tmp_path / "mine.yaml"
    law = "{measured: {file: m.csv, measure: gap_s}}"
    mine.write_text(f"{HEAD}people: {{a: {{think_s: {law}}}}}")
    assert load(mine).people["a"].think_s.model_dump() == {"quantiles": {10: 0, 90: 4}}
    wrong = {
        law.replace("m.csv", "none.csv"): "none.csv: can't be read as a table of quantiles",
        law.replace("gap_s", "pace"): "m.csv: no measure 'pace'; it has gap_s",
        law.replace("measure:", "column:"): "expected the keys file and measure, not file, column",
    }
    for written, words in wrong.items():
        mine.write_text(f"{HEAD}people: {{a: {{think_s: {written}}}}}")
        with pytest.raises(ConfigError, match=words):
            load(mine)
    (tmp_path / "m.csv").write_text("a,b\n\n1,2\n")
    mine.write_text(f"{HEAD}people: {{a: {{think_s: {law}}}}}")
    with pytest.raises(ConfigError, match=r"m\.csv:3: columns a, b; expected measure, percentile and value"):
        load(mine)


def test_several_mistakes_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(
            "name: ''\nload: {closed: {concurrency: 1, sessions: 1}}\npeople: {a: {x: 1, y: 2}}", "mine.yaml"
        )
    assert [word in str(caught.value) for word in ("line 1: name", "people.a.x", "people.a.y")] == [True] * 3


@pytest.mark.parametrize(
    ("text", "words"),
    [("name: [", r":1: not valid YAML|:2: no YAML"), ("- a", "is a mapping"), ("", "is a mapping")],
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


@pytest.mark.parametrize("name", names())
def test_changing_nothing(name: str) -> None:
    assert changed(named(name), {}) == named(name)


def test_a_sweep() -> None:
    settings = {
        "load.closed.concurrency": 8,
        "people.talker.barge_in.probability": 0.7,
        "people.talker.think_s": {"uniform": [1, 2]},
        "people.talker.acks": None,
    }
    other = changed(named("barge-in"), settings)
    talker = other.people["talker"]
    assert (other.load.concurrency, talker.barge_in.probability, talker.acks) == (8, 0.7, None)
    assert talker.reply_s == named("barge-in").people["talker"].reply_s
    assert all(1 <= turn.think_s <= 2 for script in people(other) for turn in script.turns[1:])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"load.closed.concurrency": 0},
            "'barge-in' can't be changed: load.closed.concurrency: input should be",
        ),
        ({"people.talker.mood": "good"}, "people.talker.mood: no such key"),
        ({"people.talker.think_s": {"uniform": [2, 1]}}, "people.talker.think_s.*goes from 2 down"),
        ({"name.first": "x"}, "name.first: there are no keys inside 'name', which is 'barge-in'"),
        ({"load.open": {"arrivals": {"poisson": {"rate_per_s": 1}}, "sessions": 1}}, "exactly one of `open`"),
    ],
)
def test_what_can_t_be_changed(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        changed(named("barge-in"), settings)
