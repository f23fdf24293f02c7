"""Checkpoints whose prompts are compared with the reference's, and what people put into them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from antiphon.core.conversation import (
    AudioPart,
    ImagePart,
    Item,
    Part,
    Role,
    TextPart,
    VideoPart,
)
from antiphon.core.facts import PromptFailed, PromptReady, StagePrompt
from antiphon.core.plans import RenderPrompt
from antiphon.models.prompt import Prompter
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig, TokenIds
from antiphon.models.qwen3_omni.prompt import load_prompter
from antiphon.models.qwen_media.preprocess import AudioPreprocessor, ImagePreprocessor

LIMIT = 4000
# The shape of the released template: the first system message apart, contents gathered in a namespace, and a
# look back for the last question.
RELEASED = """
{%- macro of(content) %}
    {%- if content is string %}{{- content }}{%- else %}
    {%- for part in content %}
        {%- if part.type == 'image' or 'image' in part %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
        {%- elif part.type == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
        {%- elif part.type == 'audio' or 'audio' in part %}{{- '<|audio_start|><|audio_pad|><|audio_end|>' }}
        {%- elif 'text' in part %}{{- part.text }}
        {%- endif %}
    {%- endfor %}{%- endif %}
{%- endmacro %}
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + of(messages[0].content) + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seek=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.seek and message.role == 'user' and not (message.content is string
        and message.content.startswith('<tool_response>')) %}
        {%- set ns.seek = false %}{%- set ns.last = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = of(message.content) %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and loop.last %}
            {{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
SPECIAL = re.compile(r"<\|.*?\|>|<tts_.*?>|</?think>|</?tool_(call|response)>")


class Room:
    """A checkpoint, its prompter, and the reference path for the same items."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: dict[str, Any] = json.loads((path / "config.json").read_text())
        self.tokens: TokenIds = Qwen3OmniConfig.from_dict(self.config).tokens
        self.prompter: Prompter = load_prompter(path, self.config, LIMIT)
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        file = path / "chat_template.json"
        self.template = json.loads(file.read_text())["chat_template"] if file.exists() else None
        self.audio, self.image = AudioPreprocessor(path), ImagePreprocessor(path)

    def fact(self, *items: Item, speech: bool = True) -> PromptReady | PromptFailed:
        return self.prompter.render(RenderPrompt(7, items, speech))

    def render(self, *items: Item) -> dict[str, StagePrompt]:
        fact = self.fact(*items)
        assert isinstance(fact, PromptReady), fact
        return fact.prompts

    def ids(self, *items: Item) -> list[int]:
        return self.render(*items)["thinker"].token_ids.tolist()

    def reference(self, *items: Item) -> list[int]:
        messages = [{"role": item.role, "content": [self._entry(p) for p in item.parts]} for item in items]
        text = self.tokenizer.apply_chat_template(
            messages, chat_template=self.template, tokenize=False, add_generation_prompt=True
        )
        for part in (part for item in items for part in item.parts):
            if isinstance(part, AudioPart):
                samples = np.frombuffer(part.samples, np.float32)
                count = self.audio.shape.tokens(len(samples))
                text = text.replace("<|audio_pad|>", "<|audio_PAD|>" * count, 1)
            elif isinstance(part, ImagePart):
                patches, _ = self.image.patches_of(part.rgb, part.width, part.height)
                text = text.replace("<|image_pad|>", "<|image_PAD|>" * (len(patches) // 4), 1)
        return self.tokenizer(text.replace("_PAD|>", "_pad|>"), add_special_tokens=False).input_ids

    @staticmethod
    def _entry(part: Part) -> dict[str, str]:
        if isinstance(part, TextPart):
            return {"type": "text", "text": part.text}
        kind = "audio" if isinstance(part, AudioPart) else "image"
        return {"type": kind, kind: "anywhere"}


def item(role: Role, *parts: Part | str) -> Item:
    return Item(role, role, tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


def clip(num_samples: int, seed: int = 0) -> AudioPart:
    samples = np.random.default_rng(seed).standard_normal(num_samples).astype(np.float32) * 0.1
    return AudioPart.of(samples.tobytes())


def picture(width: int, height: int, seed: int = 0) -> ImagePart:
    rgb = np.random.default_rng(seed).integers(0, 256, width * height * 3, dtype=np.uint8)
    return ImagePart.of(rgb.tobytes(), width, height)


MEDIA = (clip(16000), picture(100, 150), clip(20001, 1), picture(64, 64, 1))
MIXED = (
    item("system", "You are a helpful voice assistant."),
    item("user", "What do you hear? ", MEDIA[0], MEDIA[1], "And what is in the image?"),
    item("assistant", "A clock."),
    item("user", MEDIA[2], MEDIA[3], "\n\n more"),
)


def movie(frames: int, sound: int | None = None, fps: float = 2.0, seed: int = 0) -> VideoPart:
    pixels = np.random.default_rng(seed).integers(0, 256, (frames, 64, 96, 3), dtype=np.uint8)
    return VideoPart.of(
        pixels.tobytes(), (96, 64), frames, fps, None if sound is None else clip(sound, seed).samples
    )
