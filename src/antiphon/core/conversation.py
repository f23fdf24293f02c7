"""The conversation record: what was said, by whom, in exact tokens and raw media.

It is the truth; KV is a cache of it. Items are immutable: a change replaces an item.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon.core.ids import content_key

Role = Literal["system", "user", "assistant"]


class TextPart(msgspec.Struct, frozen=True, tag=True):
    """Plain text."""

    text: str


class TokensPart(msgspec.Struct, frozen=True, tag=True):
    """A reply as the thinker's exact token ids, without the end-of-turn token."""

    token_ids: tuple[int, ...]


class AudioPart(msgspec.Struct, frozen=True, tag=True):
    """Mono float32 little-endian samples at 16 kHz."""

    samples: bytes
    key: int

    @property
    def num_samples(self) -> int:
        return len(self.samples) // 4

    @staticmethod
    def of(samples: bytes) -> AudioPart:
        return AudioPart(samples, content_key(b"audio", samples))


class ImagePart(msgspec.Struct, frozen=True, tag=True):
    """Decoded RGB bytes, row-major [height, width, 3]."""

    rgb: bytes
    width: int
    height: int
    key: int

    @staticmethod
    def of(rgb: bytes, width: int, height: int) -> ImagePart:
        return ImagePart(rgb, width, height, content_key(b"image", f"{width}x{height}".encode(), rgb))


Part = TextPart | TokensPart | AudioPart | ImagePart
Media = AudioPart | ImagePart


class Item(msgspec.Struct, frozen=True, tag=True):
    """One message of a conversation."""

    id: str
    role: Role
    parts: tuple[Part, ...]


def media_of(items: tuple[Item, ...]) -> tuple[Media, ...]:
    """Every audio and image part, in order."""
    return tuple(part for item in items for part in item.parts if isinstance(part, AudioPart | ImagePart))
