"""Log-probabilities against transformers' log_softmax: of replies and of prompts, batched and chunked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon import Omni
from antiphon.checkpoint.demo import make_demo
from antiphon.core.facts import Fact, ResponseRequested, SessionOpened
from antiphon.core.logprobs import TokenLog, read_logs
from antiphon.core.plans import ResponseEnded, TokensOut
from antiphon.core.sampling import Sampling
from antiphon.runtime.driver import Driver

TOP = 5
PROMPTS = [
    tuple(np.random.default_rng(length).integers(5, 400, length).tolist()) for length in (1, 7, 40, 130)
]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(tmp_path_factory.mktemp("told") / "tiny", model=request.param, size="tiny", seed=5)


def scores_of(checkpoint: Path, dtype: torch.dtype, ids: list[int]) -> torch.Tensor:
    """Of each position, what comes next: [n, vocab]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float().log_softmax(-1)


def asked(name: str, prompt: tuple[int, ...], sampling: Sampling) -> list[Fact]:
    request = ResponseRequested(
        name, name, name, speech=False, sampling={"thinker": sampling}, remember=False, items=(), raw=prompt
    )
    return [SessionOpened(name), request]


def told(engine: object, facts: list[Fact]) -> tuple[dict[str, list[int]], dict[str, bytes], dict[str, int]]:
    """Tokens, log-probabilities and cached tokens of each response."""
    outputs: list = []
    driver = Driver(engine, outputs.extend)  # type: ignore[arg-type]
    num = sum(isinstance(one, ResponseRequested) for one in facts)
    while sum(isinstance(one, ResponseEnded) for one in outputs) < num:
        driver.advance(facts)
        facts = []
    tokens: dict[str, list[int]] = {}
    logs: dict[str, bytes] = {}
    cached: dict[str, int] = {}
    for one in outputs:
        if isinstance(one, TokensOut):
            tokens.setdefault(one.response, []).extend(one.tokens[:, 0].tolist())
            logs[one.response] = logs.get(one.response, b"") + one.logprobs
        elif isinstance(one, ResponseEnded):
            assert one.status in ("completed", "incomplete"), one
            cached[one.response] = one.usage.cached_tokens
    return tokens, logs, cached


def check(logs: list[TokenLog], scores: torch.Tensor) -> None:
    """Entries of tokens 1, 2, ... of a text whose positions have these scores."""
    for log, row in zip(logs, scores, strict=False):
        assert log.logprob == pytest.approx(row[log.token].item(), abs=2e-5)
        values, ids = row.topk(len(log.top))
        assert [value for _, value in log.top] == pytest.approx(values.tolist(), abs=2e-5)
        clear = (values[:-1] - values[1:]).min().item() > 1e-4 if len(log.top) > 1 else True
        assert not clear or [token for token, _ in log.top] == ids.tolist()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("depth", [0, 1])
def test_what_is_told_is_the_references(checkpoint: Path, dtype: str, depth: int) -> None:
    """Replies whose draws are shaped in every way: what is told is the model's own."""
    omni = Omni(checkpoint, device="cpu", dtype=dtype, depth=depth, step_tokens=48)
    shaped = Sampling(temperature=0.8, top_k=20, repetition_penalty=1.2, max_tokens=9, seed=3, logprobs=TOP)
    ways = [
        Sampling(max_tokens=9, ignore_eos=True, logprobs=TOP, prompt_logprobs=True),
        Sampling(max_tokens=9, ignore_eos=True, logprobs=0),
        shaped,
        Sampling(max_tokens=9, ignore_eos=True),
    ]
    facts = [fact for at, one in enumerate(zip(PROMPTS, ways, strict=True)) for fact in asked(f"s{at}", *one)]
    facts += asked("whole", PROMPTS[3], ways[0])
    tokens, logs, cached = told(omni.engine, facts)
    kind = getattr(torch, dtype)
    for name, prompt, way in (
        *((f"s{at}", prompt, way) for at, (prompt, way) in enumerate(zip(PROMPTS, ways, strict=True))),
        ("whole", PROMPTS[3], ways[0]),
    ):
        if way.logprobs is None:
            assert logs[name] == b""
            continue
        found = read_logs(logs[name], way.logprobs)
        whole = [*prompt, *tokens[name]]
        scores = scores_of(checkpoint, kind, whole)
        if way.prompt_logprobs:
            assert np.isnan(found[0].logprob)
            assert [log.token for log in found] == whole
            check(found[1:], scores)
        else:
            assert [log.token for log in found] == tokens[name]
            check(found, scores[len(prompt) - 1 :])
    assert cached["whole"] == 0


def test_all_of_a_prompt_is_told_though_it_was_read_before(checkpoint: Path) -> None:
    """And telling changes no token."""
    omni = Omni(checkpoint, device="cpu", dtype="float64", block_size=8)
    outputs: list = []
    driver = Driver(omni.engine, outputs.extend)
    plain = Sampling(max_tokens=4, ignore_eos=True)
    tells = Sampling(max_tokens=4, ignore_eos=True, logprobs=1, prompt_logprobs=True)
    for name, sampling in (("a", plain), ("b", tells), ("c", tells), ("d", plain)):
        driver.advance(asked(name, PROMPTS[3], sampling))
        while not any(isinstance(one, ResponseEnded) and one.response == name for one in outputs):
            driver.wait(1.0)
            driver.advance([])
    ends = {one.response: one.usage.cached_tokens for one in outputs if isinstance(one, ResponseEnded)}
    assert ends["b"] == ends["c"] == 0 < ends["d"]
    said = {
        name: [
            one.tokens[:, 0].tolist()
            for one in outputs
            if isinstance(one, TokensOut) and one.response == name
        ]
        for name in "abcd"
    }
    assert said["a"] == said["b"] == said["c"] == said["d"]
    logs = [one.logprobs for one in outputs if isinstance(one, TokensOut) and one.response in "bc"]
    assert logs[:4] == logs[4:]
    assert len(read_logs(logs[0], 1)) == len(PROMPTS[3]) + 1


def test_a_reply_of_no_token_tells_its_prompt(checkpoint: Path) -> None:
    """Its first token is the one that ends it."""
    omni = Omni(checkpoint, device="cpu", dtype="float64")
    stop = omni.engine.node.ar["thinker"].stop_ids[0]
    biased = Sampling(
        max_tokens=4, logprobs=2, prompt_logprobs=True, suppress=tuple(set(range(2000)) - {stop})
    )
    tokens, logs, _ = told(omni.engine, asked("s", PROMPTS[2], biased))
    assert tokens["s"] == []
    found = read_logs(logs["s"], 2)
    assert [log.token for log in found] == [*PROMPTS[2], stop]
    check(found[1:], scores_of(checkpoint, torch.float64, list(PROMPTS[2])))
