"""Sound as files, whole or as it is made."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import BinaryIO, cast

import numpy as np
import soundfile

from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.wire.audio import pcm16

PCM_CHUNK = b"data"


@dataclass(frozen=True, slots=True)
class Encoding:
    """How libsndfile calls a format, and what HTTP calls it."""

    media_type: str
    format: str = ""
    subtype: str = ""
    bitrate_mode: str | None = None
    compression_level: float | None = None
    is_whole: bool = False
    """The file is sent once it is finished: its header has its length."""


ENCODINGS = {
    "wav": Encoding("audio/wav", "WAV", "PCM_16"),
    "mp3": Encoding("audio/mpeg", "MP3", "MPEG_LAYER_III", "CONSTANT", 0.5),
    "flac": Encoding("audio/flac", "FLAC", "PCM_16", is_whole=True),
    "opus": Encoding("audio/ogg", "OGG", "OPUS"),
    "pcm16": Encoding("audio/pcm"),
    "pcm": Encoding("audio/pcm"),
}
"""By the names of the protocol. PCM is mono, 16 bits, little-endian, at 24 kHz. MP3 has a constant bit rate
(about 80 kbit/s): a stream's header cannot say how long it is, and its readers guess by the first frames."""


class Growing(io.RawIOBase):
    """A file that is read while it is written: what an encoder goes back to correct later is dropped."""

    def __init__(self) -> None:
        self._at = self._end = 0
        self._new = bytearray()

    def write(self, data: object) -> int:
        piece = bytes(memoryview(data))  # pyright: ignore[reportArgumentType]
        fresh = piece[max(self._end - self._at, 0) :]
        self._new += fresh
        self._at += len(piece)
        self._end = max(self._end, self._at)
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def take(self) -> bytes:
        """What was written since the last call."""
        taken, self._new = bytes(self._new), bytearray()
        return taken


class Whole(io.BytesIO):
    """A file that is taken once it is finished: its header has its length then."""

    is_finished = False

    def take(self) -> bytes:
        return self.getvalue() if self.is_finished else b""


class SoundStream:
    """Encodes a reply's sound piece by piece; the pieces in order are a file. A flac comes in one piece at
    the end: libsndfile takes one whose header says no length for endless, and cannot read it whole."""

    def __init__(self, name: str) -> None:
        self._encoding = ENCODINGS[name]
        self._sink: Growing | Whole = Whole() if self._encoding.is_whole else Growing()
        self._file: soundfile.SoundFile | None = None
        if self._encoding.format == "WAV":
            self._sink.write(endless_wav())
        elif self._encoding.format:
            self._file = soundfile.SoundFile(
                cast(BinaryIO, self._sink),
                "w",
                WIRE_SAMPLE_RATE_HZ,
                1,
                format=self._encoding.format,
                subtype=self._encoding.subtype,
                bitrate_mode=self._encoding.bitrate_mode,
                compression_level=self._encoding.compression_level,
            )

    @property
    def media_type(self) -> str:
        return self._encoding.media_type

    @property
    def num_held_bytes(self) -> int:
        """What is encoded so far of a file that is sent whole."""
        return self._sink.getbuffer().nbytes if isinstance(self._sink, Whole) else 0

    def push(self, samples: bytes) -> bytes:
        """Float32 samples in; what of the file is certain now."""
        if self._file is None:
            self._sink.write(pcm16(samples))
        else:
            self._file.write(_clean(samples))
        return self._sink.take()

    def finish(self) -> bytes:
        """The file's end."""
        if self._file is not None:
            self._file.close()
        if isinstance(self._sink, Whole):
            self._sink.is_finished = True
        return self._sink.take()


def sound_file(name: str, samples: bytes) -> bytes:
    """A whole file, with a header that knows its length."""
    encoding = ENCODINGS[name]
    if not encoding.format:
        return pcm16(samples)
    buffer = io.BytesIO()
    soundfile.write(
        buffer,
        _clean(samples),
        WIRE_SAMPLE_RATE_HZ,
        format=encoding.format,
        subtype=encoding.subtype,
        bitrate_mode=encoding.bitrate_mode,
        compression_level=encoding.compression_level,
    )
    return buffer.getvalue()


def endless_wav() -> bytes:
    """A WAV header whose lengths say "until the stream ends"."""
    header = bytearray(sound_file("wav", b""))
    endless = struct.pack("<I", 0xFFFFFFFF)
    header[4:8] = endless
    at = header.index(PCM_CHUNK) + len(PCM_CHUNK)
    header[at : at + 4] = endless
    return bytes(header[: at + 4])


def _clean(samples: bytes) -> np.ndarray:
    """Within [-1, 1]; libsndfile would let loud samples wrap around."""
    return np.clip(np.nan_to_num(np.frombuffer(samples, "<f4"), posinf=1.0, neginf=-1.0), -1.0, 1.0)
