"""`antiphon compare --simulate`: simulated machines against each other, with what makes them differ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.bench.servers import Target
from antiphon.cli import app
from antiphon.cli.compare import simulated_target
from assembly.test_guard import preset_with

COMMAND = [sys.executable, "-m", "antiphon", "compare", "--simulate"]
READERS = [
    *("--workload", "readers", "--rate", "2", "--duration", "30"),
    *("--hardware", "a6000", "--model", "llama-3-8b", "--kv-tokens", "12288"),
]
TIERED = "tiered=fcfs --host-kv-tokens 1000000"
SLOW = "slow=fcfs --decide-ms 80"


def run(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["compare", "--simulate", *(str(word) for word in words)])
    return result.exit_code, result.stdout, result.stderr


def contrast(result: dict[str, Any], index: int, figure: str) -> dict[str, Any]:
    rows = result["against"][index]["rows"]
    return next(row["contrast"] for row in rows if row["contrast"]["figure"] == figure)


def test_machines_that_differ_in_an_option_are_told_apart(tmp_path: Path) -> None:
    """Each is held to the first, by the same people; who decides for 80 ms gives a token every 80 ms."""
    status, shown, said = run("fcfs", TIERED, SLOW, *READERS, "--seeds", "2", "--out", tmp_path, "--json")
    assert status == 0, said
    assert "tiered: assumes 1 × RTX-A6000: thinker on 0" in said
    result = json.loads(shown)
    assert [side["target"]["name"] for side in result["sides"]] == ["fcfs", "tiered", "slow"]
    assert result["sides"][1]["target"]["options"] == "--host-kv-tokens 1000000"
    assert contrast(result, 0, "reload_s")["b"] is not None
    tokens = contrast(result, 1, "tpot_s.p50")
    assert tokens["verdict"] == "worse"
    assert tokens["b"] == pytest.approx(0.08, rel=0.01)
    assert tokens["b"] > 2.5 * tokens["a"]
    logs = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert logs == [f"{name}-seed{seed}.jsonl" for name in ("fcfs", "slow", "tiered") for seed in (0, 1)]
    assert not (tmp_path / "warm-up").exists()


def test_the_same_machine_twice_does_the_same(tmp_path: Path) -> None:
    status, shown, said = run("a=fcfs", "b=fcfs", *READERS, "--seeds", "2", "--out", tmp_path, "--json")
    assert status == 0, said
    rows = json.loads(shown)["against"][0]["rows"]
    assert all(row["contrast"]["a"] == row["contrast"]["b"] for row in rows)


def test_what_the_baseline_decided_instead_is_in_the_result(tmp_path: Path) -> None:
    """Else a policy that always raises would look as good as the baseline."""
    preset = preset_with(tmp_path, "Raising")
    words = ["fcfs", f"broken={preset}", *READERS, "--out", tmp_path, "--json"]
    _, shown, _ = run(*words, "--seeds", "1")
    plain, broken = json.loads(shown)["sides"]
    assert plain["overruled"] == {}
    assert broken["overruled"]["0"]["step of thinker"] > 100
    _, shown, _ = run(*words, "--seeds", "2", "--resume")
    assert json.loads(shown)["sides"][1]["overruled"].keys() == {"0", "1"}


def test_more_seeds_go_on_with_what_is_there(tmp_path: Path) -> None:
    run("fcfs", "baseline", *READERS, "--seeds", "1", "--out", tmp_path)
    log = tmp_path / "runs" / "fcfs-seed0.jsonl"
    before = log.stat().st_mtime_ns
    status, _, said = run("fcfs", "baseline", *READERS, "--seeds", "2", "--out", tmp_path, "--resume")
    assert status == 0
    assert "fcfs, seed 0: measured before" in said
    assert log.stat().st_mtime_ns == before
    changed = run("fcfs", "baseline", *READERS, "--max-rows", "3", "--out", tmp_path, "--resume")
    assert changed[0] == 1
    assert "cannot resume: options was" in " ".join(changed[2].split())


def test_ctrl_c_ends_a_run_and_the_rest_is_resumed(tmp_path: Path) -> None:
    words = [*COMMAND, "fcfs", "baseline", "--workload", "voice-chat", "--concurrency", "16"]
    words += ["--duration", "400", "--seeds", "1", "--out", str(tmp_path)]
    environment = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "seed 0: running" in line:
                break
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(30) == 130
    assert "go on with --resume" in said
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("fcfs", Target("fcfs", preset="fcfs")),
        ("a.b=fcfs", Target("a.b", preset="fcfs")),
        ("a=fcfs --kv-tokens 5", Target("a", preset="fcfs", options="--kv-tokens 5")),
        (" fcfs  --kv-tokens=5 ", Target("fcfs", preset="fcfs", options="--kv-tokens=5")),
    ],
)
def test_what_a_target_says(text: str, target: Target) -> None:
    assert simulated_target(text) == target


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fcfs"], "needs two targets or more"),
        (["fcfs", "fcfs --max-rows 2"], "have one name"),
        (["fcfs", "x=nope"], "no preset 'nope'. There are baseline, fcfs"),
        (["fcfs", "peer=http://here:1"], "'http://here:1' is not a preset"),
        (["fcfs", "x=fcfs --max-row 2"], "target x: No such option: --max-row"),
        (["fcfs", "x=fcfs --max-rows none"], "target x: Invalid value for '--max-rows'"),
        (["fcfs", "x=fcfs --max-rows 0"], "target x: Invalid value for '--max-rows'"),
        (["fcfs", "x=fcfs --hardware abacus"], "target x: no hardware 'abacus'"),
        (["fcfs", "x=fcfs '"], "No closing quotation"),
        (["fcfs", "baseline", "--serve", "x"], "--serve: that is for servers over the wire"),
        (["fcfs", "baseline", "--model", "llama-3-8b"], "group talker speaks"),
    ],
)
def test_wrong_words(words: list[str], said: str, tmp_path: Path) -> None:
    status, _, stderr = run(*words, "--out", tmp_path)
    assert status == 1
    assert said in " ".join(stderr.split())
    assert not list(tmp_path.iterdir())


def test_a_machine_is_described_to_simulate_only(tmp_path: Path) -> None:
    words = ["compare", "fcfs", "baseline", "--max-rows", "2", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "--max-rows: that goes with --simulate" in result.stderr
