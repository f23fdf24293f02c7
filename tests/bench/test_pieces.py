"""Small pieces: addresses, counters, base64 lengths, numbers as people read them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from antiphon.bench.experiment import Changes, workload_of
from antiphon.bench.server_metrics import parse
from antiphon.bench.tables import shown, spreads_table, values_table
from antiphon.bench.target import DrivenServer, root
from antiphon.core.errors import ConfigError
from antiphon.people.downlink import pcm_bytes

PAGE = """# HELP antiphon_steps_total Steps.
# TYPE antiphon_steps_total counter
antiphon_steps_total{stage="talker",device="cpu"} 7.0
antiphon_sessions 3.0
python_info{version="3"} 1.0
"""


@pytest.mark.parametrize(
    "url", ["http://host:1", "http://host:1/", "http://host:1/v1", "ws://host:1/v1/realtime", "ws://host:1"]
)
def test_one_server_by_many_names(url: str) -> None:
    assert root(url) == "http://host:1"


def test_addresses() -> None:
    assert DrivenServer("https://host/a/v1", "org/my model").realtime_uri == (
        "wss://host/a/v1/realtime?model=org%2Fmy+model"
    )
    with pytest.raises(ConfigError, match="host:8000"):
        root("host:8000")


def test_counters() -> None:
    kept = {'antiphon_steps_total{device="cpu",stage="talker"}': 7.0, "antiphon_sessions": 3.0}
    assert parse(PAGE, "antiphon_") == kept
    assert parse(PAGE, "") == kept | {'python_info{version="3"}': 1.0}


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 1920])
def test_lengths(size: int) -> None:
    assert pcm_bytes(base64.b64encode(bytes(size)).decode()) == size


def test_numbers() -> None:
    assert [shown(value) for value in (0.0, 3.0, 12345.0, 0.123456, 1.5, float("nan"))] == [
        "0",
        "3",
        "12,345",
        "0.1235",
        "1.5",
        "–",
    ]
    figures = {"ttfp_s.mean": 0.2, "ttfp_s.p90": 0.3, "continuity": 1.0, 'waste_tokens{stage="talker"}': 7.0}
    spreads, values = spreads_table("a run", figures), values_table(figures)
    assert [list(column.cells) for column in spreads.columns] == [
        ["ttfp_s"],
        ["0.2"],
        [""],
        ["0.3"],
        [""],
        [""],
        ["s"],
    ]
    assert [list(column.cells) for column in values.columns] == [
        ["continuity", 'waste_tokens{stage="talker"}'],
        ["1", "7"],
        ["share", "tokens"],
    ]


def test_sessions_of_a_workload_that_ships_grow_with_those_kept_open() -> None:
    assert workload_of("barge-in", Changes(concurrency=16)).load.sessions == 16
    assert workload_of("barge-in", Changes(concurrency=24)).load.sessions == 48
    assert workload_of("barge-in", Changes(concurrency=24, num_sessions=30)).load.sessions == 30
    assert workload_of("barge-in", Changes(concurrency=24, duration_s=9)).load.sessions is None


def test_options_that_a_workload_cannot_have_are_told_in_a_sentence(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\nload: {closed: {concurrency: 1, sessions: 2}}\npeople: {talker: {}}\n")
    for name, sessions in (("barge-in", 2), (str(mine), None)):
        with pytest.raises(ConfigError) as refused:
            workload_of(name, Changes(concurrency=24, num_sessions=sessions))
        assert str(refused.value) == (
            f"workload {name} with these options: load.closed: 2 sessions can't keep 24 going at once; "
            "say 24 `sessions` or more (--sessions 24)"
        )
