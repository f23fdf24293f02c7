"""A cascade's transcripts against transformers: told, so far, of silence, with a language and a prompt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from antiphon import Omni
from antiphon.core.conversation import TranscriptOptions
from antiphon.core.facts import ResponseRequested, SpeechEnded, WordsWanted
from antiphon.core.model_source import PARTS
from antiphon.wire.input_settings import InputTranscription
from antiphon.wire.transcription import transcription_request
from exactness.cascade import QUESTIONS, SPOKEN, Oracle, Orders, ask, check, check_all_free, said, taken
from exactness.talk import Talk


def test_a_transcript_is_told_to_who_asks_for_it(omni: Omni, oracle: Oracle):
    talk = Talk(omni.engine)
    talk.open("s")
    request = transcription_request("s", "t", (SPOKEN[0],), InputTranscription())
    talk.tell(request)
    talk.run()
    expected = oracle.transcript(SPOKEN[0])
    assert expected
    assert tuple(talk.said["t"].text) == expected
    assert not talk.said["t"].audio


def test_the_words_so_far_are_the_transcript_of_what_was_said_so_far(omni: Omni, oracle: Oracle):
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
        ids = oracle.transcript(part)
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
    check(talk.said["s"], oracle.reply((QUESTIONS[3],)), oracle)
    end = talk.said["s"].end
    assert end is not None
    assert end.usage.cached_tokens > 0
    assert len(talk.words) == 4
    last = oracle.transcript(SPOKEN[2])
    assert tuple(talk.words[-1].tokens.tolist()) == last
    talk.close("s")
    talk.run()
    check_all_free(talk)


def test_a_recording_in_which_nobody_speaks_is_told_by_the_probability_of_transformers(
    oracle: Oracle, cascade_checkpoint: Path, tmp_path: Path
):
    """Where a transcript starts; those below the threshold are written down as they would be without one."""
    config = oracle.whisper.generation_config
    prompt = torch.tensor([[config.decoder_start_token_id, config.no_timestamps_token_id]])
    odds: dict[int, float] = {}
    for part in SPOKEN:
        states = BaseModelOutput(oracle.states(part))
        logits = oracle.whisper(decoder_input_ids=prompt, encoder_outputs=states).logits
        odds[part.key] = float(logits[0, 0].softmax(-1)[config.no_timestamps_token_id - 1])
    low, high = sorted(odds.values())[1:3]
    parts = {part: str(cascade_checkpoint / part) for part in PARTS}
    content = {
        "model_type": "cascade",
        **parts,
        "silent_tail": oracle.tail,
        "no_speech_threshold": (low + high) / 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    strict = Omni(tmp_path, device="cpu", dtype="float64", step_tokens=3)
    try:
        talk = Talk(strict.engine)
        talk.open("s")
        for i, part in enumerate(SPOKEN):
            talk.tell(transcription_request("s", f"t{i}", (part,), InputTranscription()))
            talk.step(1)
        talk.run()
        for i, part in enumerate(SPOKEN):
            written = oracle.transcript(part)
            expected = () if odds[part.key] > low else written
            assert tuple(talk.said[f"t{i}"].text) == expected
        silent = next(part for part in SPOKEN if odds[part.key] > low)
        heard = next(part for part in SPOKEN if odds[part.key] <= low)
        for name, items in {"n": (said(silent),), "y": (said(silent), said(heard, name="r"))}.items():
            talk.open(name, *items)
            ask(talk, name)
            talk.run()
        assert (talk.said["n"].end.status, talk.said["n"].end.reason) == ("cancelled", "no_speech")
        check(talk.said["y"], oracle.reply((said(heard),)), oracle)
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
            talk.tell(transcription_request("s", f"t{i}", (taken(SPOKEN[1], options),), InputTranscription()))
        warm = TranscriptOptions(temperature=1.0, seed=5)
        for name in ("w0", "w1"):
            talk.tell(transcription_request("s", name, (taken(SPOKEN[1], warm),), InputTranscription()))
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
