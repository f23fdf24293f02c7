"""`antiphon workload`."""

from __future__ import annotations

import builtins
import struct
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.cli import app
from antiphon.cli.workload import sparkline
from antiphon.workload.load import names


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["workload", *words], env={"COLUMNS": "200"})


@pytest.mark.parametrize("command", [[], ["list"], ["show"]], ids=str)
def test_help(command: list[str]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_list() -> None:
    result = invoke("list")
    assert result.exit_code == 0
    assert all(name in result.output for name in names())


@pytest.mark.parametrize("name", names())
def test_show(name: str) -> None:
    result = invoke("show", name)
    assert result.exit_code == 0, result.output
    assert f"{name}  " in result.output
    assert "turns" in result.output


def test_show_a_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "name: mine\nload: {open: {arrivals: {uniform: {rate_per_s: 2}}, sessions: 9, duration_s: 4}}\n"
        "people: {talker: {turns: 2, think_s: 1.25, barge_in: {probability: 1}}}\n"
    )
    lines = invoke("show", str(mine)).output.splitlines()
    assert "open, uniform arrivals, 9 sessions, 4 s" in lines[1]
    assert "8 talker; 16 turns; 16 barge ins (1.00 per spoken reply)" in lines[2]
    assert "█" in lines[3]
    think = next(line for line in lines if line.strip().startswith("think"))
    assert think.split() == ["think", "1.25", "1.25", "1.25", "1.25", "8", "s"]


def test_seeds_differ() -> None:
    assert invoke("show", "voice-chat").output == invoke("show", "voice-chat", "--seed", "0").output
    assert invoke("show", "voice-chat").output != invoke("show", "voice-chat", "--seed", "1").output


def test_settings() -> None:
    more = ["--set", "load.closed.concurrency=9", "--set", "people.talker.turns={constant: 7}"]
    output = invoke("show", "barge-in", *more).output
    assert "closed, 9 at a time" in output
    assert "16 talker; 112 turns" in output
    for wrong in ("turns", "=3", "people.talker.turns={", "people.talker.turns=[1"):
        result = invoke("show", "barge-in", "--set", wrong)
        assert result.exit_code == 1
        assert "--set" in result.output


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\nload: {closed: {concurrency: 1, sessions: 1}}\npeople: {a: {mood: good}}\n")
    for what, words in (("no-such", "no workload"), (str(mine), "people.a.mood: no such key")):
        result = invoke("show", what)
        assert result.exit_code == 1
        assert words in result.output
        assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ["interactive", "agents", "burst-readers"])
def test_plot(tmp_path: Path, name: str) -> None:
    picture = tmp_path / "a.png"
    assert invoke("show", name, "--plot", str(picture)).exit_code == 0
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert min(struct.unpack(">II", head[16:])) > 400


def test_plot_where_nothing_can_be_written(tmp_path: Path) -> None:
    result = invoke("show", "smoke", "--plot", str(tmp_path / "none" / "a.png"))
    assert result.exit_code == 1
    assert "can't be written" in result.output


def test_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    result = invoke("show", "smoke", "--plot", str(tmp_path / "a.png"))
    assert result.exit_code == 1
    assert 'pip install "antiphon[plot]"' in result.output


def test_sparkline() -> None:
    assert sparkline((0.0, 0.1, 0.2, 2.5), 4, 4) == "█ ▃ "
    assert sparkline((0.0,), 0.0, 2).strip() == "█"
