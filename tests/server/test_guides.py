"""Guides are compiled before the engine is asked: what is wrong is said, and nothing takes for ever."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from antiphon.checkpoint.demo import make_demo
from antiphon.core.errors import Overloaded, ProtocolError
from antiphon.core.sampling import Guide
from antiphon.engine.guides import compiled, tokenizer_of
from antiphon.server.guides import GuideCheck
from antiphon.wire.guides import AskedGuide, Guided, ObjectFormat, guide_of
from antiphon.wire.limits import Limits
from fakes.signalled import signalled

FINE = Guide("json", '{"type": "object", "properties": {"a": {"type": "integer"}}}')


def objects(num_properties: int) -> Guide:
    properties = {f"p{at}": {"type": "string"} for at in range(num_properties)}
    return Guide("json", json.dumps({"type": "object", "properties": properties}))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(tmp_path_factory.mktemp("guides") / "tiny", model="qwen3", size="tiny", seed=3)


@pytest.fixture
def guide_check(checkpoint: Path) -> Iterator[GuideCheck]:
    made = GuideCheck(checkpoint, 1024, 5.0, 1.0)
    yield made
    end(made)


def end(check: GuideCheck) -> None:
    """Its process; the next guide that is not known starts another."""
    if check._child is not None:
        check._child.kill()
        check._child.wait()


async def refused(check: GuideCheck, guide: Guide) -> ProtocolError:
    with pytest.raises(ProtocolError) as error:
        await check.check(AskedGuide(guide, "here"))
    assert error.value.param == "here"
    assert str(error.value).startswith("here: ")
    return error.value


@pytest.mark.parametrize(
    ("guide", "why"),
    [
        (Guide("json", '{"type": "objec"}'), "Invalid type: objec"),
        (Guide("json", '{"$ref": "#/nope"}'), "'/nope' does not exist"),
        (Guide("json", '{"contains": {}}'), "contains"),
        (Guide("json", "{"), "no JSON object"),
        (Guide("json", '{"pattern": "(?=a)"}'), "regex parse error: look-around"),
        (Guide("json", '{"$ref": "#"}'), "No text matches it"),
        (Guide("grammar", "start: start"), "No text matches it"),
        (Guide("json", "[1]"), "no JSON object"),
        (Guide("regex", "(a"), "unclosed group"),
        (Guide("grammar", "start: tail"), 'unknown name: "tail"'),
        (Guide("grammar", 'root ::= "a'), "cannot be read"),
        (Guide("grammar", 'root ::= "a" (' + "(" * 5000), "cannot be read"),
        (Guide("grammar", ""), "start"),
    ],
)
async def test_what_is_wrong_is_said(guide_check: GuideCheck, guide: Guide, why: str) -> None:
    error = await refused(guide_check, guide)
    assert (error.code, error.kind) == ("invalid_guide", "invalid_request_error")
    assert why in str(error)
    assert len(str(error)) < 1100


async def test_one_that_is_fine_passes_and_is_known_from_then_on(guide_check: GuideCheck) -> None:
    await guide_check.check(AskedGuide(FINE, "here"))
    end(guide_check)
    await guide_check.check(AskedGuide(FINE, "there"))


async def test_time_is_bounded_and_the_next_one_is_served(checkpoint: Path) -> None:
    check = GuideCheck(checkpoint, 1024, 0.05, 1.0)
    try:
        for _ in range(2):
            error = await refused(check, objects(4000))
            assert error.code == "guide_too_complex"
            assert "0.05 s" in str(error)
        await check.check(AskedGuide(Guide("regex", "[ab]+"), "here"))
    finally:
        end(check)


async def test_the_loop_goes_on_meanwhile_and_the_queue_is_bounded(
    guide_check: GuideCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide_check._turns._most_waiting = 1
    first = asyncio.create_task(guide_check.check(AskedGuide(objects(500), "here")))
    await asyncio.sleep(0)
    second = asyncio.create_task(guide_check.check(AskedGuide(objects(501), "here")))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="guides are being compiled"):
        await guide_check.check(AskedGuide(FINE, "here"))
    assert not first.done()
    await first
    await second
    await guide_check.check(AskedGuide(FINE, "here"))


async def test_keys_take_turns_and_one_that_leaves_leaves_its_place(
    guide_check: GuideCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, made = threading.Event(), []

    def learnt(guide: Guide) -> None:
        assert may_go_on.wait(20)
        made.append(guide.text)

    monkeypatch.setattr(guide_check, "_learnt", learnt)

    def ask(text: str, key: int) -> asyncio.Task[None]:
        return asyncio.create_task(guide_check.check(AskedGuide(Guide("regex", text), "here"), key))

    flood = [ask(f"flood{at}", 0) for at in range(5)]
    await asyncio.sleep(0)
    other = ask("other", 1)
    await asyncio.sleep(0)
    for leaves in (flood[0], flood[1]):
        leaves.cancel()
    may_go_on.set()
    await asyncio.wait_for(asyncio.gather(*flood[2:], other), 20)
    assert made == ["flood0", "flood2", "other", "flood3", "flood4"]
    assert not guide_check._turns.num_waiting
    await asyncio.wait_for(ask("next", 0), 20)


async def test_a_check_that_is_told_to_end_while_it_imports_goes_on(
    guide_check: GuideCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches the whole group, and is for its first process."""
    monkeypatch.setattr(subprocess, "Popen", signalled)
    await guide_check.check(AskedGuide(FINE, "here"))


async def test_a_model_without_a_tokenizer_is_not_guided(tmp_path: Path) -> None:
    check = GuideCheck(tmp_path, 1024, 5.0, 1.0)
    try:
        assert (await refused(check, FINE)).code == "unsupported_parameter"
    finally:
        end(check)


BARE = '{"name": "sky", "parameters": {"at": [1]}}'
CALL = '<tool_call>\n{"name": "sky", "arguments": {"at": [1]}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('{"a": 1}', True),
        (CALL, True),
        (CALL + "\n" + CALL, True),
        ('{"a": 1}' + CALL, False),
        (CALL.replace("sky", "sea"), False),
        ("sky", False),
    ],
)
def test_a_guided_text_may_be_calls_instead(checkpoint: Path, text: str, is_right: bool) -> None:
    tool = json.dumps({"type": "function", "function": {"name": "sky"}})
    guided = Guided(response_format=ObjectFormat())
    asked = guide_of(guided, Limits(), (tool,))
    assert asked is not None
    matcher = compiled(asked.guide, tokenizer_of(checkpoint, 1024, (0,)))
    ids = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(text).ids
    is_taken = all(matcher.consume_token(token) for token in ids)
    assert (is_taken and matcher.is_accepting()) == is_right


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("yes", True),
        (BARE, True),
        (BARE + "\n" + BARE, True),
        (CALL, False),
        (BARE.replace("sky", "sea"), False),
    ],
)
def test_a_guided_text_may_be_bare_calls_instead(checkpoint: Path, text: str, is_right: bool) -> None:
    tool = json.dumps({"type": "function", "function": {"name": "sky"}})
    asked = guide_of(Guided(guided_regex="yes|no"), Limits(), (tool,), json_calls=True)
    assert asked is not None
    matcher = compiled(asked.guide, tokenizer_of(checkpoint, 1024, (0,)))
    ids = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(text).ids
    is_taken = all(matcher.consume_token(token) for token in ids)
    assert (is_taken and matcher.is_accepting()) == is_right


KEYS = ("type", "properties", "items", "enum", "const", "pattern", "$ref", "anyOf", "allOf", "oneOf", "not")
MORE = ("required", "minItems", "maxItems", "minLength", "maximum", "multipleOf", "format", "x-guidance")

SIGNS = (
    *("start:", "root", "::=", "|", '"ab"', "/c+/", "%json", "{}", "<x>"),
    *("[^\\n]", "(", ")", "*", "+", "?", "{3,}", "~", "#", "é"),
)


def random_schema(rng: np.random.Generator, depth: int = 0) -> Any:
    """Words of JSON schemas with whatever may stand behind them."""
    kind = rng.integers(9 if depth < 4 else 5)
    match kind:
        case 0:
            return [None, True, 1e308, -5, 10**30][rng.integers(5)]
        case 1:
            return ["object", "string", "array", "number", "null", "#", "#/a", "date", "(", "[a-z]{9,}"][
                rng.integers(10)
            ]
        case 2:
            return int(rng.integers(-3, 100_000))
        case 3:
            return "é\ud7ff\x00" * int(rng.integers(9))
        case 4:
            return {}
        case 5:
            return [random_schema(rng, depth + 1) for _ in range(rng.integers(4))]
        case _:
            keys = rng.choice([*KEYS, *MORE], rng.integers(1, 4))
            return {str(key): random_schema(rng, depth + 1) for key in keys}


async def test_whatever_is_sent_is_answered(guide_check: GuideCheck) -> None:
    rng, codes = np.random.default_rng(7), dict.fromkeys(("", "invalid_guide", "guide_too_complex"), 0)
    texts = [Guide("json", json.dumps(random_schema(rng))) for _ in range(250)]
    texts += [Guide("json", json.dumps({"anyOf": [random_schema(rng, 1)]})) for _ in range(150)]
    for _ in range(250):
        text = " ".join(rng.choice([*SIGNS, "\n"], rng.integers(1, 12)))
        texts += [
            Guide("grammar", f"start: {text}"),
            Guide("grammar", f"root ::= {text}"),
            Guide("regex", text),
        ]
    for guide in texts:
        try:
            await guide_check.check(AskedGuide(guide, "here"))
            codes[""] += 1
        except ProtocolError as error:
            codes[error.code] += 1
    assert codes[""] > 50
    assert codes["invalid_guide"] > 300
    assert codes["guide_too_complex"] == 0
