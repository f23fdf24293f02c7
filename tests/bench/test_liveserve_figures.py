"""LiveServe's further figures: what is counted and charged, and that the page shows what was kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from antiphon.metrics.log import Interrupted
from fakes.logs import reply, run, session, turn

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
RESULT = json.loads((BENCHMARKS / "results" / "liveserve-figures.json").read_text())


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield import_module("liveserve_figures")


@pytest.fixture(scope="module")
def page(script: ModuleType) -> ModuleType:
    return import_module("liveserve_page")


def test_a_reply_with_a_gap_is_not_effective(script: ModuleType) -> None:
    cut = Interrupted(t_s=7.0, session="c", response="cut", kind="barge_in", heard_s=2.0)
    found = run(
        *(session(name, 0.0, 10.0) for name in "abc"),
        *(turn(name) for name in "abc"),
        reply("a", response="smooth", audio=[(2.0, 1.0), (3.05, 1.0)], end_s=4.0),
        reply("b", response="gap", audio=[(2.0, 1.0), (3.2, 1.0)], end_s=4.0),
        reply("c", response="cut", audio=[(2.0, 9.0)], end_s=8.0, status="cancelled"),
        [cut],
    )
    assert script.effective_rps(found) == pytest.approx(2 / 10)


def test_a_decision_takes_longer_for_each_call_that_evicts(script: ModuleType) -> None:
    gone: list[int] = []
    clock = script.Charged(0.125, 0.5)
    evict = clock.charge(lambda count, last: gone.extend(range(count)), lambda: len(gone))
    before_s = clock()
    assert clock() - before_s == 0.125
    before_s = clock()
    evict(3, "owner")
    evict(0, "owner")
    evict(1, "")
    assert clock() - before_s == 0.125 + 2 * 0.5
    assert len(gone) == 4


def test_a_part_of_the_preset_is_fcfs_in_all_else(script: ModuleType, tmp_path: Path) -> None:
    ours, fcfs = script.written("liveserve"), script.written("fcfs")
    for system, decisions in script.PARTS.items():
        said = yaml.safe_load(Path(script.preset(system, tmp_path)).read_text())
        assert said == {one: (ours if one in decisions else fcfs)[one] for one in fcfs}


@pytest.mark.parametrize(
    ("script_name", "system", "paced"),
    [
        ("liveserve_memory", "literal", True),
        ("liveserve_paper", "algorithm-1", False),
        ("liveserve_timelines", "algorithm-1", False),
    ],
)
def test_the_form_of_the_paper_has_nothing_beside_it(
    script: ModuleType, tmp_path: Path, script_name: str, system: str, paced: bool
) -> None:
    ours = script.written("liveserve")
    said = yaml.safe_load(Path(import_module(script_name).preset(system, tmp_path)).read_text())
    assert said["device"] == {"policy": "most-urgent"}
    assert (said["step"]["brink_s"], said["step"]["patient"]) == (0.0, False)
    assert said["step"].get("literal", False) == (system == "literal")
    assert said["pace"] == (ours["pace"] if paced else "unpaced")
    assert {one: said[one] for one in ("evict", "write", "fetch")} == {
        one: ours[one] for one in ("evict", "write", "fetch")
    }


def test_a_paced_reply_is_made_later_and_is_the_same(script: ModuleType, tmp_path: Path) -> None:
    fcfs, ours = (script.reply(tmp_path, system) for system in script.PAIR)
    assert fcfs["audio_s"] == ours["audio_s"]
    assert fcfs["code2wav_done_s"] < ours["code2wav_done_s"] < ours["audio_s"] + 1


def test_every_case_can_be_set_up(script: ModuleType, tmp_path: Path) -> None:
    cases = (script.DISTRIBUTION, *script.ABLATION, *script.SHORT)
    for case in (*cases, *script.MING):
        setup = case.setup(tmp_path, "fcfs", 0)
        assert setup.workload.load.concurrency == case.places


def test_the_page_shows_what_was_kept(script: ModuleType, page: ModuleType) -> None:
    assert set(RESULT) == {*script.Figures(None, Path()).parts(), "command", "commit", "machine"}
    text = page.PAGE.read_text()
    for name, lines in page.figure_tables(RESULT).items():
        assert f"<!-- {name} -->\n" + "\n".join(lines) + f"\n<!-- /{name} -->" in text
