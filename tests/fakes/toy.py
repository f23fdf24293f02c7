"""A model small enough to know by heart: what it says is a hash of all that it was shown.

The state after a position is a hash of the contents up to there, as KV is in a real model. Tokens, frames and
samples are drawn from the state and the seed alone. So any scheduling has to give the same reply, and a test
can say which one without running anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.config import ArConfig, NodeConfig
from antiphon.core.conversation import AudioPart, ImagePart, Item, TextPart, TokensPart
from antiphon.core.facts import NO_INTS, PromptFailed, PromptReady, ResponseRequested, Span, StagePrompt
from antiphon.core.ids import content_key
from antiphon.core.plans import RenderPrompt, ints
from antiphon.core.sampling import Sampling

STOP, MEDIA, PAD, END_INPUT, CODEC_STOP, WIDTH = 1, 6, 7, 8, 2, 3
ROLES = {"system": 2, "user": 3, "assistant": 4}
HEADER = 3
START = 0x1234567
KEY_BIT = 1 << 61
CALL = 17
"""A drawn token with which a tool call begins."""
UNSPEAKABLE = "unspeakable"
"""A text that the prompter refuses."""


def mix(*values: int) -> int:
    """A 60-bit hash of integers."""
    state = START
    for value in values:
        state = (state ^ value) * 0x9E3779B97F4A7C15 & ((1 << 64) - 1)
        state ^= state >> 29
    return state >> 4


def states(contents: Iterable[int]) -> list[int]:
    """The state after each content."""
    found, state = [], START
    for content in contents:
        state = mix(state, content)
        found.append(state)
    return found


def draw_text(state: int, seed: int) -> int:
    noise = mix(state, seed, 1)
    return STOP if noise % 9 == 0 else 10 + noise % 40


def draw_frame(state: int, seed: int) -> tuple[int, ...]:
    """Code 0 may be the end of speech."""
    noise = mix(state, seed, 2)
    return (CODEC_STOP if noise % 9 == 0 else 10 + noise % 50, noise % 97, noise % 89)


def talker_contents(prompt: StagePrompt, hidden: list[int], first_input: int, voice: str | None) -> list[int]:
    """What the talker's prompt shows: hidden states at media, voice and first token in the header."""
    contents = prompt.keys.tolist()
    shown = iter(hidden)
    for span in prompt.spans:
        for at in range(span.start, span.start + span.length):
            contents[at] = next(shown)
    for at in range(len(contents) - HEADER, len(contents)):
        contents[at] = mix(first_input, content_key((voice or "").encode()), at)
    return contents


def spoken(frame: tuple[int, ...], text: int) -> int:
    """The content of a talker's step."""
    return mix(*frame, text)


def sound(state: int, frame: Iterable[int]) -> int:
    """The vocoder's state after a frame; the frame sounds as its eight bytes, two samples."""
    return mix(state, *frame)


def sound_bytes(state: int) -> bytes:
    return state.to_bytes(8, "little")


class ToyPrompter:
    """The next turn's prompt begins with this one and its reply. Implements `core.ports.Prompter`."""

    takes_tools = True

    def render(self, order: RenderPrompt) -> PromptReady | PromptFailed:
        line = _Line()
        for item in order.items:
            if TextPart(UNSPEAKABLE) in item.parts:
                return PromptFailed(order.request, "this cannot be said")
            line.add(item)
        forced = forced_of(order.tools, order.tool_choice)
        line.put([ROLES["assistant"], 5, *forced])
        ids, keys = ints(line.ids), ints(line.keys)
        prompts = {"thinker": StagePrompt(ids, keys, tuple(line.spans), len(ids), NO_INTS)}
        if order.speech:
            prompts["talker"] = self._talker(prompts["thinker"], line.user, order.request)
        return PromptReady(order.request, prompts, forced)

    def _talker(self, thinker: StagePrompt, user: list[int], request: int) -> StagePrompt:
        """The user's positions and a header that no other request shares."""
        gather = ints([p for span in thinker.spans for p in range(span.start, span.start + span.length)])
        context = states(thinker.keys.tolist())
        keys = [context[p] | KEY_BIT if p in gather else int(thinker.keys[p]) for p in user]
        keys += [mix(request, i) | KEY_BIT for i in range(HEADER)]
        ids = [*thinker.token_ids[user].tolist(), *[PAD] * HEADER]
        spans = [Span(s.key, s.kind, user.index(s.start), s.length, s.grid) for s in thinker.spans]
        return StagePrompt(ints(ids), ints(keys), tuple(spans), len(user), gather)


@dataclass(slots=True)
class _Line:
    """The thinker's prompt while it grows; `user` are the positions in turns of the user."""

    ids: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    user: list[int] = field(default_factory=list)

    def add(self, item: Item) -> None:
        start = len(self.ids)
        self.put([ROLES[item.role], 5])
        for part in item.parts:
            match part:
                case TextPart():
                    self.put([100 + content_key(word.encode()) % 400 for word in part.text.split()])
                case TokensPart():
                    self.put(list(part.token_ids))
                case AudioPart() | ImagePart():
                    self._media(part)
        self.put([STOP])
        if item.role == "user":
            self.user += range(start, len(self.ids))

    def put(self, ids: list[int]) -> None:
        self.ids += ids
        self.keys += ids

    def _media(self, part: AudioPart | ImagePart) -> None:
        kind, grid = (
            ("audio", None) if isinstance(part, AudioPart) else ("image", (1, part.height, part.width))
        )
        length = 1 + part.key % 5
        self.spans.append(Span(part.key, kind, len(self.ids), length, grid))
        self.ids += [MEDIA] * length
        self.keys += [mix(part.key, i) | KEY_BIT for i in range(length)]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a response says when nothing disturbs it."""

    text: list[int]
    cut: bool
    frames: list[tuple[int, ...]]
    audio: bytes


def answer(prompts: dict[str, StagePrompt], spec: ResponseRequested, config: NodeConfig) -> Answer:
    """The undisturbed reply, computed without a scheduler."""
    thinker = _sampling(spec, "thinker", config)
    tools = () if spec.tool_choice == "none" else spec.tools
    forced = list(forced_of(tools, spec.tool_choice))
    limit = thinker.max_tokens
    if spec.max_tokens is not None:
        limit = min(limit, max(1, spec.max_tokens - len(forced)))
    limit = min(limit, _room(prompts["thinker"], config.ar["thinker"]))
    text, cut = _text(prompts["thinker"].keys.tolist(), thinker.seed, limit)
    text = forced + text if text else []
    calls = bool(tools) and CALL in text
    if not (spec.speech and "talker" in config.ar and text and limit > 1) or (calls and text[0] == CALL):
        return Answer(text, cut, [], b"")
    talker = _sampling(spec, "talker", config)
    most = min(max(talker.max_tokens - 1, 1), _room(prompts["talker"], config.ar["talker"]))
    context = states(prompts["thinker"].keys.tolist())
    hidden = [context[p] for p in prompts["talker"].gather.tolist()]
    contents = talker_contents(prompts["talker"], hidden, text[0], spec.voice)
    end = text.index(CALL) if calls else len(text) - cut
    inputs = [*text[1:end], END_INPUT]
    frames = _frames(contents, inputs, talker.seed, most)
    return Answer(text, cut, frames, _audio(frames))


def forced_of(tools: tuple[str, ...], tool_choice: str) -> tuple[int, ...]:
    """A reply that has to call begins with a call."""
    return (CALL,) if tools and tool_choice == "required" else ()


def _sampling(spec: ResponseRequested, stage: str, config: NodeConfig) -> Sampling:
    default = config.ar[stage].sampling
    own = Sampling(max_tokens=default.max_tokens, seed=content_key(spec.response.encode()))
    return spec.sampling.get(stage, own)


def _room(prompt: StagePrompt, config: ArConfig) -> int:
    held = config.num_blocks * config.block_size
    return min(held, config.max_context_tokens or held) - len(prompt.token_ids)


def _text(contents: list[int], seed: int, limit: int) -> tuple[list[int], bool]:
    state, text = states(contents)[-1], []
    while (token := draw_text(state, seed)) != STOP:
        text.append(token)
        if len(text) == limit:
            return text, True
        state = mix(state, token)
    return text, False


def _frames(contents: list[int], inputs: list[int], seed: int, limit: int) -> list[tuple[int, ...]]:
    state, frames = states(contents)[-1], []
    while (frame := draw_frame(state, seed))[0] != CODEC_STOP:
        frames.append(frame)
        if len(frames) == limit:
            break
        at = len(frames) - 1
        state = mix(state, spoken(frame, inputs[at] if at < len(inputs) else PAD))
    return frames


def _audio(frames: list[tuple[int, ...]]) -> bytes:
    state, audio = START, b""
    for frame in frames:
        state = sound(state, frame)
        audio += sound_bytes(state)
    return audio


def tone(number: int) -> AudioPart:
    """Audio number so-and-so."""
    return AudioPart.of(np.full(4, number, np.float32).tobytes())


def picture(number: int) -> ImagePart:
    return ImagePart.of(bytes([number] * 12), 2, 2)
