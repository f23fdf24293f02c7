"""Where machine code is kept: a folder for every state of the sources, and no more than a few of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from antiphon.nn.compiler import KEPT_STATES, folder_of, kernels_folder


def test_a_change_in_any_source_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """Also in a file that is only called from where a loop is compiled."""
    sources = [tmp_path / "loop.py", tmp_path / "tile.py"]
    for source in sources:
        source.write_text("pass")
    kernels, seen = tmp_path / "kernels", []
    for i in range(KEPT_STATES + 2):
        sources[1].write_text(f"ahead = {i}")
        seen.append(folder_of(sources, kernels))
        assert seen[-1] == folder_of(reversed(sources), kernels)
        os.utime(seen[-1], (i, i))
    assert len(set(seen)) == len(seen)
    assert sorted(kernels.iterdir()) == sorted(seen[-KEPT_STATES:])


def test_where_nothing_can_be_written_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("in the way")
    assert folder_of([], tmp_path / "kernels").parent == tmp_path / "kernels"


def test_it_lies_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels_folder.cache_clear()
    assert Path(kernels_folder()).parent == tmp_path / "antiphon" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    kernels_folder.cache_clear()
    assert kernels_folder() == ""
    kernels_folder.cache_clear()
