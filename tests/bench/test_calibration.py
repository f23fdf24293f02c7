"""The calibrated regime: what was fitted is what is committed, and the fit is as it says."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from antiphon.bench.experiment import Changes, workload_of
from antiphon.latency.finding import find_costs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULT = json.loads((BENCHMARKS / "results" / "liveserve-calibration.json").read_text())


@pytest.fixture(scope="module")
def calibration() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "liveserve_calibration", BENCHMARKS / "liveserve_calibration.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["liveserve_calibration"] = module
    spec.loader.exec_module(module)
    return module


def test_the_profile_is_the_datasheet_with_what_was_fitted(calibration: ModuleType) -> None:
    fitted = RESULT["fitted"]
    made = calibration.slowed(fitted["step_ms"], fitted["join_ms"])
    assert find_costs(str(calibration.PROFILE)) == made
    sheet, own = find_costs("H200"), made
    assert own.links == sheet.links
    assert own.datasheet == sheet.datasheet
    assert own.stages["code2wav"] == sheet.stages["code2wav"]
    for stage in ("thinker", "talker"):
        before, after = (msgspec.to_builtins(each.stages[stage].model) for each in (sheet, own))
        assert {name for name in before if before[name] != after[name]} == {"step_s", "join_s"}


def test_the_result_says_whether_the_paper_compares() -> None:
    for each in (RESULT, *RESULT["others"]):
        unfitted = each["unfitted"]
        ratios = [row["ratio"] for row in unfitted.values() if isinstance(row, dict)]
        assert unfitted["holds"] == all(abs(ratio - 1) <= unfitted["within"] for ratio in ratios)
        assert RESULT["error"] <= each["error"]
    assert RESULT["comparable_to_the_paper"] == (RESULT["reached"] and RESULT["unfitted"]["holds"])


def test_joins_are_sought_between_those_that_were_played(calibration: ModuleType) -> None:
    falling = {100.0: {12: 1.0, 16: 1.0}, 200.0: {12: 0.713, 16: 0.666}, 300.0: {12: 0.6, 16: 0.6}}
    assert calibration.likely_joins_ms(falling) == [170]
    flat = {100.0: {12: 0.813, 16: 0.766}, 200.0: {12: 0.813, 16: 0.766}}
    assert calibration.likely_joins_ms(flat) == [150]
    twice = {0.0: {12: 1.0, 16: 1.0}, 100.0: {12: 0.7, 16: 0.65}, 200.0: {12: 0.81, 16: 0.766}}
    assert calibration.likely_joins_ms(twice) == [200, 60]


def test_another_concurrency_keeps_what_frees_a_place() -> None:
    made = workload_of("liveserve-sharegpt", Changes(concurrency=16, num_sessions=64))
    assert made.load.frees_early
    assert made.load.concurrency == 16


@pytest.mark.parametrize("most", [None, 8])
def test_a_rate_leaves_what_frees_a_place_where_places_are_bound(most: int | None) -> None:
    load = workload_of("liveserve-sharegpt", Changes(rate_per_s=4.0, max_concurrency=most)).load
    assert load.open is not None
    assert (load.max_concurrency, load.frees_early) == (most, most is not None)
