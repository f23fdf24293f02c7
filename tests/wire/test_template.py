"""Variables that a client gives to the chat template."""

from __future__ import annotations

import json

import pytest

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.wire.template import MAX_CHARS, MAX_VARIABLES, PARAM, read_template


def test_what_is_asked_is_written_as_json() -> None:
    asked = {"enable_thinking": False, "mood": ["calm", {"very": None}]}
    assert json.loads(read_template(asked)) == asked
    assert read_template({}) == read_template(None) == ""


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "chat_template", "bos_token"])
def test_variables_that_are_the_servers_own(name: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_template({"enable_thinking": True, name: 1})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", f"{PARAM}.{name}")


@pytest.mark.parametrize("name", ["", "a b", "1a", "ä", "a" * 65])
def test_variables_have_names(name: str) -> None:
    with pytest.raises(ProtocolError, match="cannot name a variable") as caught:
        read_template({name: 1})
    assert caught.value.param == PARAM


def test_there_are_not_too_many_nor_too_long() -> None:
    most = {f"a{number}": 1 for number in range(MAX_VARIABLES)}
    assert read_template(most)
    with pytest.raises(LimitExceeded, match="has too many"):
        read_template(most | {"more": 1})
    around = len('{"a":""}')
    assert read_template({"a": "b" * (MAX_CHARS - around)})
    with pytest.raises(LimitExceeded, match="is too long"):
        read_template({"a": "b" * (MAX_CHARS - around + 1)})
