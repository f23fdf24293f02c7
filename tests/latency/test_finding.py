"""Profiles by name: a datasheet's hardware or a file, and what is wrong with either."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.core.errors import ConfigError
from antiphon.latency.finding import RELEASED, find_costs
from antiphon.latency.shapes import find_shape

LLAMA = find_shape("llama-3-8b")


def test_hardware_is_known_by_any_case_and_of_the_released_model() -> None:
    assert find_costs("H200") == find_costs("h200")
    assert find_costs("h200").stages.keys() == find_shape(RELEASED).stages.keys()
    assert find_costs("h200", LLAMA).stages.keys() == LLAMA.stages.keys()


def test_ranks_share_each_decoder() -> None:
    assert find_costs("h200", ranks=2) != find_costs("h200") == find_costs("h200", ranks=1)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    for name in ("mine.json", "mine"):
        path = tmp_path / name
        path.write_bytes(find_costs("a100").to_json())
        assert find_costs(str(path)) == find_costs("a100")


def test_a_file_says_itself_of_which_model_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(find_costs("a100").to_json())
    for more in ({"shape": LLAMA}, {"ranks": 2}):
        with pytest.raises(ConfigError, match="which says itself of which model it is"):
            find_costs(str(path), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "said"),
    [("abacus", "no hardware 'abacus'"), ("h20", "H200"), ("missing.json", "cannot be read: No such file")],
)
def test_what_is_not_there(what: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_costs(what)


def test_a_file_that_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"mine\.json"):
        find_costs(str(path))
