"""Audio framing: clients' audio as PCM16, and the engine's in deltas small enough for every client."""

from __future__ import annotations

import base64

import numpy as np

from antiphon.core.units import PCM16_BYTES, WIRE_SAMPLE_RATE_HZ
from antiphon.wire.input_settings import G711_RATE_HZ, AudioFormat
from antiphon.wire.ports import AudioDecoder, AudioEncoder, Media

MIN_AUDIO_MS = 100
"""Of a client's recording, in the input buffer or in an item."""
MAX_DELTA_S = 8
"""384 kB of PCM, 512 kB in base64: well under the 1 MiB frames that some clients stop at."""


def pcm16(samples: bytes) -> bytes:
    """Float32 samples in [-1, 1] as PCM16; values outside are clipped, not-a-number is silence."""
    values = np.frombuffer(samples, "<f4")
    if np.isnan(values).any():
        values = np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=-1.0)
    return np.rint(np.clip(values, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()


class PcmEncoder:
    """`wire.ports.AudioEncoder` of audio/pcm."""

    def push(self, samples: bytes) -> bytes:
        return pcm16(samples)

    def flush(self) -> bytes:
        return b""


def encoder_for(audio_format: AudioFormat, media: Media) -> AudioEncoder:
    """A fresh encoder, one a reply."""
    return PcmEncoder() if audio_format == "audio/pcm" else media.output_encoder(audio_format)


def framed(audio: bytes, audio_format: AudioFormat = "audio/pcm") -> list[str]:
    """Base64 pieces of encoded audio, in order."""
    rate = PCM16_BYTES * WIRE_SAMPLE_RATE_HZ if audio_format == "audio/pcm" else G711_RATE_HZ
    starts = range(0, len(audio), MAX_DELTA_S * rate)
    return [base64.b64encode(audio[start : start + MAX_DELTA_S * rate]).decode() for start in starts]


class ClientAudio:
    """One stream of a client's audio, whatever its format, as PCM16 at 24 kHz."""

    def __init__(self, media: Media) -> None:
        self._media = media
        self._format: AudioFormat = "audio/pcm"
        self._decoder: AudioDecoder | None = None

    def pcm16(self, audio: bytes, audio_format: AudioFormat) -> bytes:
        """The next of it. A change of format begins a new stream."""
        if audio_format != self._format:
            self._format = audio_format
            is_pcm = audio_format == "audio/pcm"
            self._decoder = None if is_pcm else self._media.input_decoder(audio_format)
        return audio if self._decoder is None else self._decoder.push(audio)
