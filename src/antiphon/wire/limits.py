"""Explicit bounds of one session. Passing one is answered with an error naming it; the session goes on."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core.errors import LimitExceeded

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What one session may ask for. Every name carries its unit."""

    max_frame_bytes: int = 21 * MIB
    """One client frame: an append of 15 MiB in base64 and its envelope."""
    max_append_bytes: int = 15 * MIB
    max_audio_s: float = 600.0
    """Audio of the input buffer, and of one audio part of an item."""
    max_items: int = 1000
    max_text_chars: int = 100_000
    """Text of one item, and instructions. Keeps every server event under 1 MiB, escapes included."""
    max_parts: int = 64
    """Content parts of one item, and items of one response's inline input."""
    max_image_bytes: int = 10 * MIB
    max_image_pixels: int = 16_000_000
    max_media_bytes: int = 256 * MIB
    """Decoded audio and images that one conversation may hold."""
    max_body_bytes: int = 64 * MIB
    """One HTTP request, and the media that it names by URL."""
    max_file_bytes: int = 32 * MIB
    """One audio or video file before it is decoded."""
    max_video_frames: int = 768
    max_spoken_chars: int = 4096
    """Text that is read aloud in one request."""
    max_choices: int = 64
    """Replies to one HTTP request: its prompts, times the choices of each."""
    max_guide_chars: int = 100_000
    """A schema, a regular expression or a grammar that a text has to match."""
    max_guide_s: float = 1.0
    """Of a core, that it may take to compile."""
    max_open_responses: int = 4
    """The conversation's own response and out-of-band ones beside it."""


@dataclass(slots=True)
class MediaRoom:
    """Room for decoded media, taken part by part. Each byte counts `copies` times."""

    limits: Limits
    hint: str
    used: int = 0
    copies: int = 1

    def check(self, num_bytes: int) -> None:
        """Raise unless so many bytes more have room. For a medium before it is decoded."""
        total = self.used + num_bytes * self.copies
        check("max_media_bytes", self.limits.max_media_bytes, total, self.hint)

    def take(self, num_bytes: int) -> None:
        """Raise unless they have room, and count them."""
        self.check(num_bytes)
        self.used += num_bytes * self.copies


def check(limit: str, allowed: float, got: float, hint: str = "") -> None:
    """Raise LimitExceeded when `got` is over `allowed`."""
    if got > allowed:
        raise LimitExceeded(limit, allowed, got, hint)
