"""Tuning: values are taken by what they are worth, and kept only if seeds that decided nothing agree."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from math import inf
from pathlib import Path

import msgspec
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from antiphon.assembly.preset import read_preset
from antiphon.assembly.registry import DECISIONS
from antiphon.bench.compare import Plan, Work, prepare
from antiphon.bench.compared import figures_of
from antiphon.bench.knobs import Setting, changed, choices_of, knobs, preset_digest, preset_text, value_of
from antiphon.bench.servers import Target
from antiphon.bench.simulated import PlaySimulated, Simulators
from antiphon.bench.tune import OBJECTIVE, Tuned, Tuning, tune
from antiphon.bench.tune_report import tried_table, tuned_text, verdict
from antiphon.checkpoint.demo import make_demo
from antiphon.cli import app
from antiphon.core.config import PolicyChoice
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.metrics.log import RunEnded, RunStarted
from antiphon.policy.urgency import Urgency
from antiphon.sim.model import released
from antiphon.sim.run import Setup
from sim.runs import SMALL, setup, started

SHIPPED = {"safe_s": 1.0, "beta": 40.0, "brink_s": 0.3, "rows_to": 0.75}
"""Options of liveserve's step policy."""
SAFE = Setting("talker", "step", "safe_s", 2.0)
RATIO = Setting("talker", "step", "beta/alpha", 3.0)
Options = dict[str, float]
Makes = Callable[[Options, int], dict[str, float]]


def talker_step(preset: str) -> Options:
    return read_preset(preset)["step"].of("talker")[1]


class Pretend:
    """Implements `compare.Runner`: figures by the talker's options and the seed; None: the run fails."""

    def __init__(self, makes: Makes) -> None:
        self.makes = makes
        self.done: list[tuple[str, int]] = []

    async def __call__(self, target: Target, seed: int, log: Path) -> dict[str, float]:
        assert target.preset is not None
        self.done.append((target.name, seed))
        values = self.makes(talker_step(target.preset), seed)
        event = RunEnded(t_s=1.0, reason="finished", message=json.dumps(values))
        await asyncio.to_thread(log.write_bytes, msgspec.json.encode(event) + b"\n")
        return values


def sweep_of(*groups: tuple[Setting, ...], preset: str = "liveserve") -> Tuning:
    return Tuning(preset, groups, (0, 1), (2, 3, 4))


async def tuned(sweep: Tuning, makes: Makes, folder: Path, resume: bool = False) -> tuple[Tuned, Pretend]:
    runner = Pretend(makes)
    plan = Plan((sweep.start,), (*sweep.seeds, *sweep.held_out), "talk")
    prepare(plan, folder, resume)

    def again(log: Path) -> dict[str, float]:
        return json.loads(json.loads(log.read_text())["message"])

    return await tune(sweep, Work(Simulators(), runner, again, plan, folder, lambda _: None), folder), runner


def figures(ttfp_s: float, continuity: float = 1.0, waste: float = 0.2) -> dict[str, float]:
    return {OBJECTIVE: ttfp_s, "continuity": continuity, "waste_ratio": waste}


def by_safe_s(worth: dict[float, float]) -> Makes:
    """TTFP by P_safe, a little apart from seed to seed."""
    return lambda options, seed: figures(worth[options["safe_s"]] * (1 + seed / 50))


def safe_s(*values: float) -> tuple[Setting, ...]:
    return tuple(Setting("talker", "step", "safe_s", value) for value in values)


async def test_the_best_value_is_taken_and_held_to_the_start_on_other_seeds(tmp_path: Path) -> None:
    makes = by_safe_s({1.0: 0.5, 0.5: 0.6, 2.0: 0.3, 4.0: 0.299})
    found, runner = await tuned(sweep_of(safe_s(0.5, 1.0, 2.0, 4.0)), makes, tmp_path)
    assert [(one.setting.value, one.outcome) for one in found.tried] == [
        (0.5, "no gain"),
        (2.0, "taken"),
        (4.0, "no gain"),
    ], "what the start preset says is not tried again, and less than 1 % is nothing"
    assert found.tried[1].gain == pytest.approx(0.4)
    name = preset_digest(found.choices)
    assert [each for each in runner.done if each[1] > 1] == [
        ("start", 2),
        (name, 2),
        (name, 3),
        ("start", 3),
        ("start", 4),
        (name, 4),
    ], "who is first turns round with every seed"
    assert len(runner.done) == 2 * 4 + 3 * 2
    assert found.is_better
    assert talker_step(str(tmp_path / f"{name}.yaml"))["safe_s"] == 2.0
    assert found.choices["step"].of("talker")[1] == SHIPPED | {"safe_s": 2.0}
    assert found.choices["step"].of("thinker")[1] == SHIPPED
    said = verdict(found)
    assert said[0] == "taken: step of talker: safe_s 2 s"
    assert "on 3 seeds that decided nothing, tuned against start: ttfp_s.p90" in said[1]
    assert said[1].endswith("better")


async def test_groups_go_on_from_the_best_so_far(tmp_path: Path) -> None:
    def makes(options: Options, seed: int) -> dict[str, float]:
        is_both = options["safe_s"] == 2.0 and options.get("beta") == 3.0
        return figures(0.1 + seed / 1000 if is_both else 0.5 / options["safe_s"] + seed / 1000)

    found, _ = await tuned(sweep_of(safe_s(2.0), (RATIO,)), makes, tmp_path)
    assert found.taken == [SAFE, RATIO]
    assert found.choices["step"].of("talker")[1] == SHIPPED | {"safe_s": 2.0, "alpha": 1.0, "beta": 3.0}


async def test_only_the_last_value_taken_of_a_group_is_told(tmp_path: Path) -> None:
    makes = by_safe_s({1.0: 0.5, 2.0: 0.4, 4.0: 0.3})
    found, _ = await tuned(sweep_of(safe_s(2.0, 4.0)), makes, tmp_path)
    assert [one.outcome for one in found.tried] == ["taken", "taken"]
    said = "taken: step of talker: safe_s 4 s"
    assert [line for line in verdict(found) if line.startswith("taken")] == [said]
    text = tuned_text(found, "simulated", "talk")
    assert f"# {said}\n" in text
    assert "safe_s 2 s" not in text
    shown = Console(width=150, file=io.StringIO(), record=True)
    shown.print(tried_table(found))
    lines = shown.export_text().splitlines()
    outcomes = [line.partition("%")[2].strip() for line in lines if "safe_s" in line]
    assert outcomes == ["taken, then replaced", "taken"]


async def test_values_of_a_group_take_turns(tmp_path: Path) -> None:
    """A live sweep plays the best so far again with each group: gains are against what ran beside it."""
    worth = by_safe_s({1.0: 0.5, 2.0: 0.3, 4.0: 0.4})
    found, runner = await tuned(replace(sweep_of(safe_s(2.0, 4.0)), is_live=True), worth, tmp_path / "a")
    first, second = (preset_digest(changed(read_preset("liveserve"), one)) for one in safe_s(2.0, 4.0))
    again = "start-again-1"
    assert [name for name, seed in runner.done if seed < 2] == [
        *("start", "start"),
        *(again, first, second),
        *(second, first, again),
    ]
    runs = itertools.count()

    def slower(options: Options, seed: int) -> dict[str, float]:
        """On a machine that takes twice as long from its third run on."""
        pace = 1 if next(runs) < 2 else 2
        return figures(pace * {1.0: 0.5, 2.0: 0.3}[options["safe_s"]])

    found, _ = await tuned(replace(sweep_of(safe_s(2.0)), is_live=True), slower, tmp_path / "b")
    assert [one.outcome for one in found.tried] == ["taken"]
    assert found.tried[0].gain == pytest.approx(0.4)


async def test_a_resumed_run_counts_logs_of_the_same_preset_only(tmp_path: Path) -> None:
    """A run that failed and now succeeds changes all that is tried after it."""
    groups = safe_s(2.0), (Setting("thinker", "step", "safe_s", 3.0),)
    is_broken = True

    def makes(options: Options, seed: int) -> dict[str, float]:
        if is_broken and options["safe_s"] == 2.0:
            raise AntiphonError("connection lost")
        return figures(0.5 / options["safe_s"])

    before, _ = await tuned(sweep_of(*groups), makes, tmp_path)
    assert [one.outcome for one in before.tried] == ["failed", "no gain"]
    is_broken = False
    after, runner = await tuned(sweep_of(*groups), makes, tmp_path, resume=True)
    assert [one.outcome for one in after.tried] == ["taken", "no gain"]
    both = preset_digest(changed(after.choices, groups[1][0]))
    assert {name for name, seed in runner.done if seed < 2} == {preset_digest(after.choices), both}
    assert after.tried[1].figures[OBJECTIVE] == 0.25
    alone = preset_digest(changed(read_preset("liveserve"), groups[1][0]))
    for name, said in ((both, 2.0), (alone, 1.0)):
        assert talker_step(str(tmp_path / f"{name}.yaml")).get("safe_s") == said


async def test_a_setting_whose_runs_do_not_tell_of_gaps_is_not_taken(tmp_path: Path) -> None:
    def makes(options: Options, seed: int) -> dict[str, float]:
        if options["safe_s"] != 2.0:
            return figures(0.5 + seed / 100)
        return {name: value for name, value in figures(0.3).items() if name != "continuity"}

    found, _ = await tuned(sweep_of(safe_s(2.0)), makes, tmp_path)
    assert found.taken == []


async def test_luck_does_not_last(tmp_path: Path) -> None:
    """Better on the tuning seeds, and no different on the others."""

    def makes(options: Options, seed: int) -> dict[str, float]:
        lucky = options["safe_s"] == 2.0 and (seed < 2 or seed == 3)
        return figures(0.3 if lucky else 0.5 + (seed == 2) * options["safe_s"] / 5)

    found, _ = await tuned(sweep_of(safe_s(2.0)), makes, tmp_path)
    assert found.taken == [SAFE]
    assert not found.is_better
    assert found.choices == read_preset("liveserve")
    assert verdict(found)[-1].endswith("the start preset is kept")


@pytest.mark.parametrize(
    ("harm", "outcome"),
    [
        ({"continuity": 0.98}, "worse for people"),
        ({"waste": 0.25}, "worse for people"),
        ({"continuity": 0.996, "waste": 0.205}, "taken"),
    ],
)
async def test_nobody_pays_for_it(harm: dict[str, float], outcome: str, tmp_path: Path) -> None:
    def makes(options: Options, seed: int) -> dict[str, float]:
        return figures(0.3 + seed / 100, **harm) if options["safe_s"] == 2.0 else figures(0.5 + seed / 100)

    found, _ = await tuned(sweep_of(safe_s(2.0)), makes, tmp_path)
    assert [one.outcome for one in found.tried] == [outcome]
    assert found.is_better == (outcome == "taken")


async def test_harm_on_held_out_seeds_counts_too(tmp_path: Path) -> None:
    def makes(options: Options, seed: int) -> dict[str, float]:
        is_tuned = options["safe_s"] == 2.0
        return figures(0.3 if is_tuned else 0.5, 0.9 if is_tuned and seed > 1 else 1.0)

    found, _ = await tuned(sweep_of(safe_s(2.0)), makes, tmp_path)
    assert found.held_out[0].verdict == "better"
    assert not found.is_better


async def test_a_run_that_fails_costs_its_setting_only(tmp_path: Path) -> None:
    def makes(options: Options, seed: int) -> dict[str, float]:
        if options["safe_s"] == 2.0 and seed == 1:
            raise AntiphonError("connection lost")
        return figures(0.2 if options["safe_s"] == 4.0 else 0.5)

    found, _ = await tuned(sweep_of(safe_s(2.0, 4.0)), makes, tmp_path)
    assert [one.outcome for one in found.tried] == ["failed", "taken"]
    assert found.tried[0].gain is None
    shown = Console(width=120, record=True, quiet=True)
    shown.print(tried_table(found))
    with pytest.raises(AntiphonError, match=r"not every run has ttfp_s\.p90; there are ttft_s\.p90"):
        await tuned(sweep_of(safe_s(2.0)), lambda *_: {"ttft_s.p90": 1.0}, tmp_path / "mute")


async def test_without_a_gain_nothing_is_held_out(tmp_path: Path) -> None:
    found, runner = await tuned(sweep_of(safe_s(2.0)), by_safe_s({1.0: 0.5, 2.0: 0.5}), tmp_path)
    assert not found.held_out
    assert {seed for _, seed in runner.done} == {0, 1}
    assert verdict(found) == [
        "no setting lowered ttfp_s.p90 by 1% or more without harm: the start preset is kept"
    ]
    again, runner = await tuned(sweep_of(safe_s(2.0)), by_safe_s({1.0: 0.5, 2.0: 0.5}), tmp_path, resume=True)
    assert not runner.done
    assert again.tried == found.tried


async def test_a_setting_that_is_clearly_better_is_found_by_playing(tmp_path: Path) -> None:
    """A talker that takes every reply for one that runs dry lets nobody new begin."""
    bad = changed(read_preset("liveserve"), Setting("talker", "step", "safe_s", 100.0))
    start = tmp_path / "bad.yaml"
    start.write_text(re.sub("spare_s: [0-9.]+", "spare_s: 1000.0", preset_text(bad, "A bad start.")))

    def made(target: Target, seed: int) -> tuple[Setup, RunStarted]:
        engine = released(target.preset or "", sizes=replace(SMALL, max_rows=8))
        load = {"load": {"closed": {"concurrency": 10, "duration_s": 10.0}}}
        return setup("voice-chat", seed, load, engine=engine), started(seed)

    sweep = Tuning(str(start), (safe_s(0.5, 100.0),), (0,), (1, 2))
    plan = Plan((sweep.start,), (0, 1, 2), "voice-chat")
    prepare(plan, tmp_path, False)
    runner = PlaySimulated(made, Console(quiet=True))
    work = Work(Simulators(), runner, figures_of, plan, tmp_path, lambda _: None)
    found = await tune(sweep, work, tmp_path)
    assert found.taken == list(safe_s(0.5))
    assert found.tried[0].gain is not None
    assert found.tried[0].gain > 0.3
    written = tmp_path / "tuned.yaml"
    written.write_text(tuned_text(found, "simulated", "voice-chat"))
    assert value_of(read_preset(str(written)), SAFE) == (0.5 if found.is_better else 100.0)
    assert written.read_text().startswith("# Written by `antiphon tune` from preset")


# -- presets as files ---------------------------------------------------------------------------------


def test_a_preset_written_says_what_it_said(tmp_path: Path) -> None:
    for name in ("baseline", "liveserve"):
        path = tmp_path / f"{name}.yaml"
        choices = read_preset(name)
        path.write_text(preset_text(choices, "One line.\nAnother: with a colon."))
        assert read_preset(str(path)) == choices
    observed = {**choices, "evict": PolicyChoice("lru", observe=True)}
    path.write_text(preset_text(observed, ""))
    assert read_preset(str(path))["evict"].observe


def test_what_is_tried_is_what_urgency_decides() -> None:
    groups = knobs("liveserve", ("talker", "code2wav"), (1.0, 2.0, 2.0), (0.5,))
    assert [[str(setting) for setting in group] for group in groups] == [
        ["step of talker: safe_s 1 s", "step of talker: safe_s 2 s"],
        ["step of talker: beta/alpha 0.5"],
        ["pace of talker: safe_s 1 s", "pace of talker: safe_s 2 s"],
        ["pace of talker: beta/alpha 0.5"],
        ["step of code2wav: safe_s 1 s", "step of code2wav: safe_s 2 s"],
        ["step of code2wav: beta/alpha 0.5"],
    ], "the vocoder is not paced"
    assert value_of(read_preset("liveserve"), Setting("talker", "pace", "safe_s", 1.0)) == 4.0
    assert value_of(read_preset("liveserve"), RATIO) == 40.0


def test_what_is_not_in_the_paper_can_be_tried_too() -> None:
    groups = knobs("liveserve", ("talker",), (), (), (0.0, 0.6), (0.2, inf))
    assert [[str(setting) for setting in group] for group in groups] == [
        ["step of talker: brink_s 0 s", "step of talker: brink_s 0.6 s"],
        ["device: spare_s 0.2 s", "device: spare_s inf s"],
    ]
    choices = read_preset("liveserve")
    (brink, _), (spare, _) = groups
    assert [value_of(choices, one) for one in (brink, spare)] == [0.3, 0.5]
    changed_twice = changed(changed(choices, brink), spare)
    assert [value_of(changed_twice, one) for one in (brink, spare)] == [0.0, 0.2]
    assert changed_twice["device"].policy == "most-urgent"
    assert changed_twice["step"].of("thinker") == choices["step"].of("thinker")
    tree = yaml.safe_load(preset_text(changed_twice, ""))
    assert (tree["device"]["spare_s"], tree["step"]["stages"]["talker"]["brink_s"]) == (0.2, 0.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--spare-s", "0"], "device: most-urgent: spare_s is 0.0; it must be above 0"),
        (["--brink-s", "low"], "--brink-s low: expected numbers with commas between"),
        (["--preset", "baseline"], "preset baseline: there is nothing to tune"),
        (["--preset", "nope"], "no preset 'nope'"),
        (["--safe-s", "0"], "step: urgency: safe_s is 0.0; it must be above 0"),
        (["--ratios", "1,x"], "--ratios 1,x: expected numbers with commas between"),
        (["--safe-s", "", "--ratios", ""], "there is nothing to tune"),
        (["--stages", "painter"], "--stages painter: this model has thinker, talker, code2wav; name some"),
        (["--objective", "continuity"], "objective continuity: less of it must be better"),
        (["--objective", "nope"], "objective nope: less of it must be better"),
        (["--serve", "--threads 1"], "--serve: that is for servers over the wire; leave it out"),
        (
            ["--live", "--max-rows", "2"],
            "--max-rows: that is of a simulated machine; with --live",
        ),
        (["--live"], "--live serves the presets that are tried: --model says what checkpoint with"),
        (["--hardware", "abacus"], "no hardware 'abacus'"),
    ],
)
def test_wrong_words(words: list[str], said: str, tmp_path: Path) -> None:
    result = command(*words, "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


def test_a_live_sweep_needs_stages_of_the_checkpoint(tmp_path: Path) -> None:
    """They are read from its config: with `--load-format dummy` there are no weights."""
    make_demo(tmp_path / "omni", size="tiny")
    make_demo(tmp_path / "text", model="qwen3", size="tiny")
    for weights in tmp_path.glob("*/*.safetensors"):
        weights.unlink()
    live = ["--live", "--serve", "--load-format dummy", "--out", str(tmp_path / "out")]
    for words, said in (
        (["--model", str(tmp_path / "omni"), "--stages", "talkr"], "talkr: this model has thinker, talker, "),
        (["--model", str(tmp_path / "text")], "talker: this model has thinker; name"),
    ):
        result = command(*live, *words)
        assert result.exit_code == 1
        assert f"--stages {said}" in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


def test_servers_of_a_sweep_are_always_one_at_a_time() -> None:
    result = command("--live", "--one-at-a-time")
    assert result.exit_code == 2
    assert "No such option: --one-at-a-time" in " ".join(result.stderr.split())


def test_defaults_are_the_policys() -> None:
    """A preset that says nothing has what the policy is made with."""
    choices = {"step": PolicyChoice("urgency"), "pace": PolicyChoice("urgency", {"alpha": 2, "beta": 3})}
    known = signature(Urgency).parameters
    assert value_of(choices, SAFE) == known["safe_s"].default
    assert value_of(choices, RATIO) == known["beta"].default / known["alpha"].default
    assert value_of(choices, replace(RATIO, decision="pace")) == 1.5


def test_an_observed_preset_has_nothing_to_tune(tmp_path: Path) -> None:
    choices = {
        key: msgspec.structs.replace(one, observe=True) for key, one in read_preset("liveserve").items()
    }
    (tmp_path / "observed.yaml").write_text(preset_text(choices, ""))
    with pytest.raises(ConfigError, match="there is nothing to tune"):
        knobs(str(tmp_path / "observed.yaml"), ("talker",), (1.0,), ())


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["tune", *words], env={"COLUMNS": "200"})


def test_the_command_writes_a_preset_that_others_take(tmp_path: Path) -> None:
    words = ["--workload", "readers", "--rate", "2", "--duration", "30", "--hardware", "a6000"]
    words += ["--model", "llama-3-8b", "--stages", "thinker", "--safe-s", "2", "--ratios", ""]
    words += ["--objective", "ttft_s.p90", "--seeds", "1", "--held-out", "2", "--out", str(tmp_path)]
    start, choices = tmp_path / "start.yaml", choices_of("liveserve", "text")
    start.write_text(preset_text(choices, ""))
    words += ["--preset", str(start)]
    result = command(*words)
    assert result.exit_code == 0, result.stderr
    assert "step of thinker: safe_s 2 s" in result.stdout
    tuned_file = tmp_path / "tuned.yaml"
    assert read_preset(str(tuned_file)).keys() == set(DECISIONS)
    assert "readers, simulated: " in tuned_file.read_text()
    refused = command(*words)
    assert refused.exit_code == 1
    assert "go on with it by --resume" in " ".join(refused.stderr.split())
    again = command(*words, "--resume")
    assert "start, seed 0: measured before" in again.stderr
    assert "running" not in again.stderr
    other = command(*words, "--resume", "--first-seed", "1")
    assert other.exit_code == 1
    said = " ".join(other.stderr.split())
    assert "options was {'tuning seeds': [0]} in" in said
    assert said.endswith("now it is {'tuning seeds': [1]}")
    start.write_text(preset_text(changed(choices, replace(SAFE, stage="thinker")), ""))
    assert "cannot resume: options was {'start': " in " ".join(command(*words, "--resume").stderr.split())
    simulated = ["simulate", "--preset", str(tuned_file), *words[:10], "--out", str(tmp_path / "s")]
    assert CliRunner().invoke(app, simulated).exit_code == 0


def test_an_option_of_a_policy_that_does_not_decide_is_refused(tmp_path: Path) -> None:
    choices = read_preset("liveserve") | {"device": read_preset("baseline")["device"]}
    (tmp_path / "turns.yaml").write_text(preset_text(choices, ""))
    with pytest.raises(ConfigError, match="spare_s is an option of most-urgent, which does not decide"):
        knobs(str(tmp_path / "turns.yaml"), ("talker",), (1.0,), (), (), (0.2,))


@pytest.mark.slow
def test_a_live_sweep_serves_every_setting_and_writes_what_it_found(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    words = ["--live", "--model", str(tiny_checkpoint), "--serve", "--device cpu --threads 1 --min-lead-s 0"]
    words += ["--workload", "smoke", "--concurrency", "1", "--duration", "5", "--stages", "talker"]
    words += ["--safe-s", "", "--ratios", "", "--spare-s", "0.2", "--seeds", "1", "--held-out", "2"]
    result = command(*words, "--out", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert "device: spare_s 0.2 s" in result.stdout
    (tried,) = (tmp_path / "presets").glob("*.yaml")
    assert read_preset(str(tried))["device"].options == {"spare_s": 0.2}
    logs = {log.stem for log in (tmp_path / "runs").glob("*.jsonl")}
    assert {"start-seed0", "start-again-1-seed0", f"{tried.stem}-seed0"} <= logs
    best = tmp_path / "tuned.yaml"
    assert read_preset(str(best))["device"].options["spare_s"] in (0.2, 0.5)
    assert "smoke, served: " in best.read_text()
    assert "measured before" in command(*words, "--out", str(tmp_path), "--resume").stderr
