"""Where machine code is kept: a folder for every state of the sources, of our own, and no more than a few."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.nn.cpu import compiler
from antiphon.nn.cpu.compiler import compiled, has_compiler, told_of_kernels
from antiphon.nn.cpu.kernels import KEPT_STATES, folder_of, kernels_folder

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="numba is not installed")


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The environment, which is asked anew before and after."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    kernels_folder.cache_clear()
    yield monkeypatch
    kernels_folder.cache_clear()


def test_a_change_in_any_source_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """Also in a file that is only called from where a loop is compiled, and another CPU."""
    sources = [tmp_path / "loop.py", tmp_path / "tile.py"]
    for source in sources:
        source.write_text("pass")
    kernels, seen = tmp_path / "kernels", []
    for i in range(KEPT_STATES + 2):
        sources[1].write_text(f"ahead = {i}")
        seen.append(folder_of(sources, kernels, "zen"))
        assert seen[-1] == folder_of(reversed(sources), kernels, "zen")
        os.utime(seen[-1], (i, i))
    assert len(set(seen)) == len(seen)
    assert sorted(kernels.iterdir()) == sorted(seen[-KEPT_STATES:])
    assert folder_of(sources, kernels, "core") not in seen


def test_folders_of_others_stay(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    (kernels / "somebodys").mkdir(parents=True)
    kernels.chmod(0o700)
    for cpu in map(str, range(KEPT_STATES + 2)):
        assert folder_of([], kernels, cpu) is not None
    assert (kernels / "somebodys").exists()


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("in the way")
    assert folder_of([], tmp_path / "kernels", "zen") is None


def test_where_others_can_write_nothing_is_kept(tmp_path: Path) -> None:
    """What lies there would be run."""
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    kernels.chmod(0o777)
    assert folder_of([], kernels, "zen") is None
    kernels.chmod(0o700)
    mine = folder_of([], kernels, "zen")
    assert mine is not None
    assert mine.stat().st_mode & 0o777 == 0o700
    mine.chmod(0o770)
    assert folder_of([], kernels, "zen") is None


@needs_compiler
def test_it_lies_in_the_users_cache_or_where_numba_is_told(
    tmp_path: Path, places: pytest.MonkeyPatch
) -> None:
    places.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(kernels_folder()).parent == tmp_path / "antiphon" / "kernels"
    kernels_folder.cache_clear()
    places.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    assert Path(kernels_folder()).parent == tmp_path / "numba"
    kernels_folder.cache_clear()
    places.delenv("NUMBA_CACHE_DIR")
    places.setenv("XDG_CACHE_HOME", "relative")
    assert kernels_folder() == ""


@needs_compiler
def test_what_cannot_be_read_is_made_again(tmp_path: Path, places: pytest.MonkeyPatch) -> None:
    places.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))

    def twice(x: int) -> int:
        return 2 * x

    assert compiled(twice)(4) == 8
    kept = [path for path in Path(kernels_folder()).rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        path.write_bytes(path.read_bytes()[:9])
    assert compiled(twice)(5) == 10


@needs_compiler
def test_where_nothing_is_kept_it_is_compiled_all_the_same(
    tmp_path: Path, places: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numba").write_text("in the way")
    places.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))

    def thrice(x: int) -> int:
        return 3 * x

    assert kernels_folder() == ""
    assert compiled(thrice)(4) == 12


@needs_compiler
def test_who_waits_hears_of_what_is_compiled_and_of_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "kernels_folder", lambda: None)
    told: list[int] = []
    add, unheard = compiled(lambda a, b: a + b), compiled(lambda a: -a)
    with told_of_kernels(told.append):
        assert add(1, 2) == 3
        assert told == [1]
        assert add(3, 4) == 7
        assert add(0.5, 0.25) == 0.75
    unheard(1)
    assert told == [1, 2]
