"""G.711: the tables are the standard's, and no seam is heard where audio is cut."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import soxr

from antiphon.server.g711 import AHEAD_SAMPLES, G711Decoder, G711Encoder, compression, expansion
from antiphon.wire.input_settings import AudioFormat

LAWS: tuple[AudioFormat, ...] = ("audio/pcmu", "audio/pcma")
POINTS = [-32768, -32767, -8031, -1000, -132, -8, -1, 0, 1, 8, 132, 1000, 8031, 32767]
CODES = [0, 1, 15, 16, 64, 85, 127, 128, 129, 170, 213, 255]
# What the C library of Python 3.11's audioop (after the ITU's reference) makes of these values, and the
# SHA-256 of what it makes of all 65536 values and all 256 codes.
ENCODED = {
    "audio/pcmu": [0, 0, 32, 78, 111, 126, 126, 255, 255, 254, 239, 206, 160, 128],
    "audio/pcma": [42, 42, 10, 122, 93, 85, 85, 213, 213, 213, 221, 250, 138, 170],
}
DECODED = {
    "audio/pcmu": [-32124, -31100, -16764, -15996, -1884, -716, 0, 32124, 31100, 5372, 716, 0],
    "audio/pcma": [-5504, -5248, -6784, -2752, -344, -8, -848, 5504, 5248, 32256, 8, 848],
}
ALL_ENCODED = {
    "audio/pcmu": "81d633c9e6972a18c74a58720b96cb8ca0bdd096d4060b646dd708c3b846019a",
    "audio/pcma": "38488f6fd710f4686360edc4d38639f96c491595ef93f8eb8d62d5e07ca6ce7b",
}
ALL_DECODED = {
    "audio/pcmu": "3dab54339e520bb2c924826e3b72a917a2b612e9fd12fc867500f1d983a75827",
    "audio/pcma": "e04788d110e58ff8c70c93b8480190d973e3b67876b6119abbaec766cc75c174",
}


@pytest.mark.parametrize("law", LAWS)
def test_tables_are_the_standard_s(law: AudioFormat) -> None:
    def code(values: object) -> bytes:
        return compression(law)[np.array(values, "<i2").view("<u2")].tobytes()

    assert list(code(POINTS)) == ENCODED[law]
    assert expansion(law)[CODES].tolist() == DECODED[law]
    assert hashlib.sha256(code(range(-32768, 32768))).hexdigest() == ALL_ENCODED[law]
    assert hashlib.sha256(expansion(law).astype("<i2").tobytes()).hexdigest() == ALL_DECODED[law]


def tone(rate_hz: int, length_s: float = 0.5, pitch_hz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * pitch_hz * np.arange(round(rate_hz * length_s)) / rate_hz)).astype("<f4")


def pieces(whole: np.ndarray, sizes: list[int]) -> list[bytes]:
    parts, at = [], 0
    while at < len(whole):
        size = sizes[len(parts) % len(sizes)]
        parts.append(whole[at : at + size].tobytes())
        at += size
    return parts


@pytest.mark.parametrize("law", LAWS)
def test_what_comes_in_is_heard_without_seams(law: AudioFormat) -> None:
    shorts = np.rint(tone(8000) * 32767).astype("<i2")
    coded = compression(law)[shorts.view("<u2")]
    whole = G711Decoder(law).push(coded.tobytes())
    assert len(whole) == 2 * 3 * len(coded)
    decoder = G711Decoder(law)
    cut = b"".join(decoder.push(piece) for piece in pieces(coded, [160, 1, 37]))
    assert len(cut) == len(whole)
    late = 3 * AHEAD_SAMPLES
    heard = np.frombuffer(cut, "<i2").astype(float)[late + 500 : -500]
    wanted = (tone(24000) * 32767).astype(float)[500 : -500 - late]
    assert np.sqrt(np.mean((heard - wanted) ** 2)) < 0.03 * np.sqrt(np.mean(wanted**2))
    assert np.abs(np.diff(heard)).max() < 1.2 * np.abs(np.diff(wanted)).max(), "no click"


@pytest.mark.parametrize("law", LAWS)
def test_what_goes_out_is_one_stream(law: AudioFormat) -> None:
    sound = tone(24000)
    encoder = G711Encoder(law)
    cut = b"".join(encoder.push(piece) for piece in pieces(sound, [1920, 555, 7680])) + encoder.flush()
    assert abs(len(cut) - len(sound) // 3) <= 1
    values = expansion(law)[np.frombuffer(cut, np.uint8)].astype(float)[200:-200]
    wanted = (soxr.resample(sound, 24000, 8000) * 32767).astype(float)[200:][: len(values)]
    assert np.sqrt(np.mean((values - wanted) ** 2)) < 0.03 * np.sqrt(np.mean(wanted**2))
