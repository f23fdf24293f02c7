"""A cascade beside transformers: Whisper with the same tail, Llama on the transcript, VITS by phrases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    VitsModel,
    VitsTokenizer,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput

from antiphon import Omni
from antiphon.core.conversation import AudioPart, Item, TextPart, TranscriptOptions
from antiphon.core.latin import has_words
from antiphon.core.plans import EncodeStep, Order, RenderPrompt
from antiphon.core.sampling import Sampling
from antiphon.metrics.names import Metric
from antiphon.models.cascade.hearing import LOUDEST, MOST_GAIN, QUIET_S
from antiphon.models.cascade.phrases import next_phrase
from exactness.talk import Said, Talk

MAX_TEXT = 12
GREEDY = {"thinker": Sampling(max_tokens=MAX_TEXT)}
POSITION = 320
"""Samples of one of the encoder's positions."""


class Oracle:
    """Alone, fp64, greedy. What was written down once is kept.

    tail  the encoder's states of silence follow what was said; else Whisper's whole window
    """

    def __init__(self, path: Path, omni: Omni, *, tail: bool) -> None:
        self.omni, self.tail = omni, tail
        exact = {"dtype": torch.float64}
        self.whisper: Any = WhisperForConditionalGeneration.from_pretrained(path / "transcriber", **exact)
        self.llama: Any = AutoModelForCausalLM.from_pretrained(path / "thinker", **exact)
        self.vits: Any = VitsModel.from_pretrained(path / "voice", **exact)
        for model in (self.whisper, self.llama, self.vits):
            model.eval().requires_grad_(False)
        self.extract = WhisperFeatureExtractor.from_pretrained(path / "transcriber")
        self.text: Any = AutoTokenizer.from_pretrained(path / "thinker")
        self.symbols: Any = VitsTokenizer.from_pretrained(path / "voice")
        self._written: dict[int, tuple[int, ...]] = {}

    def transcript(self, part: AudioPart) -> tuple[int, ...]:
        if part.key not in self._written:
            self._written[part.key] = self._generated(BaseModelOutput(self.states(part)))
        return self._written[part.key]

    def states(self, part: AudioPart) -> torch.Tensor:
        """The encoder's."""
        samples = np.frombuffer(part.samples, np.float32)
        mel = self.extract(samples, sampling_rate=16000, return_tensors="pt")["input_features"].double()
        return self._with_tail(mel, len(samples)) if self.tail else self.whisper.model.encoder(mel)[0]

    def _with_tail(self, mel: torch.Tensor, num_samples: int) -> torch.Tensor:
        """transformers' layers over what was said, beside the states that each has for silence."""
        encoder = self.whisper.model.encoder
        silence = (LOUDEST - 4) / 4
        gain = min((LOUDEST + 4) / 4 - mel.max().item(), MOST_GAIN / 4)
        own = self._embedded((mel + gain).clamp_min(silence))
        quiet = self._embedded(torch.full_like(mel, silence))
        n = min(-(-(num_samples + round(16000 * QUIET_S)) // POSITION), quiet.shape[1])
        own = own[:, :n]
        for layer in encoder.layers:
            own = layer(torch.cat((own, quiet[:, n:]), 1), None)[:, :n]
            quiet = layer(quiet, None)
        return encoder.layer_norm(torch.cat((own, quiet[:, n:]), 1))

    def _embedded(self, mel: torch.Tensor) -> torch.Tensor:
        encoder, gelu = self.whisper.model.encoder, torch.nn.functional.gelu
        x = gelu(encoder.conv2(gelu(encoder.conv1(mel)))).transpose(1, 2)
        return x + encoder.embed_positions.weight

    def _generated(self, states: BaseModelOutput) -> tuple[int, ...]:
        """What generate() does with these, as far as it is the same for silence and for a whole window."""
        config = self.whisper.generation_config
        ids = [config.decoder_start_token_id, config.no_timestamps_token_id]
        begin = len(ids)
        while len(ids) < config.max_length:
            made = self.whisper(decoder_input_ids=torch.tensor([ids]), encoder_outputs=states)
            logits = made.logits[0, -1].float()
            logits[config.suppress_tokens] = -torch.inf
            if len(ids) == begin:
                logits[config.begin_suppress_tokens] = -torch.inf
            drawn = int(logits.argmax())
            if drawn == config.eos_token_id:
                break
            ids.append(drawn)
        return tuple(ids[begin:])

    def reply(self, items: tuple[Item, ...]) -> list[int]:
        parts = [part for item in items for part in item.parts if isinstance(part, AudioPart)]
        written = {part.key: self.transcript(part) for part in parts}
        order = RenderPrompt(0, items, speech=False, transcripts=written)
        ready = self.omni.engine.prompter.render(order)
        ids = torch.from_numpy(ready.prompts["thinker"].token_ids)[None]
        made = self.llama.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MAX_TEXT
        )
        return made[0, ids.shape[1] :].tolist()

    def sound(self, tokens: list[int]) -> np.ndarray:
        text, parts, num_said = self.text.decode(tokens, skip_special_tokens=True), [np.zeros(0)], 0
        while (end := next_phrase(text, num_before=num_said, is_over=True)) is not None:
            phrase, text = text[:end].strip(), text[end:]
            ids = (
                self.symbols(phrase, return_tensors="pt").input_ids
                if has_words(phrase, latin_only=False)
                else None
            )
            if ids is not None and ids.shape[1]:
                parts.append(self.vits(ids.long()).waveform[0].numpy())
                num_said += 1
        return np.concatenate(parts)


class Orders:
    """Implements `runtime.driver.DecisionRecorder`: keeps the orders."""

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


def said(*parts: AudioPart | str, name: str = "q") -> Item:
    return Item(name, "user", tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


QUESTIONS = [
    said(SPOKEN[0]),
    said("hello world, how are you today?"),
    said(SPOKEN[1], "and then: ", SPOKEN[2]),
    said(SPOKEN[3]),
]


def taken(part: AudioPart, options: TranscriptOptions) -> AudioPart:
    """The recording, to be written down so."""
    return msgspec.structs.replace(part, options=options)


def check(found: Said, expected: list[int], oracle: Oracle) -> None:
    assert found.end is not None
    assert found.end.status in ("completed", "incomplete"), found.end
    stop = oracle.omni.engine.node.ar["thinker"].stop_ids
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
