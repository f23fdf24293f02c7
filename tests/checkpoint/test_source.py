"""Finding checkpoints: directories, and the hub without the hub."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import huggingface_hub
import pytest

from antiphon.checkpoint.source import FETCHED_PATTERNS, check_source, find_directory
from antiphon.core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


class HubError(Exception):
    def __init__(self, status: int | None = None) -> None:
        super().__init__("no route\nto the hub")
        self.response = SimpleNamespace(status_code=status) if status else None


def test_a_directory_needs_no_hub(tmp_path: Path) -> None:
    assert find_directory(str(tmp_path)) == tmp_path


def test_a_hub_id_is_fetched_without_pickles_or_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, Any]] = []

    def fetch(hub_id: str, *, allow_patterns: list[str]) -> str:
        asked.append((hub_id, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    told: list[str] = []
    assert find_directory("org/some-model", told.append) == tmp_path
    assert asked == [("org/some-model", FETCHED_PATTERNS)]
    assert "org/some-model" in told[0]
    assert not any(pattern.endswith((".bin", "*.pt", ".py")) for pattern in FETCHED_PATTERNS)


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (None, "out of reach or offline .* no route to the hub.* give its directory"),
        (404, "spelling"),
        (403, "log in"),
    ],
)
def test_hub_errors_say_what_to_do(monkeypatch: pytest.MonkeyPatch, status: int | None, advice: str) -> None:
    def fail(hub_id: str, **_: object) -> str:
        raise HubError(status)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=advice):
        find_directory("org/some-model")


@pytest.mark.parametrize("source", ["here/absent", "./absent", "/no/such", "~/no-such-directory"])
def test_what_is_a_path_is_not_looked_for_in_the_hub(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fetch(*_: object, **__: object) -> str:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for find in (find_directory, check_source):
        with pytest.raises(CheckpointError, match=f"There is no directory '{source}'.* hub id"):
            find(source)


@pytest.mark.parametrize("source", ["a/b/c", "model", "", "../x", "org/"])
def test_what_is_neither(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="org/name"):
        find_directory(source)
