"""docs/adding-a-policy.md, executed: its policy and preset in the simulator, on the engine, and replayed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from antiphon import Omni, Request
from antiphon.assembly.node import Node
from antiphon.cli import app
from antiphon.core.facts import Fact
from antiphon.core.plans import Decision
from antiphon.policy.base import Hold

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-policy.md"
BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page's files lie."""
    for name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> str:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float | None]]:
    """(now, wake_at) of every call of a node."""
    calls: list[tuple[float, float | None]] = []
    decide = Node.decide

    def watched(self: Node, facts: Iterable[Fact], now: float) -> Decision:
        decision = decide(self, facts, now)
        calls.append((now, decision.wake_at))
        return decision

    monkeypatch.setattr(Node, "decide", watched)
    return calls


def test_the_page_is_true_in_the_simulator(folder: Path, asked: list[tuple[float, float | None]]) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["hold.py", "mine.yaml", "try_it.py"]
    assert "pace: hold.py:HoldAhead\n  Holds what is over `lead_s` seconds" in run(
        "config", "explain", "mine.yaml"
    )
    load = ["--concurrency", "2", "--duration", "20"]
    run("simulate", "--preset", "mine.yaml", "--workload", "voice-chat", *load, "--record", "run.rec")
    waited = [(now, at) for now, at in asked if at is not None]
    assert waited, "it held something"
    times = [now for now, _ in asked]
    for now, wake_at in waited:
        if wake_at <= times[-1]:
            later = times[times.index(now) + 1 :]
            assert any(other <= wake_at + 1e-9 for other in later), "asked again on time"
    assert "0 differences" in run("replay", "run.rec", "--preset", "mine.yaml")
    assert (folder / "simulate-mine-0.jsonl").is_file()


def test_it_holds_what_is_ahead_and_nothing_else(folder: Path) -> None:
    page: dict = {}
    exec((folder / "hold.py").read_text(), page)

    class View:
        lead_s = np.array([np.nan, 1.0, 2.5, 4.0])

    hold: Hold = page["HoldAhead"]().decide(View, 10.0)
    assert hold.held is not None
    assert hold.held.tolist() == [False, False, True, True]
    assert hold.wake_at == 10.5


def test_the_page_is_true_on_the_engine(folder: Path, tiny_checkpoint: Path) -> None:
    page: dict = {}
    exec((folder / "try_it.py").read_text(), page)
    assert page["try_it"](str(tiny_checkpoint), "mine.yaml", folder / "run.rec") in (
        "completed",
        "incomplete",
    )
    request = Request("hello", max_tokens=6)
    mine = Omni(tiny_checkpoint, preset="mine.yaml", device="cpu").generate([request])[0]
    plain = Omni(tiny_checkpoint, device="cpu").generate([request])[0]
    assert mine.text == plain.text
    assert np.array_equal(mine.audio, plain.audio), "later, and the same"
    (folder / "hold.py").write_text((folder / "hold.py").read_text() + "# changed\n")
    refused = CliRunner().invoke(app, ["replay", "run.rec", "--preset", "mine.yaml"])
    assert refused.exit_code == 1
    assert "the source of policy hold.py:HoldAhead has changed" in refused.output
