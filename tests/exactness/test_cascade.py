"""A cascade against transformers: Whisper with the same tail, Llama on the transcript, VITS by phrases."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    VitsModel,
    VitsTokenizer,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput

from antiphon import Omni, Request
from antiphon.checkpoint.demo_cascade import WINDOW_S
from antiphon.core.conversation import AudioPart, Item, TextPart, TokensPart, TranscriptOptions
from antiphon.core.facts import ResponseRequested, SpeechEnded, WordsWanted
from antiphon.core.model_source import PARTS, source_of
from antiphon.core.plans import EncodeStep, Order, RenderPrompt
from antiphon.core.sampling import Sampling
from antiphon.flow.transcripts import Transcripts
from antiphon.metrics.names import Metric
from antiphon.models.cascade.hearing import LOUDEST, MOST_GAIN, QUIET_S
from antiphon.models.cascade.phrases import is_speakable, next_phrase
from antiphon.wire.input_settings import Transcription
from antiphon.wire.session import NOTHING_SAID
from antiphon.wire.transcription import transcription_request
from exactness.talk import Said, Talk

MAX_TEXT = 12
GREEDY = {"thinker": Sampling(max_tokens=MAX_TEXT)}
POSITION = 320
"""Samples of one of the encoder's positions."""


@pytest.mark.parametrize("apart", [False, True])
def test_parts_by_name_are_the_directory(cascade_checkpoint: Path, apart: bool):
    """The same model, whether its directory is named or each of its parts, in one process and in several."""
    source = source_of({part: str(cascade_checkpoint / part) for part in PARTS})
    question = [{"audio": np.sin(np.arange(8000, dtype=np.float32) / 20)}, "again"]
    said = []
    for model in (str(cascade_checkpoint), source):
        omni = Omni(model, max_context_tokens=256, kv_tokens=1024, stages_apart=apart)
        try:
            said.append(omni.generate([Request(question, sampling=GREEDY)])[0])
        finally:
            omni.close()
    assert said[0].text == said[1].text
    assert np.array_equal(said[0].audio, said[1].audio)


class Oracle:
    """Alone, fp64, greedy."""

    def __init__(self, path: Path, omni: Omni) -> None:
        self._omni = omni
        exact = {"dtype": torch.float64}
        self.whisper: Any = WhisperForConditionalGeneration.from_pretrained(path / "transcriber", **exact)
        self.llama: Any = AutoModelForCausalLM.from_pretrained(path / "thinker", **exact)
        self.vits: Any = VitsModel.from_pretrained(path / "voice", **exact)
        for model in (self.whisper, self.llama, self.vits):
            model.eval().requires_grad_(False)
        self.extract = WhisperFeatureExtractor.from_pretrained(path / "transcriber")
        self.text: Any = AutoTokenizer.from_pretrained(path / "thinker")
        self.symbols: Any = VitsTokenizer.from_pretrained(path / "voice")

    def mel(self, samples: np.ndarray) -> torch.Tensor:
        found = self.extract(samples, sampling_rate=16000, return_tensors="pt")["input_features"]
        return found.double()

    def transcript(self, samples: np.ndarray, *, tail: bool) -> tuple[int, ...]:
        if not tail:
            return self._generated(input_features=self.mel(samples))
        return self._generated(encoder_outputs=BaseModelOutput(self.states(samples)))

    def states(self, samples: np.ndarray) -> torch.Tensor:
        """transformers' layers over what was said, beside the states that each has for silence."""
        encoder, mel = self.whisper.model.encoder, self.mel(samples)
        silence = (LOUDEST - 4) / 4
        gain = min((LOUDEST + 4) / 4 - mel.max().item(), MOST_GAIN / 4)
        own = self._embedded((mel + gain).clamp_min(silence))
        quiet = self._embedded(torch.full_like(mel, silence))
        n = min(-(-(len(samples) + round(16000 * QUIET_S)) // POSITION), quiet.shape[1])
        own = own[:, :n]
        for layer in encoder.layers:
            own = layer(torch.cat((own, quiet[:, n:]), 1), None)[:, :n]
            quiet = layer(quiet, None)
        return encoder.layer_norm(torch.cat((own, quiet[:, n:]), 1))

    def _embedded(self, mel: torch.Tensor) -> torch.Tensor:
        encoder, gelu = self.whisper.model.encoder, torch.nn.functional.gelu
        x = gelu(encoder.conv2(gelu(encoder.conv1(mel)))).transpose(1, 2)
        return x + encoder.embed_positions.weight

    def _generated(self, **inputs: Any) -> tuple[int, ...]:
        """What generate() does with these, as far as it is the same for all its kinds of input."""
        config = self.whisper.generation_config
        ids = [config.decoder_start_token_id, config.no_timestamps_token_id]
        if "input_features" in inputs:
            inputs["encoder_outputs"] = self.whisper.model.encoder(inputs.pop("input_features"))
        begin = len(ids)
        while len(ids) < config.max_length:
            logits = self.whisper(decoder_input_ids=torch.tensor([ids]), **inputs).logits[0, -1].float()
            logits[config.suppress_tokens] = -torch.inf
            if len(ids) == begin:
                logits[config.begin_suppress_tokens] = -torch.inf
            drawn = int(logits.argmax())
            if drawn == config.eos_token_id:
                break
            ids.append(drawn)
        return tuple(ids[begin:])

    def reply(self, items: tuple[Item, ...], *, tail: bool) -> list[int]:
        parts = [part for item in items for part in item.parts if isinstance(part, AudioPart)]
        written = {
            part.key: self.transcript(np.frombuffer(part.samples, np.float32), tail=tail) for part in parts
        }
        order = RenderPrompt(0, items, speech=False, transcripts=written)
        ready = self._omni.engine.prompter.render(order)
        ids = torch.from_numpy(ready.prompts["thinker"].token_ids)[None]
        made = self.llama.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MAX_TEXT
        )
        return made[0, ids.shape[1] :].tolist()

    def sound(self, tokens: list[int]) -> np.ndarray:
        text, parts, is_first = self.text.decode(tokens, skip_special_tokens=True), [np.zeros(0)], True
        while (end := next_phrase(text, is_first=is_first, is_over=True)) is not None:
            phrase, text = text[:end].strip(), text[end:]
            ids = self.symbols(phrase, return_tensors="pt").input_ids if is_speakable(phrase) else None
            if ids is not None and ids.shape[1]:
                parts.append(self.vits(ids.long()).waveform[0].numpy())
                is_first = False
        return np.concatenate(parts)


class Orders:
    """Implements `runtime.driver.Recorder`: keeps the orders."""

    has_stopped = False

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def write(self, now: float, facts: Any, decision: Any) -> None:
        self.orders += decision.orders

    @property
    def transcripts(self) -> dict[int, tuple[int, ...]]:
        return {
            k: v for one in self.orders if isinstance(one, RenderPrompt) for k, v in one.transcripts.items()
        }

    @property
    def num_encoded(self) -> int:
        return sum(len(one.media) for one in self.orders if isinstance(one, EncodeStep))


def recording(seed: int, seconds: float) -> AudioPart:
    rng = np.random.default_rng(seed)
    shape = np.sin(np.arange(int(16000 * seconds)) * rng.uniform(0.01, 0.2)) * rng.uniform(0.05, 0.5)
    noise = 0.02 * rng.standard_normal(len(shape))
    return AudioPart.of((shape + noise).astype(np.float32).tobytes())


SPOKEN = [recording(1, 1.0), recording(2, 2.7), recording(3, 0.31), recording(4, 3.9)]


def taken(part: AudioPart, options: TranscriptOptions) -> AudioPart:
    """The recording, to be written down so."""
    return msgspec.structs.replace(part, options=options)


def said(*parts: AudioPart | str, name: str = "q") -> Item:
    return Item(name, "user", tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


QUESTIONS = [
    said(SPOKEN[0]),
    said("hello world, how are you today?"),
    said(SPOKEN[1], "and then: ", SPOKEN[2]),
    said(SPOKEN[3]),
]


@pytest.fixture(scope="module", params=[True, False], ids=["tail", "window"])
def tail(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(scope="module")
def omni(cascade_checkpoint: Path, tail: bool) -> Omni:
    path = cascade_checkpoint
    if not tail:
        path = cascade_checkpoint.parent / "windows"
        path.mkdir()
        content = (cascade_checkpoint / "config.json").read_text().replace("{", '{"silent_tail": false,', 1)
        for part in ("transcriber", "thinker", "voice"):
            content = content.replace(f': "{part}"', f': "{cascade_checkpoint / part}"')
        (path / "config.json").write_text(content)
    return Omni(path, device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def oracle(cascade_checkpoint: Path, omni: Omni) -> Oracle:
    return Oracle(cascade_checkpoint, omni)


def check(found: Said, expected: list[int], oracle: Oracle, omni: Omni) -> None:
    assert found.end is not None
    assert found.end.status in ("completed", "incomplete"), found.end
    stop = omni.engine.node.ar["thinker"].stop_ids
    assert found.text == [token for token in expected if token not in stop]
    wave = oracle.sound(found.text)
    assert found.wav.shape == wave.shape
    np.testing.assert_allclose(found.wav, wave, atol=1e-4)


def ask(talk: Talk, session: str, **wanted: Any) -> None:
    talk.ask(session, voice=None, sampling=GREEDY, codes=False, **wanted)


def check_all_free(talk: Talk) -> None:
    stats = talk.driver.stats()
    for stage, config in talk.engine.node.ar.items():
        assert stats[Metric.KV_BLOCKS_FREE.of(stage)] == config.num_blocks
        assert stats[Metric.REQUESTS_RUNNING.of(stage)] == stats[Metric.REQUESTS_WAITING.of(stage)] == 0
    assert stats[Metric.RESPONSES_OPEN] == 0


def together(omni: Omni, oracle: Oracle, tail: bool, **overrides: Any) -> Talk:
    """All ask within a few steps of each other, and each is told what it would be told alone."""
    orders = Orders()
    talk = Talk(omni.engine, recorder=orders, **overrides)
    for i, question in enumerate(QUESTIONS):
        talk.open(f"s{i}", question)
        ask(talk, f"s{i}")
        talk.step(2)
    talk.run()
    for part in SPOKEN:
        expected = oracle.transcript(np.frombuffer(part.samples, np.float32), tail=tail)
        assert orders.transcripts[part.key] == expected
        assert len(expected) > 1
    assert len(set(orders.transcripts.values())) > 1, "recordings are told apart"
    for i, question in enumerate(QUESTIONS):
        check(talk.said[f"s{i}"], oracle.reply((question,), tail=tail), oracle, omni)
    talk.close(*(f"s{i}" for i in range(len(QUESTIONS))))
    talk.run()
    check_all_free(talk)
    return talk


def test_batched_it_says_what_transformers_says(omni: Omni, oracle: Oracle, tail: bool):
    together(omni, oracle, tail)
    assert max(len(oracle.sound(oracle.reply((one,), tail=tail))) for one in QUESTIONS) > 24 * 64 * 3
    assert not tail or oracle.transcript(np.frombuffer(SPOKEN[0].samples, np.float32), tail=True)


def test_preempted_it_says_the_same(omni: Omni, oracle: Oracle, tail: bool):
    small = {"num_blocks": 4, "headroom_blocks": 0}
    talk = together(omni, oracle, tail, transcriber=small, thinker={"num_blocks": 12, "headroom_blocks": 0})
    stats = talk.driver.stats()
    assert stats[Metric.PREEMPTIONS.of("transcriber")] + stats[Metric.PREEMPTIONS.of("thinker")] > 0


def test_interrupted_the_next_turn_answers_what_was_heard(omni: Omni, oracle: Oracle, tail: bool):
    orders = Orders()
    talk = Talk(omni.engine, recorder=orders)
    talk.open("s", QUESTIONS[0])
    ask(talk, "s")
    while not talk.said["s"].audio:
        talk.step()
    talk.cancel("s", keep=3)
    talk.run()
    heard = TokensPart(tuple(talk.said["s"].text[:3]))
    second = said(SPOKEN[1], name="q2")
    talk.add("s", second)
    talk.ask("s", "again", voice=None, sampling=GREEDY, codes=False)
    talk.run()
    history = (QUESTIONS[0], Item("reply-s", "assistant", (heard,)), second)
    check(talk.said["again"], oracle.reply(history, tail=tail), oracle, omni)
    end = talk.said["again"].end
    assert end is not None
    assert end.usage.cached_tokens > 0, "the first turn's KV is found again"
    assert orders.num_encoded == 2, "what was written down once is not heard again"
    talk.close("s")
    talk.run()
    check_all_free(talk)


def test_what_was_read_in_pauses_changes_nothing(omni: Omni, oracle: Oracle, tail: bool):
    """Neither of a turn that went on, nor of what precedes one, nor of one that ends in its pause."""
    orders = Orders()
    talk = Talk(omni.engine, recorder=orders)
    talk.open("s")
    asked = ResponseRequested("s", "", "")
    talk.foresee("s", NOTHING_SAID, asked)
    talk.step(50)
    assert talk.driver.stats()[Metric.PREPARED_TOKENS.of("thinker")] > 0, "what the template begins with"
    for item, steps in ((QUESTIONS[2], 50), (QUESTIONS[0], 3), (QUESTIONS[3], 50)):
        talk.foresee("s", item, asked)
        talk.step(steps)
    before = orders.num_encoded
    talk.add("s", QUESTIONS[3])
    ask(talk, "s")
    talk.run()
    assert orders.num_encoded == before
    check(talk.said["s"], oracle.reply((QUESTIONS[3],), tail=tail), oracle, omni)
    end = talk.said["s"].end
    assert end is not None
    assert end.usage.cached_tokens > 0
    talk.close("s")
    talk.run()
    check_all_free(talk)


def test_the_words_so_far_are_the_transcript_of_what_was_said_so_far(omni: Omni, oracle: Oracle, tail: bool):
    """In a pause they cost nothing; and the reply to the turn is as if nothing had been shown before."""
    orders = Orders()
    talk = Talk(omni.engine, recorder=orders)
    talk.open("s")
    asked = ResponseRequested("s", "", "")
    for part, is_pause in ((SPOKEN[0], False), (SPOKEN[1], False), (SPOKEN[3], True)):
        if is_pause:
            talk.foresee("s", said(part), asked)
        talk.tell(WordsWanted("s", "q", (part,), is_pause))
        talk.step(80)
    texts = []
    for words, part in zip(talk.words, (SPOKEN[0], SPOKEN[1], SPOKEN[3]), strict=True):
        ids = oracle.transcript(np.frombuffer(part.samples, np.float32), tail=tail)
        texts.append(ids)
        assert tuple(words.tokens.tolist()) == ids
    assert len(set(texts)) > 1
    assert orders.num_encoded == 3
    talk.tell(SpeechEnded("s"))
    talk.tell(WordsWanted("s", "r", (SPOKEN[2],), False))  # of the next turn, beside the reply
    talk.step()
    talk.add("s", QUESTIONS[3])
    ask(talk, "s")
    talk.run()
    check(talk.said["s"], oracle.reply((QUESTIONS[3],), tail=tail), oracle, omni)
    end = talk.said["s"].end
    assert end is not None
    assert end.usage.cached_tokens > 0
    assert len(talk.words) == 4
    last = oracle.transcript(np.frombuffer(SPOKEN[2].samples, np.float32), tail=tail)
    assert tuple(talk.words[-1].tokens.tolist()) == last
    talk.close("s")
    talk.run()
    check_all_free(talk)


def test_a_reply_that_nobody_waits_for_is_not_written_down(omni: Omni):
    talk = Talk(omni.engine)
    talk.open("s", QUESTIONS[3])
    ask(talk, "s")
    talk.step()
    talk.cancel("s")
    talk.run()
    assert talk.said["s"].end is not None
    assert talk.said["s"].end.status == "cancelled"
    check_all_free(talk)


def test_too_long_a_recording_fails_alone(omni: Omni, oracle: Oracle, tail: bool):
    talk = Talk(omni.engine)
    talk.open("long", said(recording(9, 4.2)))
    talk.open("s", QUESTIONS[0])
    ask(talk, "long")
    ask(talk, "s")
    talk.run()
    end = talk.said["long"].end
    assert end is not None
    assert end.status == "failed"
    assert "this model hears 4 s at a time" in end.message
    check(talk.said["s"], oracle.reply((QUESTIONS[0],), tail=tail), oracle, omni)


def test_the_wire_is_told_how_the_text_is_drawn_and_how_long_a_recording_may_be(omni: Omni):
    """What a client wishes of the text is the thinker's, and not the transcriber's."""
    assert next(iter(omni.engine.info.sampling)) == "thinker"
    assert omni.engine.info.max_recording_s == WINDOW_S


def test_a_given_text_is_read_aloud(omni: Omni, oracle: Oracle):
    talk = Talk(omni.engine)
    talk.open("s", said("say it"))
    ask(talk, "s", say="Good morning, and welcome to all of you. How are you?")
    talk.run()
    assert talk.said["s"].end is not None
    assert talk.said["s"].end.status == "completed"
    np.testing.assert_allclose(talk.said["s"].wav, oracle.sound(talk.said["s"].text), atol=1e-4)


def test_a_written_reply_is_silent(omni: Omni):
    talk = Talk(omni.engine)
    talk.open("s", QUESTIONS[1])
    ask(talk, "s", speech=False)
    talk.run()
    assert talk.said["s"].text
    assert not talk.said["s"].audio


def test_a_transcript_is_told_to_who_asks_for_it(omni: Omni, oracle: Oracle, tail: bool):
    talk = Talk(omni.engine)
    talk.open("s")
    request = transcription_request("s", "t", (SPOKEN[0],), Transcription())
    talk.tell(request)
    talk.run()
    samples = np.frombuffer(SPOKEN[0].samples, np.float32)
    expected = oracle.transcript(samples, tail=tail)
    assert expected
    assert tuple(talk.said["t"].text) == expected
    assert not talk.said["t"].audio


def test_a_recording_in_which_nobody_speaks_is_told_by_the_probability_of_transformers(
    omni: Omni, oracle: Oracle, tail: bool, cascade_checkpoint: Path, tmp_path: Path
):
    """Where a transcript starts; those below the threshold are written down as they would be without one."""
    config = oracle.whisper.generation_config
    prompt = torch.tensor([[config.decoder_start_token_id, config.no_timestamps_token_id]])
    odds: dict[int, float] = {}
    for part in SPOKEN:
        samples = np.frombuffer(part.samples, np.float32)
        states = oracle.states(samples) if tail else oracle.whisper.model.encoder(oracle.mel(samples))[0]
        logits = oracle.whisper(decoder_input_ids=prompt, encoder_outputs=BaseModelOutput(states)).logits
        odds[part.key] = float(logits[0, 0].softmax(-1)[config.no_timestamps_token_id - 1])
    low, high = sorted(odds.values())[1:3]
    parts = {part: str(cascade_checkpoint / part) for part in PARTS}
    content = {"model_type": "cascade", **parts, "silent_tail": tail, "no_speech_threshold": (low + high) / 2}
    (tmp_path / "config.json").write_text(json.dumps(content))
    strict = Omni(tmp_path, device="cpu", dtype="float64", step_tokens=3)
    try:
        talk = Talk(strict.engine)
        talk.open("s")
        for i, part in enumerate(SPOKEN):
            talk.tell(transcription_request("s", f"t{i}", (part,), Transcription()))
            talk.step(1)
        talk.run()
        for i, part in enumerate(SPOKEN):
            written = oracle.transcript(np.frombuffer(part.samples, np.float32), tail=tail)
            expected = () if odds[part.key] > low else written
            assert tuple(talk.said[f"t{i}"].text) == expected
        silent = next(part for part in SPOKEN if odds[part.key] > low)
        heard = next(part for part in SPOKEN if odds[part.key] <= low)
        for name, items in {"n": (said(silent),), "y": (said(silent), said(heard, name="r"))}.items():
            talk.open(name, *items)
            ask(talk, name)
            talk.run()
        assert (talk.said["n"].end.status, talk.said["n"].end.reason) == ("cancelled", "no_speech")
        check(talk.said["y"], oracle.reply((said(heard),), tail=tail), oracle, omni)
    finally:
        strict.close()


HINTS = [
    TranscriptOptions(),
    TranscriptOptions(language="de"),
    TranscriptOptions(prompt="hello world"),
    TranscriptOptions("de", "hello world, how are you today? " * 5),
]


def test_language_and_prompt_of_a_transcript_are_those_of_transformers(
    cascade_checkpoint: Path, tmp_path: Path
):
    """Of whole windows, by its own `generate`; a prompt that is too long loses its beginning."""
    path = tmp_path / "two"
    shutil.copytree(cascade_checkpoint / "transcriber", path / "transcriber")
    tokenizer = Tokenizer.from_file(str(path / "transcriber/tokenizer.json"))
    ids = [tokenizer.token_to_id(f"<|{name}|>") for name in ("vision_start", "vision_end", "image_pad")]
    file = path / "transcriber/generation_config.json"
    generation = json.loads(file.read_text()) | {
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": ids[0], "<|de|>": ids[1]},
        "task_to_id": {"transcribe": ids[2], "translate": ids[2]},
    }
    file.write_text(json.dumps(generation))
    parts = {part: str(cascade_checkpoint / part) for part in ("thinker", "voice")}
    content = {"model_type": "cascade", "transcriber": "transcriber", **parts, "silent_tail": False}
    (path / "config.json").write_text(json.dumps(content))
    whisper: Any = WhisperForConditionalGeneration.from_pretrained(path / "transcriber", dtype=torch.float64)
    extract = WhisperFeatureExtractor.from_pretrained(path / "transcriber")
    omni = Omni(path, device="cpu", dtype="float64")
    try:
        assert omni.engine.info.languages == ("en", "de")
        talk = Talk(omni.engine)
        talk.open("s")
        for i, options in enumerate(HINTS):
            talk.tell(transcription_request("s", f"t{i}", (taken(SPOKEN[1], options),), Transcription()))
        warm = TranscriptOptions(temperature=1.0, seed=5)
        for name in ("w0", "w1"):
            talk.tell(transcription_request("s", name, (taken(SPOKEN[1], warm),), Transcription()))
        talk.run()
    finally:
        omni.close()
    samples = np.frombuffer(SPOKEN[1].samples, np.float32)
    mel = extract(samples, sampling_rate=16000, return_tensors="pt")["input_features"].double()
    said_so = set()
    for i, options in enumerate(HINTS):
        before = tokenizer.encode(f" {options.prompt.strip()}").ids[-11:] if options.prompt else []
        prompt = torch.tensor([generation["prev_sot_token_id"], *before]) if before else None
        made = whisper.generate(mel, prompt_ids=prompt, language=options.language or "en", task="transcribe")
        made = made[0].tolist()
        start = generation["no_timestamps_token_id"]
        made = made[len(made) - made[::-1].index(start) :] if start in made else made
        expected = tokenizer.decode(made, skip_special_tokens=True).strip()
        assert tokenizer.decode(talk.said[f"t{i}"].text).strip() == expected
        said_so.add(expected)
    assert len(said_so) == len(HINTS), "each hint changes what is written"
    assert talk.said["w0"].text == talk.said["w1"].text != talk.said["t0"].text


GUESSES: dict[str, tuple[Callable[[tuple[int, ...]], tuple[int, ...]], int]] = {
    "nothing": (lambda truth: (), 0),
    "wrong": (lambda truth: (truth[0] + 1, *truth[1:]), 0),
    "right at first": (lambda truth: (*truth[:3], truth[3] + 1, *truth[4:]), 3),
    "shorter": (lambda truth: truth[:5], 5),
    "whole": (lambda truth: truth, 20),
    "longer": (lambda truth: (*truth, 3, 4, 5), 20),
}
"""What a transcript is expected to be, and how many of its 22 steps that saves: a block holds 14 tokens
behind the prompt."""


def expect(monkeypatch: pytest.MonkeyPatch, draft_of: Callable[[str], tuple[int, ...]]) -> None:
    """What a session's transcript is expected to be, whatever was written before."""

    def hear(self: Transcripts, running: Any, *_: object) -> None:
        running.draft = draft_of(running.session)

    monkeypatch.setattr(Transcripts, "_hear", hear)


def transcripts_expected(
    omni: Omni, sessions: dict[str, tuple[Item, tuple[int, ...]]], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[int, tuple[int, ...]], int]:
    """The transcripts of these sessions' questions, asked at once, each expected to be as given; and how many
    steps of the decoder they took."""
    expect(monkeypatch, lambda session: sessions[session][1])
    executor: Any = omni.engine.executors["transcriber"]
    model, steps = executor.runner._model, []
    forward = model.forward
    orders = Orders()
    talk = Talk(omni.engine, orders)
    for name, (item, _) in sessions.items():
        talk.open(name, item)
        ask(talk, name)
    with monkeypatch.context() as patched:
        patched.setattr(model, "forward", lambda step: steps.append(step) or forward(step))
        talk.run()
    talk.close(*sessions)
    talk.run()
    check_all_free(talk)
    return orders.transcripts, len(steps)


def transcript_of(item: Item, oracle: Oracle, tail: bool) -> tuple[int, ...]:
    (part,) = item.parts
    assert isinstance(part, AudioPart)
    return oracle.transcript(np.frombuffer(part.samples, np.float32), tail=tail)


@pytest.mark.parametrize("guess", GUESSES)
def test_what_is_expected_saves_steps_and_changes_no_token(
    omni: Omni, oracle: Oracle, tail: bool, guess: str, monkeypatch: pytest.MonkeyPatch
):
    make, saved = GUESSES[guess]
    for name, item in (("a", QUESTIONS[0]), ("b", QUESTIONS[3])):
        truth = transcript_of(item, oracle, tail)
        assert len(truth) == 22
        found, num_steps = transcripts_expected(omni, {name: (item, make(truth))}, monkeypatch)
        assert list(found.values()) == [truth]
        assert num_steps == 22 - saved


@pytest.mark.parametrize(
    "guesses", [("whole", "wrong"), ("shorter", "right at first"), ("nothing", "longer")]
)
def test_rows_with_and_without_a_draft_share_steps(
    omni: Omni, oracle: Oracle, tail: bool, guesses: tuple[str, str], monkeypatch: pytest.MonkeyPatch
):
    items = QUESTIONS[0], QUESTIONS[3]
    truths = [transcript_of(item, oracle, tail) for item in items]
    drafts = [GUESSES[guess][0](truth) for guess, truth in zip(guesses, truths, strict=True)]
    sessions = dict(zip("ab", zip(items, drafts, strict=True), strict=True))
    found, _ = transcripts_expected(omni, sessions, monkeypatch)
    assert sorted(found.values()) == sorted(truths)


def test_a_transcript_that_is_not_the_likeliest_has_no_draft_computed(
    omni: Omni, oracle: Oracle, tail: bool, monkeypatch: pytest.MonkeyPatch
):
    """What is drawn by chance would be drawn by chance behind the draft as well."""
    said_again = {}
    for draft in ((), transcript_of(QUESTIONS[0], oracle, tail)):
        expect(monkeypatch, lambda session, draft=draft: draft)
        orders = Orders()
        talk = Talk(omni.engine, orders)
        talk.open("s", said(taken(SPOKEN[0], TranscriptOptions(temperature=1.0, seed=5))))
        ask(talk, "s")
        talk.run()
        said_again[draft] = list(orders.transcripts.values())
    assert len({str(one) for one in said_again.values()}) == 1
