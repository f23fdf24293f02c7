"""Deployments on the command line: explained, shown, looked at, and what options win over them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from antiphon.assembly.deployment import Deployment
from antiphon.assembly.deployment_file import deployment_names, read_deployment
from antiphon.assembly.keys import find_key, keys, model_at
from antiphon.cli import app
from antiphon.cli.config import explained, lines_of, page_of_keys
from antiphon.core.model_source import PARTS, parts_in, source_of
from antiphon.core.stage_options import StageOptions
from antiphon.server import launch
from antiphon.wire.readers import ReaderRates

DOCS = Path(__file__).parents[1] / "docs" / "deployments.md"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


@pytest.mark.parametrize("key", list(keys()), ids=lambda key: key.path)
def test_every_key_says_what_it_is(key: Any) -> None:
    assert key.meaning.endswith(".")
    said = "\n".join(lines_of(key.path))
    assert key.meaning in said
    assert f"type      {key.type}" in said
    assert "used by   " in said
    if key.inner is None:
        assert key.example is not None


def test_every_example_can_be_written() -> None:
    """An example stands where it may."""
    for key in keys():
        if key.example is None or key.path == "base":
            continue
        name = "a -> b" if key.path.startswith("edges") else "thinker"
        tree: Any = key.example
        if key.path.endswith(".devices"):
            tree = tree[:1]
        for part in reversed(key.path.replace("NAME", name).split(".")):
            tree = {part: tree}
        if key.path.endswith(".prefill"):
            tree["stages"]["thinker"]["replicas"] = 2
        Deployment.model_validate(tree)


def test_a_key_explained() -> None:
    said = run("config", "explain", "stages.talker.replicas").output.splitlines()
    assert said[0] == "stages.talker.replicas"
    assert "allowed   1 or more, at most 256" in said[3]
    assert "default   1" in said[4]
    assert "example   replicas: 4" in said[5]
    assert "used by   liveserve-8gpu (4)" in said[6]
    assert "allowed   baseline or " in run("config", "explain", "preset").output
    assert "H100-SXM" in run("config", "explain", "devices.x.kind").output
    assert "keys      temperature, top_k" in run("config", "explain", "stages.x.sampling").output
    assert "liveserve-8gpu (yes)" in run("config", "explain", "edges").output
    assert set(run("config", "explain").output.split()) >= {key.path for key in keys()}


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("stages.thinker.kv_token", "did you mean kv_tokens?"),
        ("kv_tokens", "did you mean defaults.kv_tokens?"),
        ("model.x", "model has no keys inside"),
        ("", "Keys of a deployment"),
        ("demo", "demo is a deployment: `antiphon config show demo` prints it"),
    ],
)
def test_a_key_that_is_none(key: str, words: str) -> None:
    said = run("config", "explain", key or "..")
    assert said.exit_code == 1
    assert words in said.output.replace("\n", "")


def test_locations_of_keys() -> None:
    assert find_key("edges.talker -> code2wav.chunk").meaning
    assert model_at(["nowhere", "x"]) is None
    assert model_at(["limits", "max_sessions", "x"]) is None


@pytest.mark.parametrize("name", deployment_names())
def test_what_is_shown_can_be_served(name: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Shown and read again it is the same, with no base and no size left open."""
    shown = run("config", "show", name, *(["--model", str(tiny_checkpoint)] if name == "demo" else []))
    assert shown.exit_code == 0, shown.output
    path = tmp_path / "shown.yaml"
    path.write_text(shown.stdout)
    again, first = read_deployment(str(path)), read_deployment(name)
    assert again.base is None
    assert (again.limits, again.devices, again.edges) == (first.limits, first.devices, first.edges)
    assert again.stages["thinker"].kv_tokens
    assert run("config", "show", str(path)).stdout == shown.stdout


def test_a_deployment_looked_at(tiny_checkpoint: Path) -> None:
    said = run("doctor", "liveserve-8gpu")
    assert said.exit_code == 0
    for words in ("code2wav.3", "reader.0", "121.1 GiB of 139.0 GiB", "hold", "256 answer at once", "CUDA"):
        assert words in said.output
    demo = run("doctor", "demo", "--model", str(tiny_checkpoint), "--workload", "voice-chat")
    assert demo.exit_code == 0
    assert "1 x 16384 tokens hold" in demo.output
    assert "8 rows and 512 tokens; with prompts beside live replies at most 0.25 of a listener's lead" in (
        demo.output
    )
    unknown = run("doctor", "demo")
    assert "needs a model: give --model" in unknown.output
    assert "no model is named" in unknown.output


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"step_s": 0}, "as long as that takes (step_s 0)"),
        ({"step_s": 0.1, "profile": "H200"}, "at most 0.1 s (step_s), by the profile H200"),
        ({"classes": {"latency": {"tpot_s": 0.05}}}, "at most 0.05 s (tpot_s of latency), once"),
        ({"classes": {"best_effort": {"tpot_s": 0.5}}}, "at most 0.5 s (tpot_s of best_effort) or 0.25 of"),
    ],
)
def test_what_bounds_a_step_is_explained(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(yaml.safe_dump({"base": "demo", **keys}))
    assert said in run("doctor", str(path)).output


def test_a_wrong_deployment_looked_at(tmp_path: Path) -> None:
    """All that is wrong is said, beside all that can be said; the status is 1."""
    tree = {
        "base": "one-gpu",
        "cuda_graphs": "on",
        "attention": "triton",
        "stages": {
            "thinker": {"memory_fraction": 0.9, "host_kv_tokens": 9000, "process": "own"},
            "singer": {},
        },
    }
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(tree))
    said = run("doctor", str(path))
    assert said.exit_code == 1
    for words in (
        "fractions sum to 1.11",
        "no such stage",
        "cuda_graphs: have not run",
        "triton has not run",
    ):
        assert words in said.output
    for words in ("copies to the host", "processes of their own", "host    thinker"):
        assert words in said.output
    shown = run("config", "show", str(path))
    assert shown.exit_code == 1
    assert "wrong:" in shown.output
    served = run("serve", "--config", str(path))
    assert served.exit_code == 1
    assert "this deployment can't be" in served.output


TALKING = ("encoders", "thinker", "talker")
TWO_WAYS = {"encoders -> thinker": {"connector": "tcp"}, "thinker -> talker": {"connector": "shared_memory"}}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"attention": "trton"}, "'trton' is unknown"),
        ({"attention": "triton"}, "triton runs on cuda, not on cpu"),
        ({"cuda_graphs": "on"}, "cuda-graphs needs CUDA, and the device is cpu"),
        ({"stages": {"thinker": {"tensor_parallel": 3}}}, "num_heads"),
        (
            {"stages": {name: {"process": "ab"[name != "thinker"]} for name in TALKING}, "edges": TWO_WAYS},
            "processes a and b are joined once",
        ),
    ],
)
def test_what_serve_would_refuse_is_wrong(
    tree: dict[str, Any], words: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(yaml.safe_dump({"base": "demo", **tree}))
    for command in (["doctor", str(path), "--model"], ["serve", "--config", str(path)]):
        said = run(*command, str(tiny_checkpoint))
        assert said.exit_code == 1
        assert words in " ".join(said.output.split())


def test_a_deployment_for_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(yaml.safe_dump({"base": "one-gpu", "attention": "flashinfer", "cuda_graphs": "on"}))
    said = run("doctor", str(path))
    assert said.exit_code == 0
    assert "nothing, but it is for another machine" in said.output


def test_processes_on_one_gpu_are_said(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(yaml.safe_dump({"base": "one-gpu", "stages": {"talker": {"process": "voice"}}}))
    said = run("doctor", str(path))
    assert "cuda:0: processes shared, voice run on it without turns and slow each other" in said.output
    assert "without turns" not in run("doctor", "one-gpu").output


def test_ranks_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(yaml.safe_dump({"base": "demo", "stages": {"thinker": {"tensor_parallel": 2}}}))
    said = run("doctor", str(path))
    row = next(line.split() for line in said.output.splitlines() if line.split()[:1] == ["thinker"])
    assert row[3] == "2"
    assert "known once a checkpoint is named" in said.output


@pytest.mark.parametrize(
    "words", [["doctor", "nope"], ["config", "show", "nope"], ["serve", "x", "--config", "nope"]]
)
def test_a_deployment_that_is_not_there(words: list[str]) -> None:
    said = run(*words)
    assert said.exit_code == 1
    assert "no deployment 'nope'" in said.output


def test_a_workload_that_is_not_there() -> None:
    said = run("doctor", "one-gpu", "--workload", "nope")
    assert said.exit_code == 1
    assert "no workload" in said.output


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `serve` would have begun."""
    begun: list[Any] = []

    async def run_nothing(*args: Any) -> None:
        begun[:] = args

    monkeypatch.setattr(launch, "run", run_nothing)
    return begun


def test_options_win_over_a_deployment(served: list[Any], tiny_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    stages = {"talker": {"kv_tokens": 9000, "step_tokens": 32}}
    tree = {"base": "demo", "model": str(tiny_checkpoint), "stages": stages}
    tree["prefix_cache"] = "off"
    tree["limits"] = {"session": {"max_open_responses": 2}}
    tree["readers"] = {"reading": 8, "streamed": "reading", "whole": "auto"}
    path.write_text(yaml.safe_dump(tree))
    assert run("serve", "--config", str(path)).exit_code == 0
    start, settings = served[:2]
    assert start.source == str(tiny_checkpoint)
    assert (start.options.device, start.options.of("talker").kv_tokens) == ("cpu", 9000)
    assert (settings.max_sessions, settings.max_open_responses, settings.min_lead_s) == (16, 8, 0.6)

    assert settings.readers == ReaderRates(reading=8.0, streamed="reading", whole="auto")
    assert not settings.prefix_cache

    flags = (
        "--step-s 0.3 --kv-tokens 6000 --max-sessions 3 --max-open-responses 7 --max-items 5 --min-lead-s 0"
    )
    other = str(tiny_checkpoint.parent / "." / tiny_checkpoint.name) + "/"
    said = run("serve", other, "--config", str(path), *flags.split(), "--device", "auto", "--cuda-graphs")
    assert said.exit_code == 0, said.output
    start, settings = served[:2]
    assert start.source == other
    assert (start.options.device, start.options.places, start.options.graphs) == ("auto", {}, "on")
    assert start.options.of("talker").kv_tokens == start.options.of("thinker").kv_tokens == 6000
    assert start.options.step_s == 0.3
    assert start.options.stages["talker"] == StageOptions(max_rows=8, step_tokens=32)
    assert (settings.max_sessions, settings.max_open_responses, settings.min_lead_s) == (3, 7, 0.0)
    assert (settings.limits.max_items, settings.limits.max_open_responses) == (5, 2)


@pytest.fixture
def cascade(cascade_checkpoint: Path, tmp_path: Path) -> Path:
    """A deployment that names the tiny cascade's parts relative to itself."""
    (tmp_path / "there").symlink_to(cascade_checkpoint)
    tree = {"base": "cascade", "parts": {part: f"there/{part}" for part in PARTS}}
    path = tmp_path / "cascade.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_parts_of_a_deployment_are_served(served: list[Any], cascade: Path, cascade_checkpoint: Path) -> None:
    """Without a MODEL, and what the command line names of them wins."""
    said = run("serve", "--config", str(cascade))
    assert said.exit_code == 0, said.output
    start = served[0]
    assert parts_in(start.source) == {part: str(cascade_checkpoint / part) for part in PARTS}
    assert start.name == "thinker"
    assert start.options.of("transcriber").max_rows == 4
    other = cascade_checkpoint.parent / "." / cascade_checkpoint.name / "thinker"
    assert run("serve", f"thinker={other}", "--config", str(cascade)).exit_code == 0
    assert parts_in(served[0].source)["thinker"] == str(other)
    inline = source_of({part: str(cascade_checkpoint / part) for part in PARTS})
    assert run("serve", inline).exit_code == 0
    assert served[0].source == inline
    whole = run("serve", str(cascade_checkpoint), "--config", "cascade")
    assert whole.exit_code == 0, whole.output
    assert served[0].source == str(cascade_checkpoint)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "--config", "cascade"], "no model: name a checkpoint directory, a hub id, or the parts"),
        (["serve", "thinker=x"], "a cascade without transcriber and voice"),
        (["serve", "thinker=x", "--config", "cascade"], "a cascade without transcriber and voice"),
        (["doctor", "cascade", "--model", "thinker=x,vioce=y"], "did you mean voice?"),
        (["serve", "org/name", "--config", "FILE"], "the model 'org/name' is given, and `parts` names"),
        (["doctor", "FILE", "--model", "thinker=nowhere"], "thinker: 'nowhere' is neither a directory"),
        (["simulate", "--config", "FILE", "--model", "x", "--hardware", "H200"], "a deployment has one"),
    ],
)
def test_parts_that_cannot_be_served(cascade: Path, words: list[str], told: str) -> None:
    said = run(*[str(cascade) if word == "FILE" else word for word in words])
    assert said.exit_code in (1, 2), said.output  # `simulate` keeps 1 for what a run finds
    assert told in said.output.replace("\n", " ")


def test_a_cascade_looked_at(cascade: Path, tmp_path: Path) -> None:
    """All four stages have a place and weights, in processes of their own too."""
    said = run("doctor", str(cascade))
    assert said.exit_code == 0, said.output
    assert all(stage in said.output for stage in ("ears", "transcriber", "thinker", "voice"))
    apart = tmp_path / "apart.yaml"
    tree = {"base": cascade.name, "stages": {"voice": {"process": "mouth"}, "ears": {"process": "head"}}}
    apart.write_text(yaml.safe_dump(tree))
    rows = [line.split() for line in run("doctor", str(apart)).output.splitlines()]
    assert ["voice", "cpu", "mouth", "1", "8"] in rows
    assert ["ears", "cpu", "head", "1"] in rows
    heads = next(row for row in rows if "ranks" in row)
    assert "KV" in heads
    transcriber = next(row for row in rows if row[0] == "transcriber")
    assert len(transcriber) == len(next(row for row in rows if row[0] == "thinker")), "both are decoders"
    weights = next(row for row in rows if row[:2] == ["cpu", "voice"])
    assert float(weights[2]) > 0
    shown = run("config", "show", str(cascade))
    assert yaml.safe_load(shown.stdout)["parts"].keys() == set(PARTS)
    (tmp_path / "shown.yaml").write_text(shown.stdout)
    assert run("config", "show", str(tmp_path / "shown.yaml")).stdout == shown.stdout
    named = run("config", "show", "cascade", "--model", read_deployment(str(cascade)).source())
    assert yaml.safe_load(named.stdout)["parts"] == yaml.safe_load(shown.stdout)["parts"]


def test_settings_of_a_cascade_stand_beside_its_parts(served: list[Any], cascade: Path) -> None:
    """The command line's win over the file's."""
    tree = yaml.safe_load(cascade.read_text())
    tree["parts"] |= {"silent_tail": False, "no_speech_threshold": 0.8}
    cascade.write_text(yaml.safe_dump(tree))
    assert run("serve", "no_speech_threshold=0.7", "--config", str(cascade)).exit_code == 0
    assert served[0].source.endswith("voice,silent_tail=false,no_speech_threshold=0.7")
    shown = yaml.safe_load(run("config", "show", str(cascade)).stdout)["parts"]
    assert (shown["silent_tail"], shown["no_speech_threshold"]) == (False, 0.8)
    nobody_asks = read_deployment(str(cascade)).source().replace("=0.8", "=null")
    shown = yaml.safe_load(run("config", "show", "cascade", "--model", nobody_asks).stdout)["parts"]
    assert shown["no_speech_threshold"] == 1


def test_no_datasheet_tells_of_a_cascade(cascade: Path) -> None:
    """A datasheet tells nothing of a voice that reads: that is said of parts as of a directory."""
    said = run("profile", "--roofline", "H200", "--model", read_deployment(str(cascade)).source())
    assert said.exit_code == 1
    assert "a voice that reads text" in " ".join(said.output.split())


@pytest.mark.parametrize(
    ("readers", "preset", "expected"),
    [
        ("", "baseline", ReaderRates()),
        ("{reading: 8}", "liveserve", ReaderRates(reading=8.0)),
        ("", "tokenflow", ReaderRates(streamed="reading", whole="auto")),
        ("{reading: 8}", "tokenflow", ReaderRates(reading=8.0, streamed="reading", whole="auto")),
        ("{streamed: listening}", "tokenflow", ReaderRates(streamed="listening", whole="auto")),
    ],
)
def test_a_preset_that_schedules_by_reading_has_readers(
    served: list[Any], tiny_checkpoint: Path, tmp_path: Path, readers: str, preset: str, expected: ReaderRates
) -> None:
    """As far as the operator says nothing of them, with a deployment and without."""
    path = tmp_path / "d.yaml"
    path.write_text(f"readers: {readers}\n")
    config = ["--config", str(path)] if readers else []
    said = run("serve", str(tiny_checkpoint), *config, "--preset", preset)
    assert said.exit_code == 0, said.output
    assert served[1].readers == expected


def test_without_a_deployment_nothing_changes(served: list[Any], tiny_checkpoint: Path) -> None:
    assert run("serve", str(tiny_checkpoint), "--max-rows", "3").exit_code == 0
    assert (served[0].options.max_rows, served[0].options.stages) == (3, {})
    nothing = run("serve")
    assert nothing.exit_code == 1
    assert "no model: name a checkpoint" in nothing.output


def test_the_page_of_keys_is_what_the_keys_say() -> None:
    """Made by `antiphon config page`."""
    page = DOCS.read_text(encoding="utf-8")
    assert page.endswith("\n\n" + page_of_keys() + "\n")
    assert explained(find_key("base"))


def explain(what: str) -> str:
    return CliRunner().invoke(app, ["config", "explain", what]).output


def test_a_preset_is_explained_by_name_and_by_path(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from antiphon.policy.base import NO_HOLD\n\n\n"
        'class Own:\n    """Holds what it likes.\n\n    And more."""\n\n'
        "    def __init__(self, lead_s: float = 2.0, names: tuple[str, ...] = ()): ...\n\n"
        "    def decide(self, view, now): return NO_HOLD\n"
    )
    shipped = files("antiphon.assembly").joinpath("presets/baseline.yaml").read_text()
    own = "pace: {policy: own.py:Own, lead_s: 3, stages: {talker: {lead_s: 1}}}"
    (tmp_path / "mine.yaml").write_text(shipped.replace("pace: unpaced", own))
    said = explain(str(tmp_path / "mine.yaml"))
    assert "pace: own.py:Own\n  Holds what it likes.\n  lead_s        3  (float, default 2.0)" in said
    assert "pace, talker: own.py:Own\n  As under `pace`, with lead_s: 1.\n" in said
    assert "And more" not in said
    assert "pace: unpaced\n  Holds nothing back.\n" in explain("baseline")
    shipped = explain("liveserve")
    assert "evict: next-use\n  Decides what leaves" in shipped
    assert "write: next-use\n  As under `evict`.\n" in shipped
    assert "pace, thinker: urgency\n  As under `step`, with safe_s: 4.0, " in shipped
    assert shipped.count("share of the stage's blocks in use") == 1


def test_a_decision_is_explained_by_its_policies() -> None:
    said = explain("replica")
    assert "sticky\n  The replica that served" in said
    assert "least-loaded\n" in said
    assert "`replica: file.py:Class`" in said


def test_a_policy_is_explained_with_what_its_options_mean() -> None:
    said = explain("urgency")
    assert "urgency: a policy for step, pace\n  Decides which requests run" in said
    assert (
        "brink_s       0.0  (float, default 0.0)  lead below which a reply is at the brink: what is" in said
    )
    assert (
        "is at the brink: what is well buffered then stays out of its steps, if they are shorter for it"
        in said
    ), "all its lines"
    said = explain("liveserve")
    assert "nothing is more urgent.\n" in said, "not only the first line"
    assert "spare_s       0.5  (float, default .inf)  least lead with which" in said


@pytest.mark.parametrize(
    ("wrong", "near"), [("fcsf", "fcfs"), ("urgncy", "urgency"), ("nextuse", "next-use")]
)
def test_the_nearest_name_is_told_where_a_key_is_none(wrong: str, near: str) -> None:
    assert f"{wrong}: no such preset, decision or policy; did you mean {near}?" in explain(wrong)


def test_a_preset_that_is_observed_says_so(tmp_path: Path) -> None:
    text = files("antiphon.assembly").joinpath("presets", "liveserve.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(f"{text}observe: true\n")
    said = explain(str(tmp_path / "mine.yaml"))
    assert "step: urgency (observed: asked and counted, and prefill-first decides)" in said
    assert "pace, thinker: urgency (observed: asked and counted, and unpaced decides)" in said
    assert "admission: unlimited\n" in said
    assert "observed" not in explain("liveserve")
