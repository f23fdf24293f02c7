"""`antiphon compare`, whole: real runs against pretended servers, presets, signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import forked
from antiphon.bench.compared import figures_of
from antiphon.bench.comparison import Side, against
from antiphon.bench.comparison_table import comparison_table
from antiphon.bench.servers import Target
from antiphon.cli import app
from bench.fake_server import FakeServer, Manner
from bench.logs import write_log

pytestmark = pytest.mark.usefixtures("forked_processes")

COMMAND = [sys.executable, "-m", "antiphon", "compare"]
WORKLOAD = """
name: short
description: Two people at once, who say one short thing each.
load: {closed: {concurrency: 2, sessions: 2, duration_s: 10}}
people: {talker: {turns: 1, speech: {seconds: 0.2}, think_s: 0.05, max_output_tokens: 12}}
"""


@pytest.fixture
async def servers() -> AsyncIterator[list[str]]:
    """One that answers at once, and one that is slow to begin."""
    async with FakeServer() as quick, FakeServer(Manner(first_s=0.5)) as slow:
        yield [f"quick={quick.url}", f"slow={slow.url}"]


@pytest.fixture
def short(tmp_path: Path) -> list[str]:
    path = tmp_path / "short.yaml"
    path.write_text(WORKLOAD)
    return ["--workload", str(path)]


async def command(*words: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def of(result: dict[str, Any], figure: str) -> dict[str, Any]:
    rows = result["against"][0]["rows"]
    return next(row["contrast"] for row in rows if row["contrast"]["figure"] == figure)


async def test_two_servers_by_url(servers: list[str], short: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--seeds", "2", *short, "--out", str(out)]
    status, said, log = await command(*servers, *options, "--json")
    assert status == 0, log
    result = json.loads(said)
    assert result == json.loads((out / "comparison.json").read_text())
    assert "too few to judge by" in log
    assert "too few" in result["warnings"][0]
    assert result["command"].startswith("antiphon compare quick=")
    found = of(result, "ttfp_s.p50")
    assert found["kind"] == "ratio"
    assert found["estimate"]["mean"] > 2
    assert len(list((out / "runs").glob("*.jsonl"))) == 4
    status, table, log = await command(*servers, *options, "--resume")
    assert status == 0, log
    assert log.count("measured before") == 4
    assert "running" not in log
    assert "slow against quick, 2 seeds" in table
    assert "ttfp_s.p90" in table
    status, _, log = await command(*servers, *options)
    assert status == 1
    assert "--resume" in log


async def test_one_that_is_not_there(servers: list[str], short: list[str], tmp_path: Path) -> None:
    options = ["--seeds", "1", *short, "--out", str(tmp_path)]
    status, _, log = await command(servers[0], "gone=http://127.0.0.1:9", *options)
    assert status == 1
    assert "names no model" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["baseline"], "two targets"),
        (["baseline", "http://127.0.0.1:9"], "--model says what to serve"),
        (["http://a", "http://b", "--workload", "nonesuch"], "no workload"),
        (["http://a", "http://b", "--serve", '"'], "No closing quotation"),
    ],
)
def test_wrong_words(words: list[str], complaint: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", *words, "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert complaint in " ".join(result.output.split())


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    try:
        children = forked.children(pid)
    except OSError:
        return []
    return children + [below for child in children for below in descendants(child)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_every_server(writer_checkpoint: Path, tmp_path: Path, number: int) -> None:
    serve = "--device cpu --threads 1"
    words = ["a=baseline", "b=baseline", "--model", str(writer_checkpoint), "--serve", serve]
    options = ["--seeds", "5", "--workload", "readers", "--duration", "60", "--out", str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*COMMAND, *words, *options], stderr=log, stdout=log)
    try:
        deadline = time.monotonic() + 240
        while b"a: warming up" not in (tmp_path / "log").read_bytes() or len(descendants(process.pid)) < 2:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        below = descendants(process.pid)
        process.send_signal(number)
        assert process.wait(40) == 130, (tmp_path / "log").read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        process.wait(60)
    said = (tmp_path / "log").read_text()
    assert "go on with --resume" in said
    assert "Traceback" not in said
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)


def test_table() -> None:
    """Every row has both values, an interval, a verdict and both utilisations."""
    used = 'utilisation{stage="talker"}'
    a = Side(
        Target("a"), {seed: {"ttfp_s.p90": 1.0 + seed / 100, "errors": 0.0, used: 0.25} for seed in range(5)}
    )
    b = Side(Target("b"), {seed: {"ttfp_s.p90": 0.5, "errors": 1.0, "window_s": 1.0} for seed in range(5)})
    columns = [list(column.cells) for column in comparison_table(against(a, b)).columns]
    rows = {cells[0]: cells for cells in zip(*columns, strict=True)}
    assert list(rows) == ["ttfp_s.p90", "errors", used]
    assert rows["ttfp_s.p90"][1:] == (
        "1.02",
        "0.5",
        "0.4902 \\[0.4809, 0.4998]",
        "[green]better[/]",
        "talker 25 % / –",
    )
    assert rows["errors"][3:5] == ("+1 \\[+1, +1]", "[red]worse[/]")
    assert rows[used][1:5] == ("0.25", "–", "–", "undecided")
    assert comparison_table(against(a, b), is_whole=True).row_count == 4


def test_figures_of_a_log(tmp_path: Path) -> None:
    assert figures_of(write_log(tmp_path / "a.jsonl"))["ttfp_s.p50"] == pytest.approx(0.3)
