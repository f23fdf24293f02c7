"""A completion is read without a server: what the engine is asked for, and what is refused, by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.core.ids import IdSource
from antiphon.core.plans import Usage
from antiphon.core.sampling import Sampling
from antiphon.wire.chat_replies import summed
from antiphon.wire.completions import CompletionAsked, CompletionRequest, read_completion
from antiphon.wire.limits import Limits
from antiphon.wire.parsing import converted, decode_json
from antiphon.wire.readers import ReaderRates
from wire.harness import INFO

OWN = {"thinker": Sampling(temperature=0.7, top_k=40), "talker": Sampling(temperature=0.9)}


def read(prompt: Any = "hi", limits: Limits = Limits(), **fields: Any) -> CompletionAsked:
    body = msgspec.json.encode({"prompt": prompt, **fields})
    asked = converted(decode_json(body, "body"), CompletionRequest)
    return read_completion(asked, msgspec.structs.replace(INFO, sampling=OWN), limits, IdSource("x"))


def refused(prompt: Any = "hi", **fields: Any) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        read(prompt, **fields)
    return caught.value


def test_a_plain_prompt() -> None:
    asked = read()
    (request,) = asked.requests
    assert (request.raw, request.items, request.speech, request.remember) == ("hi", (), False, False)
    assert (request.max_tokens, request.sampling, request.tier) == (16, {}, "latency")
    assert (asked.prompts, asked.stream, asked.include_usage, asked.counts_all_along) == (
        (),
        False,
        False,
        False,
    )


def test_a_prompt_of_ids_fits_the_context() -> None:
    most = INFO.max_context_tokens
    assert len(read([1] * most).requests) == 1
    for prompt in ([1] * (most + 1), [[5], [1] * (most + 1)]):
        error = refused(prompt, echo=True)
        assert (error.code, error.param) == ("context_length_exceeded", "prompt")


@pytest.mark.parametrize(
    ("prompt", "raws"),
    [
        ("hi", ["hi"]),
        (["hi", ""], ["hi", ""]),
        ([5, 6], [(5, 6)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
    ],
)
def test_every_shape_of_prompt(prompt: Any, raws: list[Any]) -> None:
    asked = read(prompt, echo=True)
    assert [request.raw for request in asked.requests] == raws
    assert list(asked.prompts) == raws
    assert len({request.session for request in asked.requests}) == len(raws), "one session each"


@pytest.mark.parametrize(
    "prompt", [["hi", 5], [5, [6]], [], 5, [-1], [1 << 31], [[1 << 80]], [[["x"]]], None]
)
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    assert (refused(prompt).param or "").startswith("prompt")


def test_how_it_is_drawn() -> None:
    asked = read(temperature=0.5, seed=3, min_tokens=4, ignore_eos=True, max_tokens=9, service_tier="flex")
    (request,) = asked.requests
    thinker = request.sampling["thinker"]
    assert (thinker.temperature, thinker.top_k, thinker.seed) == (0.5, 40, 3)
    assert (thinker.min_tokens, thinker.ignore_eos) == (4, True)
    assert not request.sampling["talker"].ignore_eos, "it concerns the text"
    assert (request.max_tokens, request.tier) == (9, "best_effort")


@pytest.mark.parametrize(("asked", "most"), [(100, 256), (256, 256), (5000, 5000)])
def test_a_text_may_be_as_long_as_its_client_asks(asked: int, most: int) -> None:
    """Whatever the checkpoint's own `max_new_tokens` is; the engine bounds it by the context."""
    (request,) = read(max_tokens=asked, seed=3).requests
    assert request.max_tokens == asked
    assert request.sampling["thinker"].max_tokens == most
    assert request.sampling["talker"].max_tokens == 256, "it concerns the text"


def test_no_more_is_said_of_a_length_that_the_checkpoint_allows_anyway() -> None:
    assert read(max_tokens=256).requests[0].sampling == {}
    assert set(read(max_tokens=257).requests[0].sampling) == {"thinker"}


def test_more_tokens_than_the_reply_may_have_are_refused() -> None:
    error = refused(min_tokens=17)
    assert (error.param, "17" in str(error), "16" in str(error)) == ("min_tokens", True, True)
    assert refused(min_tokens=-1).param == "min_tokens"


@pytest.mark.parametrize(("name", "value"), [("best_of", 2), ("suffix", "x"), ("min_p", 0.1)])
def test_what_is_not_done_is_refused_by_name(name: str, value: object) -> None:
    error = refused(**{name: value})
    assert (error.code, error.param) == ("unsupported_parameter", name)


def test_limits_are_named() -> None:
    for prompt, limits, name in (
        ("hello", Limits(max_text_chars=4), "max_text_chars"),
        (["a", "hello"], Limits(max_text_chars=4), "max_text_chars"),
        (["a", "b"], Limits(max_choices=1), "max_choices"),
    ):
        with pytest.raises(LimitExceeded) as caught:
            read(prompt, limits=limits)
        assert caught.value.limit == name


def test_a_prompt_counts_once() -> None:
    first, second = Usage(input_text_tokens=5, cached_tokens=2, output_text_tokens=3), Usage(7, 0, 0, 0, 4)
    assert summed([first, second], 1) == Usage(12, 0, 0, 2, 7)
    assert summed([first, first, second, second], 2) == Usage(12, 0, 0, 2, 14)


def test_what_is_told_of_tokens() -> None:
    asked = read(logprobs=2, echo=True, max_tokens=0)
    (request,) = asked.requests
    assert (request.sampling["thinker"].logprobs, request.sampling["thinker"].prompt_logprobs) == (2, True)
    assert (asked.reading.num_top, asked.reading.tells_prompt, asked.is_prompt_only) == (2, True, True)
    assert request.max_tokens == 1, "one is drawn, and not shown"
    plain = read(logprobs=0)
    assert plain.requests[0].sampling["thinker"].logprobs == 0
    assert not plain.reading.tells_prompt
    assert refused(max_tokens=0).param == "max_tokens"
    assert refused(logprobs=21).param == "logprobs"


def test_several_replies_to_each_prompt() -> None:
    asked = read(["a", "b"], n=2, seed=5, temperature=1, echo=True)
    assert [(one.raw, one.sampling["thinker"].seed) for one in asked.requests] == [
        ("a", 5),
        ("a", 6),
        ("b", 5),
        ("b", 6),
    ]
    assert (asked.prompts, asked.num_each) == (("a", "a", "b", "b"), 2)
    with pytest.raises(LimitExceeded):
        read(["a"] * 5, n=16)


def test_how_it_is_read_is_the_operators_to_say() -> None:
    """No field of the request says it; where the operator does not either, nobody is known to read it."""
    assert [one.rate for one in read(["a", "b"], stream=True).requests] == [None, None]
    readers = ReaderRates(reading=8.0, streamed="reading", whole="auto")
    for stream, rate in ((True, 8.0), (False, "auto")):
        asked = converted(
            decode_json(msgspec.json.encode({"prompt": "hi", "stream": stream}), "body"), CompletionRequest
        )
        (request,) = read_completion(asked, INFO, Limits(), IdSource("x"), readers).requests
        assert request.rate == rate


def test_how_it_is_read_is_the_requests_to_say_first() -> None:
    asked = read(stream=True, antiphon={"rate": 20, "deliver": "paced"})
    assert (asked.requests[0].rate, asked.is_paced) == (20, True)
    asked = read(stream=True, antiphon={})
    assert (asked.requests[0].rate, asked.is_paced) == (12, False)
    for wrong in ({"stream": False}, {"n": 2}, {"prompt": ["a", "b"]}, {"echo": True}):
        fields: dict[str, Any] = {"stream": True, "antiphon": {"rate": 12}} | wrong
        assert refused(**fields).param == "antiphon"
    assert refused(stream=True, antiphon={"rate": "auto", "deliver": "paced"}).param == "antiphon.rate"
    assert refused(stream=True, antiphon={"rate": 0}).param == "antiphon.rate"
