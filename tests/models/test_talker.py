"""Thinker, encoders, talker, predictor together against transformers' generate(): fp64, greedy, batch 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from antiphon.models.qwen3_omni.talker_prompt import TalkerPrompt, talker_prompt
from antiphon.models.qwen_media.positions import mrope_positions
from antiphon.nn.attention import LayerKv, PagedBatch, over
from antiphon.nn.step import StepInputs
from models.scenes import Scene, scenes

if TYPE_CHECKING:
    from antiphon.models.decoder import Decoder
    from antiphon.models.decoder_stage import Thinker
    from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
    from antiphon.models.qwen3_omni.encoders import Encoders
    from antiphon.models.qwen3_omni.talker import Talker

TEXT, FRAMES, BLOCK, BLOCKS = 10, 8, 4, 40
KINDS = ["text", "audio", "image", "mixed"]


@dataclass
class Sequence:
    """One sequence in pages of its own."""

    decoder: Decoder
    cached: int = 0
    delta: float = 0.0

    def __post_init__(self) -> None:
        self.pages = self.decoder.new_pages(BLOCKS, BLOCK)

    def kv(self, new: int) -> list[LayerKv]:
        batch = PagedBatch.build([new], [self.cached], [range(BLOCKS)], BLOCK)
        self.cached += new
        return over(self.pages, batch)

    def next_position(self) -> torch.Tensor:
        return torch.full((3, 1), self.cached + self.delta)

    def prompt_positions(self, length: int, spans: Any) -> torch.Tensor:
        positions, following = mrope_positions(length, spans)
        self.delta = following - length
        return torch.from_numpy(positions)


@dataclass
class Oracle:
    text: list[int]
    codes: torch.Tensor
    talker_inputs: torch.Tensor
    talker_ids: list[int]


def ask_reference(reference: Any, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Oracle:
    seen: dict[str, Any] = {}
    generate = reference.talker.generate

    def spy(**kwargs: Any) -> Any:
        seen["kwargs"], seen["result"] = kwargs, generate(**kwargs)
        return seen["result"]

    monkeypatch.setattr(reference.talker, "generate", spy)
    ids, _ = reference.generate(
        **scene.kwargs(),
        thinker_max_new_tokens=TEXT,
        thinker_eos_token_id=scene.config.tokens.im_end,
        talker_max_new_tokens=FRAMES + 1,
        talker_do_sample=False,
        talker_top_k=None,
        talker_top_p=None,
        talker_temperature=None,
        talker_repetition_penalty=1.0,
    )
    codes = torch.stack([h[-1] for h in seen["result"].hidden_states if h[-1] is not None], 1)[0]
    kwargs = seen["kwargs"]
    return Oracle(
        ids[0, len(scene.ids) :].tolist(),
        codes,
        kwargs["inputs_embeds"][0],
        kwargs["talker_input_ids"][0].tolist(),
    )


def think(scene: Scene, thinker: Thinker, encoders: Encoders) -> tuple[list[int], torch.Tensor]:
    """The reply's text and the hidden states for the talker."""
    tokens = scene.config.tokens
    ids = torch.tensor(scene.ids)
    x = thinker.embed(ids).clone()
    if scene.mels:
        x[ids == tokens.audio] = torch.cat(encoders.hear(scene.mels))
    deepstack, visual = [], None
    if scene.patches:
        images = encoders.see(scene.patches, [span.grid for span in scene.spans])
        visual = torch.nonzero(ids == tokens.image).flatten()
        x[visual] = torch.cat([rows for rows, _ in images])
        deepstack = [torch.cat(level) for level in zip(*(deep for _, deep in images), strict=True)]
    sequence = Sequence(thinker.decoder)
    positions = sequence.prompt_positions(len(ids), scene.spans)
    hidden, captured = thinker.decoder.forward(
        StepInputs(
            x,
            positions,
            sequence.kv(len(ids)),
            capture=thinker.capture_layer,
            deepstack=deepstack,
            visual=visual,
        )
    )
    assert captured is not None
    text = [int(thinker.decoder.logits(hidden[-1:]).argmax())]
    while len(text) < TEXT and text[-1] != tokens.im_end:
        at = sequence.next_position()
        step = StepInputs(thinker.embed(torch.tensor(text[-1:])), at, sequence.kv(1))
        hidden, _ = thinker.decoder.forward(step)
        text.append(int(thinker.decoder.logits(hidden).argmax()))
    return text, captured


def speak(
    scene: Scene, talker: Talker, prompt: TalkerPrompt, inputs: torch.Tensor, text: list[int]
) -> torch.Tensor:
    """Codec frames, greedy without a repetition penalty."""
    tokens = scene.config.tokens
    sequence = Sequence(talker.decoder)
    positions = sequence.prompt_positions(len(prompt), prompt.spans)
    hidden, _ = talker.decoder.forward(StepInputs(inputs, positions, sequence.kv(len(prompt))))
    hidden = hidden[-1:]
    beside = [*text[1:-1], tokens.tts_eos, *[tokens.tts_pad] * FRAMES]
    frames = []
    for i in range(FRAMES):
        c0 = talker.decoder.logits(hidden).masked_fill(talker.suppressed, -torch.inf).argmax(-1)
        if int(c0) == talker.config.codec.eos:
            break
        frames.append(talker.predictor.frame(hidden, c0, lambda logits, _: logits.argmax(-1)))
        x = talker.step_inputs(frames[-1], torch.tensor([beside[i]]))
        at = sequence.next_position()
        hidden, _ = talker.decoder.forward(StepInputs(x, at, sequence.kv(1)))
    return torch.cat(frames)


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_equals_transformers(
    kind: str,
    reference: Any,
    config: Qwen3OmniConfig,
    thinker: Thinker,
    talker: Talker,
    encoders: Encoders,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = scenes(config)[kind]
    oracle = ask_reference(reference, scene, monkeypatch)
    text, captured = think(scene, thinker, encoders)
    assert text == oracle.text
    prompt = talker_prompt(scene.ids, scene.spans, scene.config.tokens)
    media = captured[torch.from_numpy(prompt.sources)]
    inputs = talker.prompt_inputs(prompt, media, text[0], talker.config.speaker_id("Ethan"))
    torch.testing.assert_close(inputs, oracle.talker_inputs, rtol=0, atol=1e-12)
    codes = speak(scene, talker, prompt, inputs, text)
    assert torch.equal(codes, oracle.codes)


@pytest.mark.parametrize("kind", KINDS)
def test_talker_prompt_names_positions_and_sources(kind: str, config: Qwen3OmniConfig) -> None:
    scene = scenes(config)[kind]
    tokens = scene.config.tokens
    prompt = talker_prompt(np.array(scene.ids), scene.spans, tokens)
    assert len(prompt) == len(prompt.text_ids)
    assert prompt.text_ids[-9:].tolist() == [
        *scene.ids[-3:],
        *[tokens.tts_pad] * 4,
        tokens.tts_bos,
        tokens.tts_pad,
    ]
    assert np.array_equal(prompt.text_ids[prompt.media], np.array(scene.ids)[prompt.sources])
    assert set(prompt.text_ids[prompt.media]) <= set(tokens.media)
    for span, seen in zip(scene.spans, prompt.spans, strict=True):
        assert seen.grid == span.grid
        assert prompt.text_ids[seen.start] == scene.ids[span.start] == tokens.image
        assert prompt.text_ids[seen.start - 1] == tokens.vision_start


def test_media_outside_the_users_turns_is_not_seen(config: Qwen3OmniConfig) -> None:
    scene = Scene(config).open("system").image((1, 2, 2)).close().open("user").text([9]).close()
    prompt = talker_prompt(scene.open("assistant").ids, scene.spans, scene.config.tokens)
    assert prompt.spans == ()
    assert len(prompt.media) == 0
    assert len(prompt) == 6 + 9


def test_a_prompt_without_a_reply_header_is_refused(config: Qwen3OmniConfig) -> None:
    scene = Scene(config).open("user").text([9]).close()
    with pytest.raises(ValueError, match="header"):
        talker_prompt(scene.ids, (), scene.config.tokens)


def test_a_prompt_without_a_user_has_only_the_header(config: Qwen3OmniConfig) -> None:
    assert len(talker_prompt(Scene(config).open("assistant").ids, (), config.tokens)) == 9


def test_the_first_reply_token_may_stay_on_the_device(talker: Talker, config: Qwen3OmniConfig) -> None:
    scene = scenes(config)["text"]
    prompt = talker_prompt(scene.ids, (), scene.config.tokens)
    before = prompt.text_ids.copy()
    a = talker.prompt_inputs(prompt, None, 33, 0)
    b = talker.prompt_inputs(prompt, None, torch.tensor(33), 0)
    assert torch.equal(a, b)
    assert np.array_equal(before, prompt.text_ids)


def test_only_control_ids_are_suppressed(talker: Talker) -> None:
    vocab, eos = talker.config.talker_vocab, talker.config.codec.eos
    assert talker.suppressed.sum() == 1023
    assert not talker.suppressed[: vocab - 1024].any()
    assert not talker.suppressed[eos]


def test_step_inputs_sum_all_codebooks_and_the_text(reference: Any, talker: Talker) -> None:
    frames = torch.randint(0, 256, (3, talker.config.num_codebooks))
    text = torch.tensor([3, 4, 5])
    tables = [
        reference.talker.get_input_embeddings(),
        *reference.talker.code_predictor.get_input_embeddings(),
    ]
    codec = torch.stack([table(frames[:, i]) for i, table in enumerate(tables)], 1).sum(1)
    shown = reference.talker.text_projection(reference.thinker.get_input_embeddings()(text))
    torch.testing.assert_close(talker.step_inputs(frames, text), codec + shown, rtol=0, atol=1e-12)
