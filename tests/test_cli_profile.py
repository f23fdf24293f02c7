"""`antiphon profile`: what it writes, prints and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.assembly.footprint import UnitSizes, parts
from antiphon.checkpoint.demo import make_demo
from antiphon.cli import app
from antiphon.cli.deployments import checkpoint_facts
from antiphon.latency.profile import Profile

RELEASED = "qwen3-omni-30b-a3b"


def test_a_datasheet_needs_no_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "h200.json"
    asked = ["profile", "--roofline", "h200", "--model", RELEASED, "--devices", "2", "--out", str(out)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    made = Profile.from_json(out.read_bytes())
    assert (made.source, made.provenance.device, made.provenance.model) == ("roofline", "2 x H200", RELEASED)
    assert made.provenance.when
    assert "worked out for 2 x H200" in result.output
    assert "not measured" in result.output
    assert "a collective" in result.output


def test_units_are_not_one_models_for_all(tmp_path: Path) -> None:
    """A token of sound is 1/25 s of Qwen2.5-Omni's, a frame 20 ms."""
    asked = ["profile", "--roofline", "h200", "--model", "qwen2.5-omni-7b", "--out", str(tmp_path / "p.json")]
    said = CliRunner().invoke(app, asked).output
    assert "per frame of speech" in said
    assert "80 ms" not in said
    assert "per recording, and per token of it " in said
    assert "1/13" not in said


def test_a_checkpoints_config_is_enough_for_a_datasheet(tiny_checkpoint: Path) -> None:
    result = CliRunner().invoke(app, ["profile", str(tiny_checkpoint), "--roofline", "cpu-2core"])
    assert result.exit_code == 0, result.output
    assert "tiny, worked out for cpu-2core, float32" in result.output


def test_a_text_checkpoint_has_a_datasheet_too(tmp_path: Path) -> None:
    make_demo(tmp_path / "text", model="qwen3", size="tiny")
    result = CliRunner().invoke(app, ["profile", str(tmp_path / "text"), "--roofline", "a6000"])
    assert result.exit_code == 0, result.output
    asked = ["--model", str(tmp_path / "text"), "--hardware", "a6000", "--workload", "agents"]
    result = CliRunner().invoke(app, ["simulate", *asked, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "assumes 1 × RTX-A6000: thinker on 0" in result.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "name a checkpoint to be measured"),
        (["--roofline", "H200"], "--roofline needs --model"),
        (["--roofline", "H900", "--model", RELEASED], "no datasheet of 'H900'"),
        (["--roofline", "H200", "--model", "x"], "no shape of a model 'x'"),
        (["nowhere/at-all", "--max-rows", "-1"], "max_rows is -1"),
        (["here", "--out", "no/folder/a.json"], "no/folder is not a directory; name a file with --out"),
        (["here", "--out", "."], "it is a directory; name a file with --out"),
        (["here", "--roofline", "H200", "--model", RELEASED], f"CHECKPOINT here and --model {RELEASED}"),
        (["here", "--model", RELEASED], "--model: that goes with --roofline"),
        (["here", "--devices", "2"], "--devices: that goes with --roofline"),
        (["--roofline", "H200", "--model", RELEASED, "--rounds", "3"], "--rounds: that describes an engine"),
        (
            ["--roofline", "H200", "--model", RELEASED, "--devices", "3"],
            "3 devices do not divide the thinker's",
        ),
    ],
)
def test_refuses_in_words(words: list[str], text: str) -> None:
    result = CliRunner().invoke(app, ["profile", *words])
    assert result.exit_code == 1
    assert text in " ".join(result.output.split())


def test_devices_go_by_the_names_that_simulate_knows() -> None:
    result = CliRunner().invoke(app, ["profile", "--roofline", "h100", "--model", RELEASED])
    assert result.exit_code == 0, result.output
    assert "worked out for H100-SXM" in result.output


def test_measures_a_checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny.json"
    sizes = ["--max-rows", "2", "--kv-tokens", "512", "--max-context-tokens", "256", "--rounds", "1"]
    result = CliRunner().invoke(app, ["profile", str(tiny_checkpoint), "--out", str(out), *sizes])
    assert result.exit_code == 0, result.output
    made = Profile.from_json(out.read_bytes())
    assert made.source == "measured"
    assert (made.provenance.model, made.provenance.device, made.provenance.dtype) == (
        "tiny",
        "cpu",
        "float32",
    )
    assert made.provenance.threads >= 1
    assert "error on 40 steps held out: mean, P90" in result.output


def test_a_voice_that_reads_has_no_datasheet_and_is_told_what_to_do(cascade_checkpoint: Path) -> None:
    asked = ["profile", str(cascade_checkpoint), "--roofline", "h200"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 1
    assert "no datasheet tells what a voice that reads text takes" in " ".join(result.stderr.split())
    assert "antiphon profile CHECKPOINT --out FILE.json" in " ".join(result.stderr.split())


def test_doctor_knows_all_stages_of_a_cascade(cascade_checkpoint: Path) -> None:
    facts = checkpoint_facts(str(cascade_checkpoint), lambda text: None)
    assert facts.stages == ("ears", "transcriber", "thinker", "voice")
    load = UnitSizes(max_rows=2, kv_tokens=64, step_tokens=64, chunk=1, image_pixels=1)
    assert {*parts(facts, "ears", "float32", load)} == {"weights", "work space"}
    voice = parts(facts, "voice", "bfloat16", load)
    assert voice["weights"] == 4 * facts.parameters["voice"] > 0
    assert voice["codec state"] > 0
    assert voice["work space"] > 0
