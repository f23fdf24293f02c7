"""A preset names one policy for each decision, or says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from antiphon.assembly import preset
from antiphon.assembly.node import Node
from antiphon.assembly.preset import Preset, preset_names
from antiphon.core.errors import ConfigError
from fakes.world import toy_config


def test_every_preset_that_ships_makes_a_node() -> None:
    assert "baseline" in preset_names()
    for name in preset_names():
        Node(msgspec.structs.replace(toy_config(), preset=name)).check_integrity()


def test_an_unknown_preset_lists_what_exists() -> None:
    with pytest.raises(ConfigError, match=r"unknown preset '\.\./secret'; known: baseline"):
        Preset("../secret")


@pytest.mark.parametrize("text", ["step: prefill-first", "step: a\ndevice: b\nmood: c"])
def test_a_decision_left_out_or_too_many(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    monkeypatch.setattr(preset, "_PRESETS", tmp_path)
    with pytest.raises(ConfigError, match="'mine' must name each of step, device, replica, evict"):
        Preset("mine")


def test_a_policy_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("step: best\ndevice: b\nreplica: r\nevict: c\nwrite: d\nfetch: e")
    monkeypatch.setattr(preset, "_PRESETS", tmp_path)
    with pytest.raises(ConfigError, match="unknown step policy 'best'"):
        Preset("mine").step_policy()
