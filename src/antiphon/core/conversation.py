"""The conversation record: what was said, by whom, in exact tokens and raw media.

It is the truth; KV is a cache of it. Items are immutable: a change replaces an item.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

from antiphon.core.ids import content_key

Role = Literal["system", "user", "assistant", "tool"]


class TextPart(msgspec.Struct, frozen=True, tag=True):
    """Plain text."""

    text: str


class TokensPart(msgspec.Struct, frozen=True, tag=True):
    """A reply as the thinker's exact token ids, without the end-of-turn token."""

    token_ids: tuple[int, ...]


class TranscriptOptions(msgspec.Struct, frozen=True):
    """How a recording is written down, where a stage transcribes.

    language     code of what is spoken in it; None: the transcriber's own
    prompt       text that it is to be taken to follow
    temperature  0 is greedy; else `seed` says what is drawn
    """

    language: str | None = None
    prompt: str | None = None
    temperature: float = 0.0
    seed: int = 0


class AudioPart(msgspec.Struct, frozen=True, tag=True):
    """Mono float32 little-endian samples at 16 kHz.

    key      of the samples
    options  of its transcript, which it keeps; None: the transcriber's own
    """

    samples: bytes
    key: int
    options: TranscriptOptions | None = None

    @property
    def transcript_key(self) -> int:
        """Of what is written down of it."""
        return self.key if self.options is None else _transcript_key(self.key, self.options)

    @property
    def num_samples(self) -> int:
        return len(self.samples) // 4

    @staticmethod
    def of(samples: bytes) -> AudioPart:
        return AudioPart(samples, content_key(b"audio", samples))


@lru_cache(maxsize=4096)
def _transcript_key(key: int, options: TranscriptOptions) -> int:
    equal = msgspec.structs.replace(options, temperature=options.temperature + 0.0)  # -0.0 and 0 are 0.0
    return content_key(b"transcript", key.to_bytes(8, "little"), msgspec.json.encode(equal))


class ImagePart(msgspec.Struct, frozen=True, tag=True):
    """Decoded RGB bytes, row-major [height, width, 3]."""

    rgb: bytes
    width: int
    height: int
    key: int

    @staticmethod
    def of(rgb: bytes, width: int, height: int) -> ImagePart:
        return ImagePart(rgb, width, height, content_key(b"image", f"{width}x{height}".encode(), rgb))


class VideoPart(msgspec.Struct, frozen=True, tag=True):
    """Decoded RGB frames, row-major [num_frames, height, width, 3], `fps` of them a second.

    audio  the video's own sound as in AudioPart, told to the model frame by frame; None for a silent video
    """

    frames: bytes
    width: int
    height: int
    num_frames: int
    fps: float
    audio: bytes | None
    key: int

    @staticmethod
    def of(
        frames: bytes, size: tuple[int, int], num_frames: int, fps: float, audio: bytes | None = None
    ) -> VideoPart:
        """`size` is (width, height)."""
        width, height = size
        shape = f"{width}x{height}x{num_frames}@{fps!r}".encode()
        sound = () if audio is None else (audio,)
        key = content_key(b"video", shape, frames, *sound)
        return VideoPart(frames, width, height, num_frames, fps, audio, key)


class ToolCallPart(msgspec.Struct, frozen=True, tag=True):
    """A call that the assistant made (or that a client says it made). `arguments` is JSON text.

    A call that the model wrote itself stands in the record as its exact tokens (TokensPart) instead.
    """

    call_id: str
    name: str
    arguments: str


class ToolOutputPart(msgspec.Struct, frozen=True, tag=True):
    """What a tool answered; stands in items of role "tool"."""

    call_id: str
    output: str


Part = TextPart | TokensPart | ToolCallPart | ToolOutputPart | AudioPart | ImagePart | VideoPart
Media = AudioPart | ImagePart | VideoPart

CHARS_A_TOKEN = 4
"""About as many as ordinary text has."""


class Item(msgspec.Struct, frozen=True, tag=True):
    """One message of a conversation."""

    id: str
    role: Role
    parts: tuple[Part, ...]


def media_of(items: tuple[Item, ...]) -> tuple[Media, ...]:
    """Every audio, image and video part, in order."""
    return tuple(part for item in items for part in item.parts if isinstance(part, Media))


def num_bytes(part: Part) -> int:
    """Of a medium as it is decoded; a text has none."""
    match part:
        case AudioPart():
            return len(part.samples)
        case ImagePart():
            return len(part.rgb)
        case VideoPart():
            return len(part.frames)
        case _:
            return 0


def num_chars(item: Item) -> int:
    """Characters of what is written in it; a reply's tokens count as `CHARS_A_TOKEN` each, media not."""
    total = 0
    for part in item.parts:
        match part:
            case TextPart():
                total += len(part.text)
            case TokensPart():
                total += CHARS_A_TOKEN * len(part.token_ids)
            case ToolCallPart():
                total += len(part.name) + len(part.arguments)
            case ToolOutputPart():
                total += len(part.output)
            case _:
                pass
    return total
