"""What a session needs from the executing half: media decoding, detokenising and a detector of turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from antiphon.core.conversation import AudioPart, ImagePart, VideoPart
from antiphon.core.turns import TurnEvent
from antiphon.wire.input_settings import AudioFormat
from antiphon.wire.limits import MediaRoom
from antiphon.wire.turn_detection import TurnDetection


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

    Parts raise ProtocolError or LimitExceeded, and keep no state. Pixels are decoded only where they have
    room, of which nothing is taken.
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

    def image_part(self, data_url: str, room: MediaRoom) -> ImagePart:
        """An image in a `data:` URL to RGB. Never fetches anything."""
        ...

    def video_part(self, data_urls: list[str], fps: float, room: MediaRoom) -> VideoPart:
        """Images that are a video, one or more; all have the size of the first."""
        ...


class MediaFiles(Protocol):
    """Decodes media files. All raise ProtocolError or LimitExceeded, keep no state, and fetch nothing.

    Pixels are decoded only where they have room, of which nothing is taken."""

    def audio_file(self, data: bytes) -> AudioPart:
        """A sound file, mixed to mono."""
        ...

    def image_file(self, data: bytes, room: MediaRoom) -> ImagePart:
        """A picture."""
        ...

    def video_file(self, data: bytes, room: MediaRoom) -> VideoPart:
        """An animation, as frames at an even rate."""
        ...

    def video_frames(self, frames: list[bytes], fps: float, room: MediaRoom) -> VideoPart:
        """Pictures that are a video; all have the size of the first."""
        ...


class Detokeniser(Protocol):
    """Turns one reply's tokens into text as they come; never hands out half a character.

    Pushed one by one, tokens give the same text as together: so a caller learns which characters came with
    which token.
    """

    def push(self, token_ids: list[int]) -> str:
        """Text that is certain after these tokens; may be empty."""
        ...

    def flush(self) -> str:
        """What is left when no token follows."""
        ...

    def spelled(self, token_id: int) -> bytes:
        """What a token stands for by itself, special ones by name. Keeps no state."""
        ...


DetokeniserFactory = Callable[[], Detokeniser]
"""A fresh detokeniser, one a response."""


class TurnDetector(Protocol):
    """Hears one session's input and says when the person's turns start and end.

    Times count from the first byte it was fed, in milliseconds of audio; any division of the same audio into
    chunks gives the same events. A start has one stop, and turns don't overlap.
    """

    def feed(self, pcm16: bytes, reply_is_heard: bool) -> list[TurnEvent]:
        """More mono PCM16 at 24 kHz. `reply_is_heard`: a reply is playing that a voice would interrupt."""
        ...

    def configure(self, asked: TurnDetection) -> None:
        """Other settings from here on; a turn in progress goes on."""
        ...

    def end(self) -> list[TurnEvent]:
        """What is being said ends here, by somebody else's word; what follows is a new turn."""
        ...


TurnDetectorFactory = Callable[[TurnDetection], TurnDetector]
"""A fresh detector, one a session."""
