"""What names a model: one checkpoint, or each part of a cascade."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import ConfigError
from antiphon.core.model_source import PARTS, check_parts, name_of, parts_in, settings_in, source_of

PLACES = st.text(st.sampled_from("ab/.-_ =~é"), min_size=1).map(str.strip).filter(bool)


@given(st.dictionaries(st.sampled_from(PARTS), PLACES, min_size=1))
def test_parts_are_read_as_they_were_written(parts: dict[str, str]) -> None:
    assert parts_in(source_of(parts)) == parts


def test_a_path_may_hold_a_comma() -> None:
    parts = {"thinker": "/home/a,b/c", "voice": "d, e"}
    assert parts_in(source_of(parts)) == parts


def test_settings_stand_beside_the_parts() -> None:
    named = parts_in("silent_tail=false, thinker=a,no_speech_threshold=0.8")
    assert named == {"silent_tail": "false", "thinker": "a", "no_speech_threshold": "0.8"}
    assert settings_in(named) == {"silent_tail": False, "no_speech_threshold": 0.8}
    assert parts_in(source_of(named)) == named
    with pytest.raises(ConfigError, match="silent_tail is 'no'; it must be JSON, as true"):
        settings_in({"silent_tail": "no"})


@pytest.mark.parametrize("source", ["", "org/name", "checkpoints/talk", "/a=b/c", "other=x,thinker=y"])
def test_one_checkpoint_has_no_parts(source: str) -> None:
    assert parts_in(source) == {}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("thinker=a,vioce=b", "no part of a cascade 'vioce'; did you mean voice?"),
        ("thinker=a,thinker=b", "thinker is there twice"),
        ("thinker=a,voice= ", "voice is empty"),
        ("thinker=a,silent_tail=", "silent_tail is empty; give a value, or leave it out"),
    ],
)
def test_parts_that_cannot_be(source: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parts_in(source)


def test_a_part_that_is_not_named() -> None:
    check_parts(dict.fromkeys(PARTS, "x"))
    with pytest.raises(ConfigError, match="without transcriber and voice: name transcriber, thinker, voice"):
        check_parts({"thinker": "x"})


def test_a_cascade_is_called_as_its_thinker() -> None:
    assert name_of("checkpoints/talk/") == "talk"
    assert name_of("models/some-Q8_0.gguf") == "some-Q8_0"
    assert name_of("transcriber=a/ears,thinker=Qwen/Qwen3-1.7B,voice=b") == "Qwen3-1.7B"
    assert name_of("transcriber=a/ears,voice=b")
