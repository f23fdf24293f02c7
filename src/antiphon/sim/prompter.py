"""Prompts of as many tokens as a real one would have, with keys by which prefixes are known again.

Text has no tokenizer here: a word is 1.3 tokens. Media take what Qwen3-Omni's processor gives them, at the
rate and with the patches of the model's graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from math import isqrt

import msgspec
import numpy as np

from antiphon.core.conversation import (
    AudioPart,
    ImagePart,
    Item,
    Part,
    TextPart,
    TokensPart,
    ToolCallPart,
    ToolOutputPart,
    VideoPart,
)
from antiphon.core.facts import NO_INTS, Ints, PromptReady, Span, StagePrompt
from antiphon.core.graph import StageGraph, StageKind
from antiphon.core.ids import content_key
from antiphon.core.plans import RenderPrompt, ints
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ
from antiphon.latency.features import AUDIO_TOKENS_PER_S
from antiphon.models.qwen_media.preprocess_shapes import FRAME_PIXELS, AudioShape, ImageShape, VideoShape
from antiphon.workload.fitted import TOKENS_PER_WORD

AUDIO = AudioShape(hop=160, n_fft=400)
MERGE, IMAGE_PIXELS = 2, (3136, 12_845_056)
"""Qwen3-Omni's as released."""

START, END, NEWLINE, MEDIA_START, MEDIA_END, MEDIA, PAD = range(10, 17)
ROLES = {"system": 20, "user": 21, "assistant": 22, "tool": 21}
HEADER = 9
"""Positions of a talker prompt after the user's turns."""
KEY_BIT = 1 << 61
KEPT_TEXTS = 4096


class SimPrompter:
    """Renders what `core.ports.Prompter` asks. A talker that gets states of the thinker is shown the user's
    turns.
    """

    takes_tools = True
    json_call_ids: tuple[int, ...] = ()
    blank_ids: tuple[int, ...] = ()

    def __init__(self, graph: StageGraph, *, has_voice: bool = True) -> None:
        """has_voice: the decoder that speaks is there, where the graph has one."""
        decoders = [name for name in graph.reply_stages if graph.stage(name).kind is StageKind.AR]
        self._writer = decoders[0]
        self._talker = decoders[1] if has_voice and len(decoders) > 1 else None
        talker = self._talker
        self._shows_turns = talker is not None and graph.edge(self._writer, talker).prompt_group is not None
        self._spans = _Spans(graph)
        self._texts: dict[str, Ints] = {}

    def render(self, order: RenderPrompt) -> PromptReady:
        line = _Line(transcripts=order.transcripts)
        if order.raw is not None:
            line.put(self._text(order.raw) if isinstance(order.raw, str) else ints(list(order.raw)))
        else:
            for item in order.items:
                self._add(line, item)
            line.put(ints([START, ROLES["assistant"], NEWLINE]))
        written = line.prompt()
        prompts = {self._writer: written}
        if order.speech and self._talker is not None:
            turns = line.user if self._shows_turns else []
            prompts[self._talker] = _talker_prompt(turns, written, order.request)
        reply = None if order.say is None else self._text(order.say)
        return PromptReady(order.request, prompts, reply=reply)

    def _add(self, line: _Line, item: Item) -> None:
        start = line.length
        line.put(ints([START, ROLES[item.role], NEWLINE]))
        for part in item.parts:
            self._add_part(line, part)
        line.put(ints([END, NEWLINE]))
        if item.role == "user":
            line.user.append((start, line.length))

    def _add_part(self, line: _Line, part: Part) -> None:
        match part:
            case TextPart():
                line.put(self._text(part.text))
            case TokensPart():
                line.put(np.array(part.token_ids, np.int64))
            case ToolCallPart():
                line.put(self._text(f"{part.name} {part.arguments}"))
            case ToolOutputPart():
                line.put(self._text(part.output))
            case AudioPart() if part.transcript_key in line.transcripts:
                line.put(ints(list(line.transcripts[part.transcript_key])))
            case AudioPart() | ImagePart() | VideoPart():
                line.show(self._spans.of(part))

    def _text(self, text: str) -> Ints:
        """One token or more."""
        known = self._texts.get(text)
        if known is None:
            num_tokens = max(1, round(len(text.split()) * TOKENS_PER_WORD))
            known = (content_key(text.encode()) + np.arange(num_tokens)) % (1 << 60)
            if len(self._texts) == KEPT_TEXTS:
                del self._texts[next(iter(self._texts))]
            self._texts[text] = known
        return known


@dataclass(slots=True)
class _Line:
    """The thinker's prompt while it grows; `user` are the ranges of the user's turns. Recordings that have
    `transcripts` stand in it as those."""

    ids: list[Ints] = field(default_factory=list[Ints])
    keys: list[Ints] = field(default_factory=list[Ints])
    spans: list[Span] = field(default_factory=list[Span])
    user: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    transcripts: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    length: int = 0

    def put(self, ids: Ints) -> None:
        self.ids.append(ids)
        self.keys.append(ids)
        self.length += len(ids)

    def show(self, span: Span) -> None:
        """Marks, and between them the medium."""
        self.put(ints([MEDIA_START]))
        self.spans.append(msgspec.structs.replace(span, start=self.length))
        self.ids.append(np.full(span.length, MEDIA, np.int64))
        self.keys.append(span.key % KEY_BIT + np.arange(span.length) | KEY_BIT)
        self.length += span.length
        self.put(ints([MEDIA_END]))

    def prompt(self) -> StagePrompt:
        ids, keys = np.concatenate(self.ids), np.concatenate(self.keys)
        return StagePrompt(ids, keys, tuple(self.spans), len(ids), NO_INTS)


def _talker_prompt(turns: list[tuple[int, int]], written: StagePrompt, request: int) -> StagePrompt:
    """These turns of the thinker's prompt, and nine positions that no other request shares."""
    kept = np.concatenate([NO_INTS, *(np.arange(start, end) for start, end in turns)])
    header_keys = (request << 8) + np.arange(HEADER) | KEY_BIT
    keys = np.concatenate([_talker_keys(written)[kept], header_keys])
    ids = np.concatenate([written.token_ids[kept], np.full(HEADER, PAD)])
    spans = tuple(
        msgspec.structs.replace(span, start=int(np.searchsorted(kept, span.start))) for span in written.spans
    )
    gather = [np.arange(span.start, span.start + span.length) for span in written.spans]
    return StagePrompt(ids, keys, spans, len(kept), np.concatenate([NO_INTS, *gather]))


def _talker_keys(written: StagePrompt) -> Ints:
    """At media the talker sees hidden states, which depend on all that came before; so does the key."""
    keys, context, hashed = written.keys.copy(), blake2b(digest_size=7), 0
    for span in written.spans:
        context.update(written.keys[hashed : span.start].tobytes())
        hashed = span.start
        seed = int.from_bytes(context.digest(), "little")
        keys[span.start : span.start + span.length] ^= seed
    return keys


class _Spans:
    """How many positions media take. They are not placed yet."""

    def __init__(self, graph: StageGraph) -> None:
        self._tokens_per_s = graph.audio_tokens_per_s
        patch = isqrt(graph.token_pixels) // MERGE
        self._image = ImageShape(patch, 2, MERGE, *IMAGE_PIXELS)
        self._video = VideoShape(ImageShape(patch, 2, MERGE, *FRAME_PIXELS))

    def of(self, part: AudioPart | ImagePart | VideoPart) -> Span:
        match part:
            case AudioPart():
                return Span(part.key, "audio", 0, self._sound(part.num_samples))
            case ImagePart():
                grid = self._image.grid_of(part.width, part.height)
                return Span(part.key, "image", 0, self._image.tokens(grid), grid)
            case VideoPart():
                grid = self._video.grid_of(part.num_frames, part.width, part.height)
                sound = 0 if part.audio is None else self._sound(len(part.audio) // 4)
                seconds = self._video.seconds_per_grid(part.fps)
                return Span(part.key, "video", 0, self._video.tokens(grid) + sound, grid, seconds, sound)

    def _sound(self, num_samples: int) -> int:
        """Shorter than the processor's window counts as one window."""
        num_samples = max(num_samples, AUDIO.min_samples)
        if self._tokens_per_s == AUDIO_TOKENS_PER_S:
            return AUDIO.tokens(num_samples)
        return -(-num_samples * self._tokens_per_s // MODEL_SAMPLE_RATE_HZ)
