"""docs/adding-a-model.md, executed: its files where they say, and its own test."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import antiphon.graphs
import antiphon.models
from antiphon.cli import app
from antiphon.core.errors import CheckpointError
from antiphon.graphs import find_graph, model_types
from antiphon.runtime.demo import make_any_demo

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"
BLOCK = re.compile(r"```python\n# (\S+)\n(.*?)```", re.DOTALL)
ROOMS = {"src/antiphon/graphs": antiphon.graphs, "src/antiphon/models": antiphon.models}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The page's files by their paths; those of the program lie in its rooms."""
    found = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    for room, package in ROOMS.items():
        folder = tmp_path / room
        folder.mkdir(parents=True)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    for path, text in found.items():
        if path.startswith("src/"):
            (tmp_path / path).write_text(text, encoding="utf-8")
    yield found
    for name in ("antiphon.graphs.phi3", "antiphon.models.phi3"):
        sys.modules.pop(name, None)
        parent, _, child = name.rpartition(".")
        vars(sys.modules[parent]).pop(child, None)


def test_the_page_is_true(files: dict[str, str], tmp_path: Path) -> None:
    assert [Path(path).parent.name for path in files] == ["graphs", "models", "exactness"]
    assert find_graph("phi3").module == "antiphon.models.phi3"
    proof: dict = {}
    exec(compile(files["tests/exactness/test_phi3.py"], str(PAGE), "exec"), proof)
    proof["test_phi3_says_what_transformers_says"](tmp_path)


def test_its_demo_is_made_by_name(files: dict[str, str], tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["checkpoint", "demo", str(tmp_path / "demo"), "--model", "phi3", "--size", "tiny"]
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "demo" / "model.safetensors").is_file()


def test_without_the_page_nobody_knows_it(tmp_path: Path) -> None:
    assert "phi3" not in model_types()
    with pytest.raises(CheckpointError, match="no demo model 'phi3'; choose one of qwen3-omni, "):
        make_any_demo(tmp_path / "demo", model="phi3")
