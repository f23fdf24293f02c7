"""A detector for tests: sound whose every sample says how likely it is a voice, in percent."""

from __future__ import annotations

import base64

import numpy as np

from antiphon.core.turns import TurnEvent
from antiphon.interaction.pauses import Silence
from antiphon.interaction.turns import FRAME_MS, TurnSettings, TurnTaker
from antiphon.wire.turn_detection import TurnDetection

FRAME_BYTES = FRAME_MS * 48


class PlainEar:
    """`wire.ports.TurnDetector` that takes each frame's loudest sample at its word."""

    def __init__(self, asked: TurnDetection) -> None:
        self._taker = TurnTaker()
        self._rest = b""
        self.configure(asked)

    def configure(self, asked: TurnDetection) -> None:
        settings = TurnSettings(asked.threshold, asked.prefix_padding_ms, asked.min_speech_ms)
        self._taker.configure(settings, Silence(asked.silence_duration_ms))

    def feed(self, pcm16: bytes, reply_is_heard: bool) -> list[TurnEvent]:
        data = self._rest + pcm16
        self._rest = data[len(data) // FRAME_BYTES * FRAME_BYTES :]
        found = [
            self._taker.observe(max(data[at : at + FRAME_BYTES]) / 100.0, reply_is_heard)
            for at in range(0, len(data) - FRAME_BYTES + 1, FRAME_BYTES)
        ]
        return [event for event in found if event is not None]

    def end(self) -> list[TurnEvent]:
        event = self._taker.end()
        return [] if event is None else [event]


def sound(*pieces: tuple[int, float]) -> str:
    """Base64 PCM16 of (percent, seconds) pieces."""
    parts = [np.full(round(24_000 * length_s), percent, "<i2") for percent, length_s in pieces]
    return base64.b64encode(np.concatenate(parts).tobytes()).decode()
