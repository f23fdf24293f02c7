"""`wire.ports.TurnDetector` on Silero VAD: wire audio in, the starts and ends of turns out."""

from __future__ import annotations

import numpy as np
import soxr

from antiphon.core.turns import TurnEvent
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ, WIRE_SAMPLE_RATE_HZ
from antiphon.interaction.pauses import EndOfTurn, Semantic, Silence
from antiphon.interaction.turns import TurnSettings, TurnTaker
from antiphon.server.vad import VoiceActivity, vad_model
from antiphon.wire.ports import TurnDetector
from antiphon.wire.turn_detection import TurnDetection

RESAMPLING = "LQ"
"""Its filter holds back 20 ms at most; better ones hold back 38 and change nothing that matters."""


class SileroTurnDetector:
    """One session's ear. Belongs to one caller at a time, whichever thread that is."""

    def __init__(self, asked: TurnDetection) -> None:
        self._asked = asked
        self._resampler = soxr.ResampleStream(
            WIRE_SAMPLE_RATE_HZ, MODEL_SAMPLE_RATE_HZ, 1, dtype="float32", quality=RESAMPLING
        )
        self._activity = VoiceActivity(vad_model())
        self._turns = TurnTaker(_settings(asked), _end_of_turn(asked))
        self._odd_byte = b""

    def configure(self, asked: TurnDetection) -> None:
        if asked != self._asked:
            self._asked = asked
            self._turns.configure(_settings(asked), _end_of_turn(asked))

    def feed(self, pcm16: bytes, reply_is_heard: bool) -> list[TurnEvent]:
        data = self._odd_byte + pcm16
        whole = len(data) // 2 * 2
        self._odd_byte = data[whole:]
        samples = np.frombuffer(data[:whole], "<i2").astype(np.float32) / 32768.0
        found = [
            self._turns.observe(probability, reply_is_heard)
            for probability in self._activity.feed(self._resampler.resample_chunk(samples))
        ]
        return [event for event in found if event is not None]

    def end(self) -> list[TurnEvent]:
        event = self._turns.end()
        return [] if event is None else [event]


def turn_detector(asked: TurnDetection) -> TurnDetector:
    """A fresh detector; the weights are read by the first."""
    return SileroTurnDetector(asked)


def _settings(asked: TurnDetection) -> TurnSettings:
    return TurnSettings(asked.threshold, asked.prefix_padding_ms, asked.min_speech_ms)


def _end_of_turn(asked: TurnDetection) -> EndOfTurn:
    if asked.kind == "semantic_vad":
        return Semantic(asked.eagerness, asked.silence_duration_ms)
    return Silence(asked.silence_duration_ms)
