"""The scripts in benchmarks/: each is imported and tells its options, and those that need no server and no
other program measure something small.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from antiphon.checkpoint.demo import make_demo
from antiphon.core.config import EngineOptions
from antiphon.core.sampling import Sampling
from antiphon.latency.profile import Profile, served
from antiphon.runtime.profiler import load_subject
from antiphon.workload.load import changed
from antiphon.workload.spec import Workload

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SLOWLY_IMPORTED = "gpu_transformers"
"""It needs transformers' own model. A slow test runs it (`gpu/test_benchmark.py`)."""
NAMES = sorted({path.stem for path in BENCHMARKS.glob("*.py")} - {SLOWLY_IMPORTED})
NO_OPTIONS = {"liveserve_page", "vllm_worker"}
"""Scripts whose `main` reads no options."""


@pytest.fixture(scope="module", autouse=True)
def on_the_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield


class Script:
    """A script, with smaller numbers in it. Some scripts take theirs from another one's module."""

    def __init__(self, name: str, patch: pytest.MonkeyPatch) -> None:
        self.module: Any = import_module(name)
        self._patch = patch

    def smaller(self, **numbers: Any) -> ModuleType:
        for name, value in numbers.items():
            self._patch.setattr(self.module, name, value)
        return self.module

    def briefly(self, **numbers: Any) -> ModuleType:
        """In its workloads everybody has one turn, and a short reply."""
        for name in ("named", "find", "workload"):
            if load := getattr(self.module, name, None):
                self._patch.setattr(self.module, name, partial(brief, load))
        return self.smaller(**numbers)

    def run(self, *words: str) -> None:
        """As from the command line."""
        self._patch.setattr(sys, "argv", [self.module.__file__, *words])
        if inspect.iscoroutinefunction(self.module.main):
            asyncio.run(self.module.main())
        else:
            self.module.main()


def brief(load: Callable[[str], Workload], name: str) -> Workload:
    found = load(name)
    shorter = {"turns": 1, "max_output_tokens": 8}
    return changed(found, {f"people.{who}.{key}": n for who in found.people for key, n in shorter.items()})


@pytest.fixture
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Script:
    """That which the test names."""
    monkeypatch.chdir(tmp_path)
    return Script(request.param, monkeypatch)


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("script", [name], indirect=True)


@pytest.mark.parametrize("script", NAMES, indirect=True)
def test_it_starts(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    name = script.module.__name__
    main = getattr(script.module, "main", None)
    if main is None or inspect.signature(main).parameters or name in NO_OPTIONS:
        return
    with pytest.raises(SystemExit) as ended:
        script.run("--help")
    assert ended.value.code == 0
    assert f"usage: {name}.py" in capsys.readouterr().out


# -- simulated -----------------------------------------------------------------------------------------


def burst(loads: Any, **others: Any) -> Any:
    """Three readers at once, for two of whom there is room."""
    small = {"arrivals": loads.burst(3), "sessions": 3, "kv_tokens": 1024, "reply": loads.about(24)}
    return msgspec.structs.replace(loads.table_1(1.0)["a"], prompt=loads.about(300), **small | others)


@of("liveserve")
def test_liveserve(script: Script, tmp_path: Path) -> None:
    module = script.briefly(ARRIVING_S=10.0, DRAINING_S=50.0)
    system = module.System(tuple(module.MECHANISMS), 8, 4)
    system.write(tmp_path)
    assert module.played(module.Point(system, 0.2, 0), tmp_path, module.PROFILE)["turns"]


@of("liveserve_memory")
def test_liveserve_memory(script: Script, tmp_path: Path) -> None:
    module = script.smaller(CONVERSATIONS=1, DURATION_S=30.0, PASTS_TOKENS=8192)
    assert module.played(tmp_path, "all but eviction", 0.5, 5.0, 0)["turns"]


@of("liveserve_paper")
def test_liveserve_paper(script: Script, tmp_path: Path) -> None:
    module = script.briefly(PER_PLACE=2)
    assert module.played(tmp_path, "algorithm-1", module.Point(1, 0.0), 0)["later.p50"]


@of("liveserve_models")
def test_liveserve_models(script: Script) -> None:
    module = script.briefly()
    model = msgspec.structs.replace(module.MODELS[1], duration_s=10.0)
    assert module.played(module.Point(model, 2, "liveserve", 0))["turns"]


@of("liveserve_timelines")
def test_liveserve_timelines(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Script("liveserve_paper", monkeypatch).smaller(PER_PLACE=1)
    module = script.briefly(CONVERSATIONS=1, DURATION_S=60.0, PLACES=2, LONG={})
    assert module.residency(tmp_path, "fcfs", 0)["answered"]
    assert module.continuity(tmp_path, "fcfs", 0.0, 0)["begun"]


@of("liveserve_calibration")
def test_liveserve_calibration(script: Script) -> None:
    module = script.briefly(PER_PLACE=1)
    assert module.played(module.slowed(1.0, 1.0, 1.0), module.loaded(1), 0)["turns"]


@of("liveserve_figures")
def test_liveserve_figures(script: Script, tmp_path: Path) -> None:
    module = script.briefly()
    case = module.Case("datasheet", "interactive", 2, 0.0, 30.0, 3072, 8.0)
    assert module.evicting(tmp_path, case, "scan", 0)["turns"]


@of("tokenflow")
def test_tokenflow(script: Script, tmp_path: Path) -> None:
    """Each system that is compared, where there is no room for all."""
    module, load = script.module, burst(import_module("tokenflow_loads"))
    systems = {one.name: one for one in (*module.BASELINES, *module.ABLATED, *module.BESIDE)}
    for system in (*systems.values(), module.UNTHROTTLED):
        system.write(tmp_path)
        assert module.played(module.Point(system, load, 0), tmp_path)["completed_turns"] == 3


@of("tokenflow_timelines")
def test_tokenflow_timelines(script: Script, tmp_path: Path) -> None:
    module, load = script.module, burst(import_module("tokenflow_loads"))
    module.OURS.write(tmp_path)
    for tell in (module.generated, module.crowd):
        assert module.run_of(tell, module.Point(module.OURS, load, 0), tmp_path)


@of("tokenflow_calibration")
def test_tokenflow_calibration(script: Script, tmp_path: Path) -> None:
    module, loads = script.module, import_module("tokenflow_loads")
    module.RESERVED.write(tmp_path)
    assert module.speeds(burst(loads, kv_tokens=4096), tmp_path)["row_tokens_per_s"]


@of("evaluation_simulated")
def test_evaluation_simulated(script: Script) -> None:
    module = script.briefly(LONG={}, RATES={"mixed": 2.0}, TABLE_S={"mixed": 5.0}, LONG_S=60.0, LEAD_S=30.0)
    assert module.table("mixed", "burstgpt", 0.5, "fcfs+lru")["turns"]
    assert module.load("fcfs+lru-slow", 1)["turns"]
    assert module.lead(0.5)["turns"]
    assert module.reloads(1000)["reloaded_ttfp_s"]


@of("interaction_plane")
def test_interaction_plane(script: Script) -> None:
    module = script.briefly()
    assert module.cost("liveserve", 2, 4.0, 0)["decisions_per_s"]
    assert module.plane("liveserve", 2, 4.0, 0)["fold"]
    assert module.idle("fcfs", 4.0, 0)["ttfp_ms"]


@of("simulating")
def test_simulating(script: Script) -> None:
    assert script.briefly(PER_PIPELINE=2).cost(1, 10.0)["decisions"]


# -- the deciding half ---------------------------------------------------------------------------------


def told(script: Script, folder: Path, *words: str) -> dict[str, Any]:
    """What it keeps."""
    script.run(*words, "--out", str(folder / "out.json"))
    return json.loads((folder / "out.json").read_text())


@of("deciding")
def test_deciding(script: Script, tmp_path: Path) -> None:
    script.smaller(WATCHED=200)
    few = ("--rows", "4", "--steps", "60")
    assert told(script, tmp_path, *few)["decide_ms"]
    assert told(script, tmp_path, *few, "--waiting", "4")["with_round_ms"]


@of("eviction_index")
def test_eviction_index(script: Script, tmp_path: Path) -> None:
    assert told(script, tmp_path, "--sessions", "20", "--blocks", "2000", "--calls", "20")["scan_over_index"]


# -- with an engine ------------------------------------------------------------------------------------


@of("fidelity")
def test_fidelity(
    script: Script, tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair without a server, with another engine's times, and what of them was measured."""
    paces, around = Script("fidelity_pace", monkeypatch), Script("fidelity_around", monkeypatch)
    paces.smaller(CONVERSATIONS=1, TURNS=1, PAUSE_S=0.0)
    around.smaller(CONVERSATIONS=2, TURNS=1, PAUSE_S=0.0)
    Script("fidelity_engine", monkeypatch).smaller(MOST_REST_S=0.0)
    module = script.briefly(LOADS={"light": (2, 2)}, SEEDS=(0,), REPEATS=(0,))
    options = EngineOptions(threads=1, depth=0)
    subject = load_subject(str(tiny_checkpoint), options, "tiny", lambda *_: None)
    around.smaller(load_subject=lambda *_: subject)
    profile = msgspec.structs.replace(
        Profile.from_json((BENCHMARKS / "medium-2core.json").read_bytes()),
        served=served(subject.served, 0, subject.shape),
    )
    beside = module.measure_around("tiny", module.Paced(profile, 1.0))
    beside = replace(beside, joins_s={})  # less than nothing, beside the times of a larger model
    calibration = module.Calibration(0.001, import_module("fidelity_calibration").Habits(0.0, (3,)), beside)
    study = module.Study("tiny", tmp_path, module.Budget(100.0), subject.engine, profile, calibration)
    found = module.told(module.pair_up_inside(study))
    assert found["pairs"] == {"light": 1}
    assert found["loads"]["light"]["steps{talker}"]["measured"]


@of("first_packet")
def test_first_packet(script: Script, tmp_path: Path, tiny_checkpoint: Path) -> None:
    """By a clock that goes on by a millisecond a look, and with sound that is over at once."""
    clock = SimpleNamespace(monotonic=partial(next, count(step=0.001)), perf_counter=time.perf_counter)
    script.smaller(PAUSE_S=(0.0, 0.0), RATE_OUT=1e9, LONGEST={"thinker": 4, "talker": 4}, time=clock)
    words = ("--sessions", "1", "--seconds", "0.5", "--heard", "0.2", "--threads", "1")
    assert told(script, tmp_path, str(tiny_checkpoint), *words)["sessions"]["1"]["turns"]


@of("stages_apart")
def test_stages_apart(script: Script, tiny_checkpoint: Path) -> None:
    """Both sides in this process."""
    benches = {name: script.module.Bench(str(tiny_checkpoint), (2, 4), threads=1) for name in "ab"}
    assert script.module.measure(benches, 1, 1)["replies_alike"] == "2 of 2"


@of("tokenflow_engine")
def test_tokenflow_engine(script: Script, tmp_path: Path) -> None:
    module = script.module
    make_demo(tmp_path / "tiny", model=module.FAMILY, size="tiny")
    burst = module.Burst("tiny", readers=3, words=20, reply=16, rate=100.0, link_mb_per_s=50.0, pool=0.6)
    assert module.played("tokenflow", burst, 0, tmp_path)["effective_tokens_per_s"]


@of("attention")
def test_attention(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.module.compare("grown", 2, 64, 1)
    assert capsys.readouterr().out.startswith("grown ")


@of("sampling")
def test_sampling(script: Script) -> None:
    assert script.module.measured(64, Sampling(temperature=1.0, top_k=5), 2, 1)["ratio"]
