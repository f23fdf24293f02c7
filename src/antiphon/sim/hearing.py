"""What an open microphone lets the server hear: frames of voice and of silence, and the turns in them."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.core.turns import TurnEvent
from antiphon.core.units import PCM16_BYTES, WIRE_SAMPLE_RATE_HZ
from antiphon.interaction.pauses import Silence
from antiphon.interaction.turns import FRAME_MS, TurnPhase, TurnSettings, TurnTaker
from antiphon.people.acts import Say
from antiphon.sim.events import Agenda, Rank
from antiphon.wire.turn_detection import TurnDetection

FRAME_S = FRAME_MS / 1000
FRAME_BYTES = PCM16_BYTES * WIRE_SAMPLE_RATE_HZ * FRAME_MS // 1000
VOICE, SILENCE = b"\1" * FRAME_BYTES, bytes(FRAME_BYTES)
PADDING_FRAMES = 10
"""Silence before a voice that belongs to its turn: what lies further back is never looked at."""


class FrameDetector:
    """Implements wire.ports.TurnDetector for whole frames of voice or of silence."""

    def __init__(self, asked: TurnDetection) -> None:
        self._taker = TurnTaker(*_settings(asked))

    @property
    def is_quiet(self) -> bool:
        return self._taker.phase is TurnPhase.QUIET

    def feed(self, pcm16: bytes, reply_is_heard: bool) -> list[TurnEvent]:
        event = self._taker.observe(float(pcm16[0]), reply_is_heard)
        return [] if event is None else [event]

    def configure(self, asked: TurnDetection) -> None:
        self._taker.configure(*_settings(asked))

    def end(self) -> list[TurnEvent]:
        event = self._taker.end()
        return [] if event is None else [event]


def _settings(asked: TurnDetection) -> tuple[TurnSettings, Silence]:
    settings = TurnSettings(asked.threshold, asked.prefix_padding_ms, asked.min_speech_ms)
    return settings, Silence(asked.silence_duration_ms)


class Hearing:
    """What an open microphone sends. While nothing is said and no turn is open, no frame is looked at."""

    def __init__(self, agenda: Agenda, append: Callable[[bytes], None]) -> None:
        """append: gives the session a frame."""
        self._agenda = agenda
        self._append = append
        self._detector: FrameDetector | None = None
        self._voiced: list[tuple[float, float]] = []
        """Stretches of voice that are not over, in the server's time."""
        self._is_listening = False

    def detector(self, asked: TurnDetection) -> FrameDetector:
        """A wire.ports.TurnDetectorFactory, of the one session."""
        self._detector = FrameDetector(asked)
        return self._detector

    def hear(self, said: Say) -> None:
        """The person begins to say this."""
        at_s = self._agenda.now
        for stretch in said.stretches:
            self._voiced.append((at_s, at_s + stretch.speech_s))
            at_s += stretch.speech_s + stretch.pause_s
        if not self._is_listening:
            for _ in range(PADDING_FRAMES):
                self._append(SILENCE)
            self._is_listening = True
            self._next_frame()

    def _next_frame(self) -> None:
        self._agenda.at(self._agenda.now + FRAME_S, Rank.LINK, self._frame)

    def _frame(self) -> None:
        now = self._agenda.now
        middle_s = now - FRAME_S / 2
        self._append(VOICE if any(start <= middle_s < end for start, end in self._voiced) else SILENCE)
        self._voiced = [(start, end) for start, end in self._voiced if end > now]
        self._is_listening = bool(self._voiced) or not (self._detector is None or self._detector.is_quiet)
        if self._is_listening:
            self._next_frame()
