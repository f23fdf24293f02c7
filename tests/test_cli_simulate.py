"""`antiphon simulate` and `antiphon plan` as they are typed."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.main import get_command
from typer.testing import CliRunner

from antiphon.cli import app
from antiphon.graphs import find_graph
from antiphon.latency.finding import find_costs
from antiphon.runtime.record import replay
from antiphon.sim.bottleneck import StageLoad
from antiphon.sim.plan import Tried
from assembly.test_guard import preset_with

SMOKE = ["--workload", "smoke", "--duration", "8"]


def run(*args: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    return result.exit_code, result.stdout, result.stderr


def with_steps_of(step_s: float, where: Path) -> Path:
    """A profile of which every step takes at least so long."""
    known = find_costs("h200")
    stages = {
        name: replace(stage, model=replace(stage.model, step_s=step_s))
        for name, stage in known.stages.items()
    }
    path = where / "slow.json"
    path.write_bytes(replace(known, stages=stages).to_json())
    return path


def test_simulates_and_says_the_same_figures_again(tmp_path: Path) -> None:
    out = ["--out", tmp_path, "--replicas", "thinker=2,talker=2"]
    status, shown, said = run("simulate", *SMOKE, *out)
    assert status == 0, said
    assert "ttfp_s" in shown
    log = tmp_path / "simulate-baseline-0.jsonl"
    before = log.read_bytes()
    assert run("bench", "summarize", log)[1] == shown
    assert run("simulate", *SMOKE, *out)[0] == 2
    assert run("simulate", *SMOKE, *out, "--force")[0] == 0
    lines, again = before.splitlines()[1:], log.read_bytes().splitlines()[1:]
    assert lines == again, "beside the command in its first line, the same log"
    figures = json.loads(run("bench", "summarize", log, "--json")[1])["figures"]
    assert all(0 < figures[f'utilisation{{stage="talker.{number}"}}'] < 1 for number in (0, 1))


def test_simulates_a_text_model_and_its_readers(tmp_path: Path) -> None:
    asked = ["--model", "meta-llama/Llama-3.1-8B", "--hardware", "a6000", "--workload", "readers"]
    load = ["--rate", "0.5", "--max-concurrency", "4", "--duration", "40"]
    status, shown, said = run("simulate", *asked, *load, "--out", tmp_path, "--json")
    assert status == 0, said
    found = json.loads(shown)
    assert found["run"]["machine"] == "simulated: RTX-A6000, llama-3.1-8b"
    assert found["figures"]["tpot_s.p50"] > 0.025
    assert "place_wait_s.p90" in found["figures"]


def figures_of(where: Path, *options: str | Path) -> dict[str, float]:
    """Of readers whose pasts do not fit the device."""
    asked = ["--model", "llama-3-8b", "--hardware", "a6000", "--workload", "readers", "--preset", "fcfs"]
    sizes = ["--rate", "0.5", "--duration", "120", "--kv-tokens", "4096", "--step-tokens", "512"]
    status, shown, said = run("simulate", *asked, *sizes, *options, "--out", where, "--force", "--json")
    assert status == 0, said
    return json.loads(shown)["figures"]


def test_a_deployment_is_simulated_as_it_is_laid_out(tmp_path: Path) -> None:
    status, shown, said = run("simulate", *SMOKE, "--out", tmp_path, "--config", "one-gpu", "--json")
    assert status == 0, said
    assert "assumes 1 × H200: encoders+thinker+talker+code2wav on 0" in said
    assert json.loads(shown)["run"]["machine"] == "simulated: H200, qwen3-omni-30b-a3b, one-gpu"
    asked = ["--config", "liveserve-8gpu", "--preset", "fcfs", "--host-kv-tokens", "4096", "--json"]
    status, shown, said = run("simulate", *SMOKE, "--out", tmp_path, *asked)
    assert status == 0, said
    assert "assumes 8 × H200: encoders.0+thinker.0 on gpu0, encoders.1+thinker.1 on gpu1," in said
    options = json.loads(shown)["run"]["options"]
    assert options["preset"] == "fcfs"
    assert options["engine"]["host_kv_tokens"] == {"thinker": 4096, "talker": 4096}


def test_devices_that_share_a_decoder_are_assumed_together(tmp_path: Path) -> None:
    asked = ["--model", "llama-2-70b", "--hardware", "a100", "--tensor-parallel", "2"]
    more = ["--workload", "readers", "--duration", "3", "--replicas", "thinker=2", "--out", tmp_path]
    _, _, said = run("simulate", *asked, *more)
    assert "assumes 4 × A100-80: thinker.0 on 0 to 1, thinker.1 on 2 to 3" in said


def test_a_host_tier_keeps_what_the_device_cannot_and_its_link_takes_time(tmp_path: Path) -> None:
    alone = figures_of(tmp_path)
    tiered = figures_of(tmp_path, "--host-kv-tokens", "1000000")
    slowly = figures_of(tmp_path, "--host-kv-tokens", "1000000", "--link-gb-s", "0.5")
    assert "reload_s" not in alone
    assert tiered["cache_hit_share"] > 1.5 * alone["cache_hit_share"] + 0.02
    assert slowly["reload_s"] > 2 * tiered["reload_s"] > 0, "part of either is waiting for room"


def test_slow_decisions_make_slow_tokens(tmp_path: Path) -> None:
    """A step of 27 ms hides what is decided meanwhile, and no more."""
    quick, hidden, slow = (
        figures_of(tmp_path, "--duration", "40", "--decide-ms", ms)["tpot_s.p50"] for ms in ("0", "5", "80")
    )
    assert hidden == pytest.approx(quick, rel=0.02)
    assert slow == pytest.approx(0.08), "the step hides behind the decision"
    measured = figures_of(tmp_path, "--duration", "40", "--decide-ms", "measured")
    assert measured["tpot_s.p50"] == pytest.approx(quick, rel=0.3)
    first = next(iter((tmp_path / "simulate-fcfs-0.jsonl").read_text().splitlines()))
    assert json.loads(first)["options"]["decide_s"] == "measured"


def test_a_host_tier_needs_a_link(tmp_path: Path) -> None:
    path = tmp_path / "linkless.json"
    path.write_bytes(replace(find_costs("h200"), links={}).to_json())
    asked = ["simulate", *SMOKE, "--hardware", path, "--out", tmp_path, "--host-kv-tokens", "4096"]
    status, _, said = run(*asked)
    assert status == 2
    assert "say --link-gb-s" in said
    assert run(*asked, "--link-gb-s", "8")[0] == 0


def test_a_bound_that_is_missed_is_the_exit_status(tmp_path: Path) -> None:
    status, shown, said = run("simulate", *SMOKE, "--out", tmp_path, "--slo-ttfp-p90", "0.001", "--json")
    assert status == 1
    assert json.loads(shown)["missed"]
    assert "missed" in said


def test_its_record_decides_alike_when_replayed(tmp_path: Path) -> None:
    """The other way round: what the simulator was told, told to a node as the runtime has it."""
    record = tmp_path / "a.record"
    args = ["--workload", "barge-in", "--duration", "20", "--turn-detection", "server_vad", "--out", tmp_path]
    assert run("simulate", *args, "--record", record)[0] == 0
    count, differences = replay(record)
    assert count > 1000
    assert not differences


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--hardware", "abacus"], "no hardware 'abacus'"),
        (["--model", "abacus"], "no shape of a model 'abacus'"),
        (["--model", "llama-3-8b"], "group talker speaks, and the model does not hear"),
        (["--model", "llama-3-8b", "--replicas", "talker=2"], "the model has no voice"),
        (["--tensor-parallel", "3"], "3 devices do not divide"),
        (["--kv-tokens", "64", "--block-size", "128"], "must hold a block at least, 128 tokens"),
        (["--config", "nowhere"], "no deployment 'nowhere'"),
        (["--config", "demo"], "names no kind of its devices; say --hardware"),
        (["--config", "one-gpu", "--replicas", "thinker=2"], "--replicas and --config"),
        (["--config", "one-gpu", "--tensor-parallel", "2"], "--tensor-parallel and --config"),
        (["--config", "one-gpu", "--hardware", "h100"], "this deployment can't be"),
        (["--config", "one-gpu", "--model", "llama-3-8b"], "the model has no such stage"),
        (["--config", "one-gpu", "--preset", "nobody"], "no preset 'nobody'"),
        (["--decide-ms", "soon"], "--decide-ms soon: expected a number of 0 or more"),
        (["--decide-ms", "inf"], "--decide-ms inf: expected"),
        (["--max-context-tokens", "300000"], "must hold at least one context"),
        (["--replicas", "singer=2"], "expected thinker=N"),
        (["--replicas", "thinker=none"], "expected thinker=N"),
        (["--replicas", "thinker=²"], "expected thinker=N"),
        (["--replicas", "thinker=4,thinker=2"], "thinker is there twice"),
        (["--preset", "nobody"], "no preset 'nobody'"),
        (["--depth", "7"], "depth is 7"),
        (["--workload", "nothing"], "no workload"),
        (["--label", "a/b"], "--label a/b: it names the log"),
        (["--kv-tokens", "15"], "must hold a block at least, 16 tokens"),
    ],
)
def test_what_cannot_be_is_said(args: list[str], said: str, tmp_path: Path) -> None:
    status, _, stderr = run("simulate", "--out", tmp_path, *args)
    assert status == 2
    assert said in " ".join(stderr.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "args",
    [
        ["simulate", "--seed", "-1"],
        ["simulate", "--patience", "nan"],
        ["simulate", "--patience", "-1"],
        ["simulate", "--rate", "inf"],
        ["simulate", "--duration", "nan"],
        ["simulate", "--frames-per-token", "inf"],
        ["simulate", "--reply-tokens", "1e300"],
        ["simulate", "--link-gb-s", "0"],
        ["simulate", "--host-kv-tokens", "-1"],
        ["simulate", "--network-ms", "inf"],
        ["simulate", "--slo-ttfp-p90", "nan"],
        ["plan", "--seed", "-1"],
        ["plan", "--duration", "inf"],
        ["plan", "--slo-continuity", "95"],
        ["workload", "show", "smoke", "--seed", "-1"],
        ["profile", "nowhere", "--seed", "-1"],
        ["bench", "sweep", "--slo-continuity", "nan", "--concurrency", "1"],
        ["compare", "baseline", "--duration", "nan"],
    ],
    ids=" ".join,
)
def test_a_number_out_of_its_range_is_a_wrong_word(args: list[str]) -> None:
    status, _, said = run(*args)
    assert status == 2
    option = next(word for word in args if word.startswith("--"))
    assert f"Invalid value for '{option}'" in " ".join(said.replace("│", " ").split())


def test_plans(tmp_path: Path) -> None:
    slow = with_steps_of(0.03, tmp_path)
    args = ["plan", "--workload", "voice-chat", "--duration", "15", "--hardware", slow, "--first", "4"]
    status, shown, said = run(*args)
    assert status == 0, said
    assert "conversations at a time hold the bounds." in shown
    assert "Shortest was" in shown
    assert "4 conversations:" in said
    assert "assumes 2 × H200: encoders+thinker on 0, talker+code2wav on 1" in said
    assert "trying 4 conversations" in said
    assert ", about " in said, "what is left of it"
    assert "; at most " in said
    status, shown, _ = run(*args, "--most", "4", "--json")
    result = json.loads(shown)
    assert status == (0 if result["conversations"] else 1)
    assert result["tried"][0]["conversations"] == 4
    assert run("plan", "--hardware", "abacus")[0] == 2


@pytest.mark.parametrize(
    ("at", "number", "says"),
    [
        (1, signal.SIGINT, "0 conversations or more hold the bounds"),
        (3, signal.SIGINT, "8 conversations or more hold the bounds"),
        (3, signal.SIGTERM, "8 conversations or more hold the bounds"),
    ],
)
def test_a_plan_that_is_stopped_concludes_nothing(
    at: int, number: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may ignore them
    numbers: list[int] = []

    def attempt(setup: object, count: int, *_: object) -> Tried:
        numbers.append(count)
        if len(numbers) == at:
            assert signal.getsignal(number) != signal.SIG_DFL, "it would end the tests"
            signal.raise_signal(number)
        return Tried(count, {}, (), (StageLoad("thinker", 0.1, 0.0, 0.0, 0.0),), {}, "rows")

    monkeypatch.setattr("antiphon.sim.plan.run_with", attempt)
    try:
        status, shown, _ = run("plan", "--first", "4")
        numbers.clear()
        result = json.loads(run("plan", "--first", "4", "--json")[1])
    finally:
        signal.signal(signal.SIGINT, interrupts)
    assert status == 130
    assert f"Stopped before the search was over: {says}" in shown
    assert "raise --most" not in shown
    assert result["is_complete"] is False
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_that_is_stopped_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("antiphon.bench.simulated.simulate", stopped)
    status, _, said = run("simulate", *SMOKE, "--out", tmp_path)
    assert status == 130
    assert "has no log" in said
    assert not list(tmp_path.iterdir())


def test_plans_where_nothing_holds(tmp_path: Path) -> None:
    stuck = with_steps_of(3.0, tmp_path)
    status, shown, _ = run(
        "plan", "--workload", "smoke", "--duration", "30", "--hardware", stuck, "--first", "2"
    )
    assert status == 1
    assert "0 conversations at a time" in shown
    status, shown, _ = run("plan", "--workload", "smoke", "--duration", "10", "--most", "1")
    assert status == 0
    assert "raise --most" in shown


def test_conversations_that_do_not_fit_the_kv_are_no_answer() -> None:
    status, shown, said = run(
        "plan",
        "--workload",
        "interactive",
        "--kv-tokens",
        "70",
        "--duration",
        "30",
        "--first",
        "2",
        "--most",
        "2",
    )
    assert status == 1
    assert "0 conversations at a time" in shown
    assert "responses that failed: " in said
    assert "the KV holds 64 tokens" in said


def test_what_the_baseline_decided_instead_is_in_the_result(tmp_path: Path) -> None:
    """Else a policy that always raises would look as good as the baseline."""
    preset = preset_with(tmp_path, "Raising")
    status, shown, said = run("simulate", *SMOKE, "--out", tmp_path, "--preset", preset, "--json")
    assert status == 0
    told = json.loads(shown)["policies"]
    line = re.compile(r"step of (\w+): (\d+) of \2 decisions were the baseline's \(raised\)")
    found = [line.fullmatch(one) for one in told["overruled"]]
    assert {one[1] for one in found if one} >= {"thinker", "talker"}
    assert told["refused"] == {}
    assert "decisions were the baseline's (raised)" in said


def test_the_length_of_a_frame_is_every_models_own() -> None:
    """What the help says is what the graphs say."""
    commands: dict[str, Any] = getattr(get_command(app), "commands", {})
    (option,) = (one for one in commands["simulate"].params if one.name == "frames_per_token")
    for family, model in (
        ("qwen3_omni_moe", "Qwen3-Omni"),
        ("qwen2_5_omni", "Qwen2.5-Omni"),
        ("ming_flash_omni", "Ming-Flash-Omni"),
    ):
        frame_ms = 1000 * find_graph(family).frame_s
        assert re.search(rf"\b{frame_ms:g} ms of {re.escape(model)}'s", option.help)
