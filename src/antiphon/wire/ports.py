"""What a session needs from the executing half: media decoding and detokenising, as pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from antiphon.core.conversation import AudioPart, ImagePart, VideoPart
from antiphon.wire.input_settings import AudioFormat


class AudioDecoder(Protocol):
    """One stream of a client's audio, to mono PCM16 at 24 kHz."""

    def push(self, audio: bytes) -> bytes:
        """As long as what came in."""
        ...


class AudioEncoder(Protocol):
    """One reply's audio, from mono float32 samples at 24 kHz to a client's format."""

    def push(self, samples: bytes) -> bytes:
        """What is certain after these samples; may be empty."""
        ...

    def flush(self) -> bytes:
        """What is left when no sample follows."""
        ...


class Media(Protocol):
    """Decodes what clients send, and encodes what they hear in any format but PCM.

    Parts raise ProtocolError or LimitExceeded, and keep no state.
    """

    def audio_part(self, pcm16_24k: bytes) -> AudioPart:
        """Mono PCM16 at 24 kHz to what encoders take."""
        ...

    def input_decoder(self, audio_format: AudioFormat) -> AudioDecoder:
        """For audio/pcmu or audio/pcma: a fresh decoder."""
        ...

    def output_encoder(self, audio_format: AudioFormat) -> AudioEncoder:
        """For audio/pcmu or audio/pcma: a fresh encoder."""
        ...

    def image_part(self, data_url: str) -> ImagePart:
        """An image in a `data:` URL to RGB. Never fetches anything."""
        ...


class MediaFiles(Protocol):
    """Decodes media files. All raise ProtocolError or LimitExceeded, keep no state, and fetch nothing."""

    def audio_file(self, data: bytes) -> AudioPart:
        """A sound file, mixed to mono."""
        ...

    def image_file(self, data: bytes) -> ImagePart:
        """A picture."""
        ...

    def video_file(self, data: bytes) -> VideoPart:
        """An animation, as frames at an even rate."""
        ...

    def video_frames(self, frames: list[bytes], fps: float) -> VideoPart:
        """Pictures that are a video; all have the size of the first."""
        ...


class Detokeniser(Protocol):
    """Turns one reply's tokens into text as they come; never hands out half a character."""

    def push(self, token_ids: list[int]) -> str:
        """Text that is certain after these tokens; may be empty."""
        ...

    def flush(self) -> str:
        """What is left when no token follows."""
        ...


DetokeniserFactory = Callable[[], Detokeniser]
"""A fresh detokeniser, one a response."""
