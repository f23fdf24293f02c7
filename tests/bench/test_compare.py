"""Comparisons over a runner that only pretends: order, warm-up, resumption, losses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from antiphon.bench.compare import Plan, compare, log_of, why_incomplete
from antiphon.bench.comparison import Comparison, as_json
from antiphon.bench.servers import Servers, Target
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.metrics.log import ErrorSeen, RunEnded

A, B, C = (Target(name, url=f"http://{name}") for name in "abc")
BASE = {"a": 1.0, "b": 0.5, "c": 2.0}


class Pretend:
    """Figures by name and seed, written to the log's message; `harm` says how a run goes wrong."""

    def __init__(self, harm: dict[tuple[str, int], str] | None = None) -> None:
        self.harm = harm or {}
        self.done: list[tuple[str, int]] = []

    async def __call__(self, target: Target, seed: int, log: Path) -> dict[str, float]:
        assert target.url == f"http://{target.name}"
        self.done.append((target.name, seed))
        harm = self.harm.get((target.name, seed))
        if harm == "raise":
            raise AntiphonError("connection lost")
        if harm == "config":
            raise ConfigError("no such workload")
        if harm == "stop":
            raise asyncio.CancelledError
        values = {"ttfp_s.p90": BASE[target.name] * (1 + seed / 10), 'utilisation{stage="talker"}': 0.5}
        reason = harm if harm == "server_lost" else "finished"
        event = RunEnded(t_s=1.0, reason=reason, message=json.dumps(values))
        if harm == "torn":
            event = ErrorSeen(t_s=1.0, session="s", code="x", message="y")
        await asyncio.to_thread(
            log.write_bytes, b'{"event": "RunStarted"}\n' + msgspec.json.encode(event) + b"\n"
        )
        return values


def figures(log: Path) -> dict[str, float]:
    return json.loads(json.loads(log.read_text().splitlines()[-1])["message"])


async def run(plan: Plan, runner: Pretend, directory: Path, **options: object) -> Comparison:
    async with Servers(None) as servers:
        return await compare(plan, servers, runner, directory, figures=figures, **options)  # type: ignore[arg-type]


async def test_interleaved_after_a_warm_up(tmp_path: Path) -> None:
    runner = Pretend()
    said: list[str] = []
    found = await run(Plan((A, B), (0, 1, 2), "talk"), runner, tmp_path / "x", say=said.append)
    assert runner.done == [("a", 3), ("a", 0), ("b", 3), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert [log_of(tmp_path / "x", A, seed).is_file() for seed in (0, 1, 2, 3)] == [True, True, True, False]
    assert said.count("a: warming up, not counted") == 1
    row = found.against[0].rows[0]
    assert row.contrast.figure == "ttfp_s.p90"
    assert row.contrast.estimate is not None
    assert row.contrast.estimate.mean == pytest.approx(0.5)
    assert row.contrast.pairs == found.against[0].pairs == 3
    assert row.utilisation == {"a": {"talker": 0.5}, "b": {"talker": 0.5}}
    assert found.warnings == ("3 seeds are too few to judge by: use 5 or more",)
    assert not Plan((A, B), tuple(range(5)), "talk").warnings


async def test_three_targets_are_held_to_the_first(tmp_path: Path) -> None:
    runner = Pretend()
    found = await run(Plan((A, B, C), (0, 1), "talk"), runner, tmp_path)
    assert [name for name, seed in runner.done if seed < 2] == ["a", "b", "c", "c", "b", "a"]
    assert [(entry.a, entry.b) for entry in found.against] == [("a", "b"), ("a", "c")]


async def test_resumed_runs_are_not_run_again(tmp_path: Path) -> None:
    plan = Plan((A, B), (0, 1), "talk")
    with pytest.raises(asyncio.CancelledError):
        await run(plan, Pretend({("a", 1): "stop"}), tmp_path)
    with pytest.raises(ConfigError, match="--resume"):
        await run(plan, Pretend(), tmp_path)
    runner = Pretend()
    found = await run(plan, runner, tmp_path, is_resumed=True)
    assert runner.done == [("a", 2), ("a", 1)]
    whole = await run(plan, Pretend(), tmp_path / "whole")
    assert as_json(found, PROVENANCE) == as_json(whole, PROVENANCE)
    more = Pretend()
    await run(Plan((A, B), (0, 1, 2), "talk"), more, tmp_path, is_resumed=True)
    assert [entry for entry in more.done if entry[1] != 3] == [("a", 2), ("b", 2)]


async def test_a_directory_without_runs_is_free(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such workload"):
        await run(Plan((A, B), (0,), "talk"), Pretend({("a", 1): "config"}), tmp_path)
    assert (await run(Plan((A, C), (0, 1), "shout"), Pretend(), tmp_path)).against[0].pairs == 2


async def test_only_the_same_comparison_is_resumed(tmp_path: Path) -> None:
    await run(Plan((A, B), (0, 1), "talk", {"duration_s": 5}), Pretend(), tmp_path)
    for other, words in (
        (Plan((A, C), (0, 1), "talk", {"duration_s": 5}), "targets"),
        (Plan((A, B), (0, 1), "shout", {"duration_s": 5}), "workload"),
        (Plan((A, B), (0, 1), "talk", {"duration_s": 6}), "options"),
    ):
        with pytest.raises(ConfigError, match=f"cannot resume: {words} was"):
            await run(other, Pretend(), tmp_path, is_resumed=True)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ConfigError, match=r"plan\.json is not the plan"):
        await run(Plan((A, B), (0, 1), "talk"), Pretend(), tmp_path, is_resumed=True)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("raise", "connection lost"),
        ("server_lost", "ended early: server_lost"),
        ("torn", "its log breaks off"),
    ],
)
async def test_what_breaks_off_is_dropped_with_its_pair(tmp_path: Path, harm: str, words: str) -> None:
    said: list[str] = []
    runner = Pretend({("b", 1): harm})
    found = await run(Plan((A, B), (0, 1, 2), "talk"), runner, tmp_path, say=said.append)
    assert [(entry.target, entry.seed) for entry in found.dropped] == [("b", 1)]
    assert words in found.dropped[0].message
    assert any("b, seed 1: dropped, and its pair" in line for line in said)
    assert found.against[0].pairs == 2
    assert sorted(found.sides[0].runs) == [0, 1, 2]
    contrast = found.against[0].rows[0].contrast
    assert contrast.pairs == 2
    assert contrast.note == "no value on one side at seed 1"


async def test_nothing_measured(tmp_path: Path) -> None:
    runner = Pretend({("b", seed): "raise" for seed in range(3)})
    with pytest.raises(AntiphonError, match=r"nothing to compare: .*connection lost"):
        await run(Plan((A, B), (0, 1), "talk"), runner, tmp_path)


async def test_a_wrong_value_ends_it_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such workload"):
        await run(Plan((A, B), (0, 1), "talk"), Pretend({("a", 0): "config"}), tmp_path)
    with pytest.raises(ConfigError, match="each once"):
        Plan((A, B), (1, 1), "talk")


async def test_a_warm_up_that_failed_comes_again(tmp_path: Path) -> None:
    runner = Pretend({("b", 2): "raise"})
    with pytest.raises(AntiphonError, match="nothing to compare"):
        await run(Plan((A, B), (0, 1), "talk"), runner, tmp_path)
    assert [seed for name, seed in runner.done if name == "b"] == [2, 2]


class Mortal(Servers):
    """Servers of which one says that it has died."""

    def why_ended(self, target: Target) -> str | None:
        return "(exit status -9)" if target.name == "b" else super().why_ended(target)


async def test_the_last_words_of_a_server_that_died(tmp_path: Path) -> None:
    """They are told where a run broke off; a run that went to its end counts, whatever came after it."""
    async with Mortal(None) as servers:
        plan, lossy = Plan((A, B), (0, 1), "talk"), Pretend({("b", 1): "server_lost"})
        found = await compare(plan, servers, lossy, tmp_path, figures=figures)
    assert [entry.seed for entry in found.dropped] == [1]
    assert "server_lost" in found.dropped[0].message
    assert found.dropped[0].message.endswith("; its server ended (exit status -9)")


def test_logs_that_are_not_whole(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    assert why_incomplete(log) == "it left no log"
    log.write_bytes(b"")
    assert "breaks off" in str(why_incomplete(log))
    log.write_bytes(b'{"event": "RunEn')
    assert "breaks off" in str(why_incomplete(log))
    log.write_bytes(msgspec.json.encode(RunEnded(t_s=1, reason="interrupted", message="by hand")))
    assert why_incomplete(log) == "the run ended early: interrupted (by hand)"
    log.write_bytes(msgspec.json.encode(RunEnded(t_s=1, reason="duration")))
    assert why_incomplete(log) is None


PROVENANCE = {"command": "antiphon compare", "commit": "abc"}


async def test_json(tmp_path: Path) -> None:
    found = await run(Plan((A, B), (0, 1), "talk"), Pretend(), tmp_path)
    read = json.loads(as_json(found, PROVENANCE))
    assert read["commit"] == "abc"
    assert read["sides"][0]["runs"]["1"]["ttfp_s.p90"] == 1.1
    row = read["against"][0]["rows"][0]
    assert row["contrast"]["estimate"]["low"] == pytest.approx(0.5)
    assert row["utilisation"]["b"] == {"talker": 0.5}
