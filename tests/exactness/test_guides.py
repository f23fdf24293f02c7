"""Texts that follow a guide against a plain reference: transformers' logits, and of the tokens whose spelling
leads to a word of the language the likeliest. Languages are finite: the reference needs no grammar."""

from __future__ import annotations

import json
import threading
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from antiphon import Omni, Request
from antiphon.checkpoint.demo import make_demo
from antiphon.core.facts import Fact, ItemAdded, ResponseCancelled, ResponseRequested, SessionOpened
from antiphon.core.logprobs import read_logs
from antiphon.core.plans import ResponseEnded, TokensOut
from antiphon.core.sampling import Guide, Sampling
from antiphon.engine import guides
from antiphon.models.detokenise import Spelling
from antiphon.runtime.driver import Driver
from exactness.conftest import user
from exactness.test_text import TEXTS, preempting, prompt_ids

MAX_TOKENS = 48
SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large", 3]}, "is_open": {"type": "boolean"}},
    "required": ["size", "is_open"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
}
LETTERS = ["".join(word) + "!" for length in range(1, 8) for word in product(["ab", "ba"], repeat=length)]
OBJECTS = [
    json.dumps({"size": size, "is_open": is_open})
    for size, is_open in product(["small", "large", 3], [True, False])
]
COLOURS = ["red", "reddish brown", "blue as the sea é", "green"]
GUIDES = [
    (Guide("json", json.dumps(SCHEMA)), OBJECTS),
    (Guide("regex", "(ab|ba){1,7}!"), LETTERS),
    (Guide("grammar", f"start: {' | '.join(json.dumps(one) for one in COLOURS)}"), COLOURS),
    (Guide("grammar", 'root ::= pair{1,7} "!"\npair ::= "ab" | "ba"'), LETTERS),
]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(tmp_path_factory.mktemp("guided") / "tiny", model=request.param, size="tiny", seed=3)


@pytest.fixture(scope="module")
def omni(checkpoint: Path) -> Omni:
    return Omni(checkpoint, device="cpu", dtype="float64")


class Reference:
    """One request alone: every token is chosen by looking at all of them."""

    def __init__(self, checkpoint: Path, stop_ids: tuple[int, ...]) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64).eval()
        spelling = Spelling(Tokenizer.from_file(str(checkpoint / "tokenizer.json")))
        vocab = self._model.config.vocab_size
        self._spelled = [b"" if one in spelling.unshown else spelling.of(one) for one in range(vocab)]
        self._stop_ids = stop_ids

    def answer(self, ids: np.ndarray, words: list[str], drawn: tuple[int, ...] = ()) -> list[int]:
        """Tokens behind the prompt, without the one that ends the text."""
        language, tokens = [word.encode() for word in words], list(drawn)
        beginnings = {word[:end] for word in language for end in range(1, len(word) + 1)}
        text = b"".join(self._spelled[token] for token in tokens)
        while len(tokens) < MAX_TOKENS:
            with torch.no_grad():
                scores = self._model(torch.tensor([[*ids.tolist(), *tokens]])).logits[0, -1]
            allowed = [
                token
                for token, spelled in enumerate(self._spelled)
                if spelled and text + spelled in beginnings
            ]
            allowed += self._stop_ids if text in language else ()
            best = max(allowed, key=lambda token: scores[token].item())
            if best in self._stop_ids:
                return tokens
            tokens.append(best)
            text += self._spelled[best]
        return tokens


@pytest.fixture(scope="module")
def reference(checkpoint: Path, omni: Omni) -> Reference:
    return Reference(checkpoint, tuple(omni.engine.node.ar["thinker"].stop_ids))


CASES = [(text, *GUIDES[at % len(GUIDES)]) for at, text in enumerate(TEXTS[:4] * 2)]


@pytest.fixture(scope="module")
def expected(omni: Omni, reference: Reference) -> list[list[int]]:
    """Of each case, and behind them of each text without a guide."""
    guided = [reference.answer(prompt_ids(omni, text), words) for text, _, words in CASES]
    return guided + said(omni, [(text, None) for text in TEXTS])


def said(omni: Omni, cases: list[tuple[str, Guide | None]], **more) -> list[list[int]]:
    replies = omni.generate(
        [
            Request(
                text,
                speech=False,
                sampling={"thinker": Sampling(max_tokens=MAX_TOKENS, guide=guide, **more)},
            )
            for text, guide in cases
        ]
    )
    assert all(reply.status in ("completed", "incomplete") for reply in replies), replies
    return [reply.token_ids["thinker"][:, 0].tolist() for reply in replies]


ALL = [(text, guide) for text, guide, _ in CASES] + [(text, None) for text in TEXTS]


def test_one_by_one_and_batched(omni: Omni, expected: list[list[int]]) -> None:
    assert [said(omni, [case])[0] for case in ALL] == expected
    assert said(omni, ALL) == expected


@pytest.mark.parametrize("options", [{"step_tokens": 7}, {"max_rows": 2, "depth": 1}])
def test_chunked_and_crowded(checkpoint: Path, expected: list[list[int]], options: dict[str, int]) -> None:
    assert said(Omni(checkpoint, device="cpu", dtype="float64", **options), ALL) == expected


def test_in_a_process_of_its_own(checkpoint: Path, expected: list[list[int]]) -> None:
    apart = Omni(checkpoint, device="cpu", dtype="float64", stages_apart=True)
    try:
        assert said(apart, ALL) == expected
    finally:
        apart.close()


def test_sampled_texts_are_words_of_their_language(omni: Omni) -> None:
    tokenizer = Tokenizer.from_file(str(Path(omni.engine.info.path) / "tokenizer.json"))
    drawn: set[str] = set()
    for seed in range(6):
        texts = [
            tokenizer.decode(tokens)
            for tokens in said(omni, ALL[:4], temperature=1.5, top_k=20, top_p=0.9, seed=seed)
        ]
        assert all(text in words for text, (_, _, words) in zip(texts, CASES, strict=False))
        drawn |= set(texts)
    assert len(drawn) > 6


@pytest.mark.parametrize("depth", [0, 1])
def test_preempted_at_random_moments(
    checkpoint: Path, omni: Omni, expected: list[list[int]], depth: int
) -> None:
    """Some keep their KV, others are computed again: where a text is in its guide is told by its tokens."""
    rng = np.random.default_rng(depth)
    longest = max(len(prompt_ids(omni, text)) for text in TEXTS) + MAX_TOKENS
    sizes = {"kv_tokens": 2 * longest, "max_context_tokens": longest, "host_kv_tokens": 2048}
    engine = Omni(checkpoint, device="cpu", dtype="float64", block_size=8, depth=depth, **sizes).engine
    outputs: list = []
    driver = Driver(engine, outputs.extend)
    facts: list[Fact] = []
    for at, (text, guide) in enumerate(ALL):
        name, sampling = f"s{at}", {"thinker": Sampling(max_tokens=MAX_TOKENS, guide=guide)}
        asked = ResponseRequested(name, name, name, speech=False, sampling=sampling)
        facts += [SessionOpened(name), ItemAdded(name, user(text, "q")), asked]
    preempting(driver, facts, outputs, len(ALL), rng, 0.3)
    got: dict[str, list[int]] = {f"s{at}": [] for at in range(len(ALL))}
    for one in outputs:
        if isinstance(one, TokensOut):
            got[one.response] += one.tokens[:, 0].tolist()
    assert list(got.values()) == expected
    assert driver.node.stages.ar["thinker"].num_preemptions > 4


def test_what_is_told_of_guided_tokens_is_the_models_own(
    checkpoint: Path, omni: Omni, expected: list[list[int]]
) -> None:
    outputs: list = []
    driver = Driver(omni.engine, outputs.extend)
    text, guide, _ = CASES[0]
    sampling = {"thinker": Sampling(max_tokens=MAX_TOKENS, guide=guide, logprobs=2)}
    asked = ResponseRequested("told", "told", "told", speech=False, sampling=sampling)
    facts: list[Fact] = [SessionOpened("told"), ItemAdded("told", user(text, "q")), asked]
    while not any(isinstance(one, ResponseEnded) for one in outputs):
        driver.advance(facts)
        facts = []
    logs = read_logs(b"".join(one.logprobs for one in outputs if isinstance(one, TokensOut)), 2)
    assert [log.token for log in logs][: len(expected[0])] == expected[0]
    assert any(log.token not in [token for token, _ in log.top] for log in logs), "the guide chose otherwise"


def test_a_guide_ends_a_text_that_should_be_longer(omni: Omni, expected: list[list[int]]) -> None:
    """And one that is to go on behind its end has nothing but ends."""
    assert said(omni, ALL[:4], min_tokens=40)[2] == expected[2]
    (tokens,) = said(omni, ALL[2:3], ignore_eos=True)
    assert tokens[: len(expected[2])] == expected[2]
    assert set(tokens[len(expected[2]) :]) <= set(omni.engine.node.ar["thinker"].stop_ids)
    assert len(tokens) == MAX_TOKENS


def test_one_that_cannot_be_followed_fails_alone(omni: Omni, expected: list[list[int]]) -> None:
    wrong = Sampling(max_tokens=8, guide=Guide("json", '{"type": "objec"}'))
    requests = [Request(text, sampling={"thinker": Sampling(max_tokens=MAX_TOKENS)}) for text in TEXTS]
    broken = Request("hello", sampling={"thinker": wrong})
    *rest, last = omni.generate([*requests, broken])
    assert [reply.token_ids["thinker"][:, 0].tolist() for reply in rest] == expected[len(CASES) :]
    assert last.status == "failed"
    assert "objec" in last.message
    omni.driver.node.check_integrity()
    assert said(omni, ALL[:1]) == expected[:1]


def test_one_whose_tokens_take_too_long_to_find_fails_alone(
    omni: Omni, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guides, "TEXT_S", 0.0)
    monkeypatch.setattr(guides, "TOKEN_S", 0.0)
    sampling = [Sampling(max_tokens=MAX_TOKENS, guide=guide) for guide in (ALL[0][1], None)]
    asked = [Request(text, sampling={"thinker": one}) for text, one in zip(TEXTS, sampling, strict=False)]
    slow, free = omni.generate(asked)
    assert (slow.status, slow.reason) == ("failed", "guide_failed")
    assert "takes too long" in slow.message
    assert free.token_ids["thinker"][:, 0].tolist() == expected[len(CASES) + 1]


@pytest.mark.parametrize("depth", [0, 1])
def test_others_go_on_while_a_guide_is_compiled(
    checkpoint: Path, expected: list[list[int]], depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, made = threading.Event(), guides.compiled

    def slow(guide: Guide, tokenizer: object) -> object:
        assert may_go_on.wait(60), "the engine waits for a guide"
        return made(guide, tokenizer)

    monkeypatch.setattr(guides, "compiled", slow)
    outputs: list = []
    driver = Driver(Omni(checkpoint, device="cpu", dtype="float64", depth=depth).engine, outputs.extend)
    facts: list[Fact] = []
    for name, (text, guide) in {"guided": ALL[0], "cancelled": ALL[1], "free": ALL[len(CASES)]}.items():
        sampling = {"thinker": Sampling(max_tokens=MAX_TOKENS, guide=guide)}
        asked = ResponseRequested(name, name, name, speech=False, sampling=sampling)
        facts += [SessionOpened(name), ItemAdded(name, user(text, "q")), asked]

    def until_over(number: int, facts: list[Fact]) -> list[str]:
        while len(over := [one.response for one in outputs if isinstance(one, ResponseEnded)]) < number:
            if driver.advance(facts):
                driver.wait(1.0)
            facts = []
        return over

    assert until_over(1, facts) == ["free"]
    assert until_over(2, [ResponseCancelled("cancelled", "cancelled", "stop")]) == ["free", "cancelled"]
    may_go_on.set()
    assert until_over(3, [])[-1] == "guided"
    steps = [one.tokens for one in outputs if isinstance(one, TokensOut) and one.response == "guided"]
    assert np.concatenate(steps)[:, 0].tolist() == expected[0]
    driver.node.check_integrity()
