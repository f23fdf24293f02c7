"""`antiphon bench`: what it writes and prints, and with what status it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.cli import app

SERVER = Path(__file__).parent / "fake_server.py"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The fake server in a process of its own."""
    options = ("--reply-s", "0.4", "--speed", "4")
    with subprocess.Popen(
        [sys.executable, str(SERVER), *options], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()


@pytest.fixture(scope="module")
def log(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one run of two sessions."""
    path = tmp_path_factory.mktemp("bench") / "run.jsonl"
    done = bench("--url", url, "--sessions", "2", "--concurrency", "2", "--duration", "4", "--log", str(path))
    assert done[0] == 0, done[1]
    assert "ttfp_s" in done[1]
    return path


def bench(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", *words])
    return result.exit_code, result.output


def test_figures_come_from_the_log(log: Path) -> None:
    status, printed = bench("summarize", str(log), "--json")
    assert status == 0
    report = json.loads(printed)
    assert report["run"]["workload"] == "smoke"
    assert report["run"]["label"] == "echo"
    assert report["figures"]["sessions"] == 2
    assert report["missed"] == []


def test_bounds_decide_the_status(log: Path) -> None:
    status, printed = bench("summarize", str(log), "--slo-ttfp-p90", "0.000001")
    assert status == 1
    assert "missed" in printed
    assert bench("summarize", str(log), "--slo-ttfp-p90", "5", "--slo-continuity", "0.1")[0] == 0


def test_mistakes(url: str, log: Path, tmp_path: Path) -> None:
    """Each is told in words, with status 2."""
    cases = {
        "no workload": ["--url", url, "--workload", "nothing"],
        "http(s)://host": ["--url", "nowhere"],
        "--force": ["--url", url, "--log", str(log)],
        "not both": ["--url", url, "--rate", "1", "--concurrency", "1"],
        "give one": ["--url", url, "--max-concurrency", "1", "--concurrency", "1"],
        "give --rate as well": ["--url", url, "--max-concurrency", "1"],
        "a server runs there, or name a model with --model": ["--url", "http://127.0.0.1:9"],
        "'http://127.0.0.1:80O0' is not http(s)://host": ["--url", "http://127.0.0.1:80O0"],
        "does not exist": ["--url", url, "--model", "other", "--log", str(tmp_path / "x.jsonl")],
        "cannot write the log /dev/full": ["--url", url, "--log", "/dev/full", "--force"],
        "cannot read": ["summarize", str(tmp_path / "absent")],
    }
    for words, options in cases.items():
        status, printed = bench(*options)
        assert status == 2, printed
        assert words in " ".join(printed.split())


def test_a_sweep_finds_the_load_that_is_held(url: str, tmp_path: Path) -> None:
    words = ("--url", url, "--concurrency", "1,2", "--duration", "3", "--out", str(tmp_path), "--json")
    status, printed = bench("sweep", "--workload", "smoke", "--slo-continuity", "0.1", *words)
    assert status == 0, printed
    result = json.loads(printed[printed.index("{\n") :])
    assert [point["load"] for point in result["points"]] == ["c1", "c2"]
    assert result["useful_rps"] == max(point["figures"]["offered_rps"] for point in result["points"])
    assert json.loads((tmp_path / "sweep.json").read_text()) == result
    assert len(list(tmp_path.glob("server-c*-seed0.jsonl"))) == 2


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_sweep_that_is_stopped_concludes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: tuple[str, ...]
) -> None:
    async def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("antiphon.bench.sweep.sweep", stop)
    status, printed = bench("sweep", "--concurrency", "1", "--out", str(tmp_path), *option)
    assert status == 130
    assert "nothing is concluded" in printed
    assert "useful_rps" not in printed


def test_a_sweep_needs_loads(tmp_path: Path) -> None:
    for words in ((), ("--concurrency", "1", "--rate", "1"), ("--concurrency", "one")):
        assert bench("sweep", *words, "--out", str(tmp_path))[0] == 1
