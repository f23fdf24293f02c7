"""The text families against transformers: greedy, fp64, batch 1; ours batched, chunked, and in turns."""

from __future__ import annotations

import json
import shutil
import time
from copy import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon import Omni, Request
from antiphon.checkpoint.demo import make_demo
from antiphon.core.config import EngineOptions
from antiphon.core.errors import CheckpointError, ConfigError
from antiphon.core.facts import (
    Fact,
    ItemAdded,
    PromptReady,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
)
from antiphon.core.plans import RenderPrompt, ResponseEnded, TokensOut
from antiphon.core.sampling import Sampling
from antiphon.engine import copies
from antiphon.engine.load import Loader, build_engine, open_source
from antiphon.runtime.driver import Driver
from exactness.conftest import user
from fakes.capture import Recorder
from fakes.whims import whims_of
from fakes.world import READERS

MAX_TOKENS = 24
CROWDED = "llama", "qwen3_moe"
"""Families among whose readers rows change places: a dense one and one of experts."""
TEXTS = [
    "hello world, how are you today?",
    "one",
    "what is the name of the longest river that you know of, and where does it end?",
    "two three four",
    "tell me a story about a cat and a dog who lived in a small house by the sea " * 3,
]


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "qwen3-moe"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(tmp_path_factory.mktemp("text") / "tiny", model=request.param, size="tiny", seed=3)


@pytest.fixture(scope="module")
def omni(checkpoint: Path) -> Omni:
    return Omni(checkpoint, device="cpu", dtype="float64")


class Reference:
    """transformers' generate(), one request alone."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoModelForCausalLM

        model, problems = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float64, experts_implementation="eager", output_loading_info=True
        )
        assert not problems["missing_keys"]
        assert not problems["unexpected_keys"]
        self._model = model.eval()
        self._known: dict[bytes, list[int]] = {}

    def answer(self, ids: np.ndarray) -> list[int]:
        """What it said to a prompt once it says again."""
        if (known := self._known.get(ids.tobytes())) is not None:
            return known
        prompt = torch.from_numpy(ids)[None]
        out = self._model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=MAX_TOKENS
        )
        said = self._known[ids.tobytes()] = out[0, len(ids) :].tolist()
        return said


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


@pytest.fixture(scope="module")
def expected(omni: Omni, reference: Reference) -> list[list[int]]:
    return [reference.answer(prompt_ids(omni, text)) for text in TEXTS]


def prompt_ids(omni: Omni, text: str) -> np.ndarray:
    ready = omni.engine.prompter.render(RenderPrompt(0, (user(text),), speech=False))
    assert isinstance(ready, PromptReady), ready
    return ready.prompts["thinker"].token_ids


def said(omni: Omni, texts: list[str]) -> list[list[int]]:
    replies = omni.generate([Request(text, max_tokens=MAX_TOKENS) for text in texts])
    assert all(reply.status in ("completed", "incomplete") for reply in replies), replies
    assert all(not len(reply.audio) for reply in replies)
    return [reply.token_ids["thinker"][:, 0].tolist() for reply in replies]


def test_the_prompt_is_that_of_the_reference_tokenizer(omni: Omni, checkpoint: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    for text in TEXTS:
        theirs = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        assert prompt_ids(omni, text).tolist() == theirs


def test_one_by_one_and_batched(omni: Omni, expected: list[list[int]]) -> None:
    assert len({tuple(tokens) for tokens in expected}) == len(TEXTS)
    assert [said(omni, [text])[0] for text in TEXTS] == expected
    assert said(omni, TEXTS) == expected


@pytest.mark.parametrize("options", [{"step_tokens": 7}, {"layer_groups": 2}, {"max_rows": 2, "depth": 1}])
def test_chunked_grouped_and_crowded(
    checkpoint: Path, expected: list[list[int]], options: dict[str, int]
) -> None:
    assert said(Omni(checkpoint, device="cpu", dtype="float64", **options), TEXTS) == expected


def test_with_captured_decode_steps(omni: Omni, checkpoint: Path, expected: list[list[int]]) -> None:
    """As `--cuda-graphs` runs them; the stand-in for CUDA graphs replays by calling."""
    chosen = EngineOptions(device="cpu", dtype="float64")
    opened, recorder = open_source(str(checkpoint), chosen, lambda *_: None), Recorder()
    engine = build_engine(opened, chosen, "captured", Loader(opened, lambda *_: None, capture=recorder))
    captured = copy(omni)
    captured.engine, captured.driver = engine, Driver(engine, captured.driver._emit)
    assert said(captured, TEXTS) == expected
    assert recorder.replays > recorder.captures > 0


def test_in_fp32_from_weights_that_are_stored_in_bf16(tmp_path: Path) -> None:
    """As a CPU runs released checkpoints: weights in half the bytes, multiplied as the fp32 that they are."""
    path = make_demo(tmp_path / "small", model="qwen3", size="small", seed=3, dtype="bfloat16")
    omni, reference = Omni(path, device="cpu", dtype="float32"), Reference(path)
    expected = [reference.answer(prompt_ids(omni, text)) for text in TEXTS]
    assert [said(omni, [text])[0] for text in TEXTS] == expected
    assert said(omni, TEXTS * 4) == expected * 4


class Link:
    """To and from the host, as slow as a disk; copies break off halfway at random moments."""

    def __init__(self, seed: int, bytes_per_s: float, share_failing: float) -> None:
        self._rng = np.random.default_rng(seed)
        self._bytes_per_s, self._share_failing = bytes_per_s, share_failing
        self._copy_runs = copies.copy_runs
        self.num_failed = 0

    def copy_runs(
        self, source: tuple[torch.Tensor, ...], target: tuple[torch.Tensor, ...], pieces: list[copies.Run]
    ) -> None:
        num_blocks, block_bytes = sum(count for _, _, count in pieces), sum(one[0].nbytes for one in source)
        time.sleep(num_blocks * block_bytes / self._bytes_per_s)
        if self._rng.random() < self._share_failing:
            self._copy_runs(source, target, pieces[: len(pieces) // 2])
            self.num_failed += 1
            raise RuntimeError("out of luck")
        self._copy_runs(source, target, pieces)


def test_readers_give_way_over_a_slow_link_that_fails(
    omni: Omni,
    checkpoint: Path,
    expected: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the host was to keep is not there, or late: it is computed again, and says the same. Where a round
    is over before what it has go on is there, rows may change places in vain, and the guard relieves them."""
    link = Link(seed=0, bytes_per_s=4e6, share_failing=0.1)
    monkeypatch.setattr(copies, "copy_runs", link.copy_runs)
    driver = crowded_readers(omni, checkpoint, expected, 1, 2048, relieved=("stalled",))
    assert link.num_failed > 2
    for one in driver.node.guard.overruled:
        assert one.reasons.get("stalled", 0) <= 0.05 * one.num_decisions
    assert driver.node.stages.ar["thinker"].tiers.fetches.num_fetched_blocks > 0


@pytest.mark.parametrize(("depth", "host_kv_tokens"), [(0, 2048), (1, 0), (1, 2048)])
def test_readers_give_way_to_each_other(
    omni: Omni, checkpoint: Path, expected: list[list[int]], depth: int, host_kv_tokens: int
) -> None:
    """Who is ahead gives up the row, and goes on from what the host has, or from what is computed again."""
    driver = crowded_readers(omni, checkpoint, expected, depth, host_kv_tokens)
    fetches = driver.node.stages.ar["thinker"].tiers.fetches
    assert (fetches.num_fetched_blocks > 0) == (host_kv_tokens > 0)


def crowded_readers(
    omni: Omni,
    checkpoint: Path,
    expected: list[list[int]],
    depth: int,
    host_kv_tokens: int,
    relieved: tuple[str, ...] = (),
) -> Driver:
    """The device holds a fraction of what is asked for; all say what they say alone. `relieved`: for what the
    baseline may decide instead."""
    if omni.engine.info.family not in CROWDED:
        pytest.skip("what a row has computed is moved alike in every family")
    said(omni, TEXTS[:1])  # kernels are compiled before steps are timed: the policy goes by what they take
    longest = max(len(prompt_ids(omni, text)) for text in TEXTS) + MAX_TOKENS
    sizes = {"kv_tokens": longest + 48, "max_context_tokens": longest, "host_kv_tokens": host_kv_tokens}
    engine = Omni(
        checkpoint, device="cpu", dtype="float64", preset=READERS, block_size=8, depth=depth, **sizes
    ).engine
    outputs: list = []
    driver = Driver(engine, outputs.extend)
    sampling = {"thinker": Sampling(max_tokens=MAX_TOKENS)}
    names = [f"s{at}" for at in range(3 * len(TEXTS))]
    facts: list[Fact] = []
    for at, name in enumerate(names):
        asked = ResponseRequested(name, name, name, speech=False, sampling=sampling, rate=5.0 * (1 + at % 3))
        facts += [SessionOpened(name), ItemAdded(name, user(TEXTS[at % len(TEXTS)], "q")), asked]
    while sum(isinstance(one, ResponseEnded) for one in outputs) < len(names):
        if not driver.advance(facts) or facts:
            facts = []
        driver.node.check_integrity()
        driver.wait(0.05)
    check_said(outputs, names, expected)
    thinker = driver.node.stages.ar["thinker"]
    assert thinker.num_preemptions > 2
    reasons = {reason for one in driver.node.guard.overruled for reason in one.reasons}
    assert reasons <= {"slow", "suspended", *relieved}, (
        "the policy says what can be done, and lets others run"
    )
    return driver


def preempting(
    driver: Driver, facts: list[Fact], outputs: list, num: int, rng: np.random.Generator, share: float
) -> dict[bool, int]:
    """Turns the driver until `num` responses have ended; in a share of the turns the thinker preempts a row.
    Of the kind that there were fewer of: how many turns there are is up to the machine. Returns how many lost
    their KV, and how many kept it."""
    thinker = driver.node.stages.ar["thinker"]
    whims, kept = whims_of(thinker), {False: 0, True: 0}
    while sum(isinstance(one, ResponseEnded) for one in outputs) < num:
        if rng.random() < share and not whims.victims:
            whims.victims, whims.keeps = [int(rng.integers(8))], kept[True] < kept[False]
            before, keeps = thinker.num_preemptions, whims.keeps
            driver.advance(facts)
            kept[keeps] += thinker.num_preemptions - before
            facts = []
        elif not driver.advance(facts) or facts:
            facts = []
        driver.node.check_integrity()
        driver.wait(0.05)
    return kept


def check_said(outputs: list, names: list[str], expected: list[list[int]]) -> None:
    """Each of these responses, to the texts in turn, has the tokens that it has alone."""
    for at, name in enumerate(names):
        said = [
            int(one.tokens[0, 0]) for one in outputs if isinstance(one, TokensOut) and one.response == name
        ]
        assert said == expected[at % len(TEXTS)]


@pytest.mark.parametrize("seed", [0, 1])
def test_preempted_at_random_moments(
    checkpoint: Path, omni: Omni, expected: list[list[int]], seed: int
) -> None:
    """Some keep their KV, which leaves for the host and is brought back, and others are computed again."""
    rng = np.random.default_rng(seed)
    longest = max(len(prompt_ids(omni, text)) for text in TEXTS) + MAX_TOKENS
    sizes = {"kv_tokens": 2 * longest, "max_context_tokens": longest, "host_kv_tokens": 2048}
    engine = Omni(checkpoint, device="cpu", dtype="float64", block_size=8, depth=seed, **sizes).engine
    outputs: list = []
    driver = Driver(engine, outputs.extend)
    thinker = driver.node.stages.ar["thinker"]
    sampling = {"thinker": Sampling(max_tokens=MAX_TOKENS)}
    names = [f"s{at}" for at in range(2 * len(TEXTS))]
    facts: list[Fact] = []
    for at, name in enumerate(names):
        asked = ResponseRequested(name, name, name, speech=False, sampling=sampling)
        facts += [SessionOpened(name), ItemAdded(name, user(TEXTS[at % len(TEXTS)], "q")), asked]
    kept = preempting(driver, facts, outputs, len(names), rng, 0.2)
    check_said(outputs, names, expected)
    assert min(kept.values()) > 2, "both kinds"
    assert thinker.tiers.fetches.num_fetched_blocks > 0


def test_a_second_turn_goes_on_from_the_first(omni: Omni, reference: Reference) -> None:
    """Its prompt is cached but for the new message, and its tokens are those of the whole conversation."""
    outputs: list = []
    driver = Driver(omni.engine, outputs.extend)
    ask = {"speech": False, "sampling": {"thinker": Sampling(max_tokens=MAX_TOKENS)}}
    driver.advance([SessionOpened("s")])
    for turn, text in enumerate(TEXTS[2:4]):
        response = f"r{turn}"
        driver.advance(
            [ItemAdded("s", user(text, f"q{turn}")), ResponseRequested("s", response, response, **ask)]
        )
        while not any(isinstance(o, ResponseEnded) and o.response == response for o in outputs):
            driver.wait(1.0)
            driver.advance([])
    ends = [o for o in outputs if isinstance(o, ResponseEnded)]
    assert ends[0].usage.cached_tokens == 0 < ends[1].usage.cached_tokens
    first, second = (
        [o for o in outputs if isinstance(o, TokensOut) and o.response == r] for r in ("r0", "r1")
    )
    tokens = [int(token) for o in first for token in o.tokens[:, 0]]
    whole = conversation(omni, tokens)
    assert [int(token) for o in second for token in o.tokens[:, 0]] == reference.answer(whole)


STORY = TEXTS[4]
AS_A_STORY = (STORY, STORY + "and then tell me another one", STORY[:-9] + "and no longer", STORY)


@pytest.mark.parametrize("depth", [0, 1])
def test_requests_go_on_from_what_closed_ones_left(
    checkpoint: Path, omni: Omni, reference: Reference, depth: int
) -> None:
    """Each is a session of its own, as over HTTP: closed after its reply, and its KV kept. Others that need
    the room take it, and then all is computed again; what they say is the same."""
    longest = max(len(prompt_ids(omni, text)) for text in AS_A_STORY) + MAX_TOKENS
    sizes = {"kv_tokens": 2 * longest, "max_context_tokens": longest}
    engine = Omni(checkpoint, device="cpu", dtype="float64", block_size=8, depth=depth, **sizes).engine
    outputs: list = []
    driver = Driver(engine, outputs.extend)
    blocks = driver.node.stages.ar["thinker"].kv.blocks

    def asked(text: str, salt: str = "") -> int:
        """Asks once, and checks what is said; returns how many tokens were cached."""
        name = f"s{len(outputs)}"
        sampling = {"thinker": Sampling(max_tokens=MAX_TOKENS)}
        how = {"speech": False, "remember": False, "items": (user(text),), "cache_salt": salt}
        driver.advance([SessionOpened(name), ResponseRequested(name, name, name, sampling=sampling, **how)])
        while not (ends := [o for o in outputs if isinstance(o, ResponseEnded) and o.session == name]):
            driver.wait(1.0)
            driver.advance([])
        driver.advance([SessionClosed(name, keeps_kv=True)])
        driver.node.check_integrity()
        said = [int(o.tokens[0, 0]) for o in outputs if isinstance(o, TokensOut) and o.session == name]
        assert said == reference.answer(prompt_ids(omni, text))
        return ends[0].usage.cached_tokens

    cached = [asked(text) for text in AS_A_STORY]
    beginning = len(prompt_ids(omni, STORY[:-9])) // 2
    assert cached[0] == 0
    assert min(cached[1:]) > beginning, "of a prompt that begins alike only the end is computed"
    assert asked(STORY, salt="mine") == 0, "a caller of another salt finds nothing"
    assert asked(STORY, salt="mine") > beginning
    others = [STORY.replace("cat", animal) for animal in ("cow", "hen", "fox", "owl")]
    assert all(asked("Now " + text) < 8 * 4 for text in others)
    assert asked(STORY) < 8 * 4, "the room was needed"
    assert asked(STORY) > beginning
    assert blocks.num_cache > 0
    while driver.node.num_in_flight:
        driver.wait(1.0)
        driver.advance([])
    assert blocks.num_free == blocks.num_free_soon == driver.node.stages.ar["thinker"].kv.num_blocks


def conversation(omni: Omni, reply: list[int]) -> np.ndarray:
    """The second turn's prompt, from the first turn's tokens."""
    begin, again = prompt_ids(omni, TEXTS[2]), prompt_ids(omni, TEXTS[3])
    end = omni.engine.node.ar["thinker"].stop_ids[0]
    body = [token for token in reply if token != end]
    newline = omni.engine.prompter._vocabulary.encode("\n")
    return np.concatenate([begin, body, [end], newline, again])


def test_media_and_reading_aloud_are_refused_in_words(omni: Omni) -> None:
    sound = {"audio": np.zeros(16000, np.float32)}
    for request in (Request([sound, "what is this?"]), Request("hello", say="good morning")):
        (reply,) = omni.generate([request])
        assert reply.status == "failed"
        assert "text only" in reply.message or "no voice" in reply.message


def test_it_runs_in_one_process(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="one process"):
        Omni(checkpoint, device="cpu", tensor_parallel=2)


def test_other_models_are_refused_with_those_there_are(checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config |= {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"'mamba'.*llama, .*qwen3_omni_moe.*MambaForCausalLM"):
        Omni(copy, device="cpu")
