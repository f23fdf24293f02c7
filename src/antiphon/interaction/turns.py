"""Turn-taking: speech probabilities in, the starts and ends of a person's turns out. Pure; one per session.

    QUIET ──voice; no reply is heard, or min_speech_ms is 0── Started ──> SPEAKING
    QUIET ──voice over a reply───────────────────────────── Paused ──> DOUBTFUL
    DOUBTFUL ──voice lasted min_speech_ms, or the reply is over── Started ──> SPEAKING
    DOUBTFUL ──silence before that───────────────────────── Resumed ──> QUIET
    SPEAKING ──silence of PAUSE_MS───────────────────────── Paused, again after what lies between
    SPEAKING ──CONTINUED_MS of voice since Started, Paused or this── Continued
    SPEAKING ──a pause that ends the turn────────────────── Stopped ──> QUIET

Voice is a probability of at least `threshold`; silence one below `threshold - 0.15` (Silero's VADIterator);
what lies between changes nothing. Silence counts from the start of its first frame.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from antiphon.core.turns import (
    ReplyPaused,
    ReplyResumed,
    TurnContinued,
    TurnEvent,
    TurnPaused,
    TurnStarted,
    TurnStopped,
)
from antiphon.interaction.pauses import FALL_PART, EndOfTurn, Pause, Silence

FRAME_MS = 32
"""512 samples at 16 kHz."""
HYSTERESIS = 0.15
LEAST_SILENCE = 0.01
"""Below this a frame is silent at any threshold."""
BACKCHANNEL_GAP_MS = 200
"""Silence after which a doubtful voice is over."""
NUM_KNOWN_PAUSES = 16
PAUSE_MS = 192
"""Silence after which a turn may be over: longer than the stops within words."""
CONTINUED_MS = 1504
"""Voice after which a turn that has not paused is told."""
LEAST_PAUSE_MS = 96
"""Shorter silences are parts of words."""
CONTOUR_FRAMES = 8


class TurnPhase(Enum):
    QUIET = "quiet"
    DOUBTFUL = "doubtful"
    SPEAKING = "speaking"


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """What a client may set.

    threshold          probability from which a frame is voice
    prefix_padding_ms  audio before the first voiced frame that belongs to the turn
    min_speech_ms      a voice over a reply interrupts it only if it lasts so long; 0: at once
    """

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    min_speech_ms: int = 0


class TurnTaker:
    """Takes frames of 32 ms in order. Consecutive turns never overlap, and every start has one stop."""

    def __init__(self, settings: TurnSettings | None = None, end_of_turn: EndOfTurn | None = None) -> None:
        self.phase = TurnPhase.QUIET
        self._settings = settings or TurnSettings()
        self._end_of_turn = end_of_turn or Silence()
        self._now_ms = 0
        self._voice_ms = 0
        """Start of the first voiced frame of what is being said."""
        self._quiet_ms: int | None = None
        """Start of the silence that follows it, if there is one."""
        self._said_ms: int | None = None
        """Where the turn's recording ends if the turn ends in this pause."""
        self._untold_ms = 0
        """Voice since the turn's start, its last pause or its last continuation was told."""
        self._free_ms = 0
        """Audio before this belongs to a turn that is over."""
        self._known_ms = deque[float](maxlen=NUM_KNOWN_PAUSES)
        self._contour = deque[float](maxlen=CONTOUR_FRAMES)

    def configure(self, settings: TurnSettings, end_of_turn: EndOfTurn) -> None:
        """Other settings from the next frame on; a turn in progress goes on."""
        self._settings, self._end_of_turn = settings, end_of_turn

    def observe(self, probability: float, reply_is_heard: bool = False) -> TurnEvent | None:
        """One frame. `reply_is_heard`: a reply is playing that a voice would interrupt."""
        start_ms, self._now_ms = self._now_ms, self._now_ms + FRAME_MS
        if probability >= self._settings.threshold:
            return self._voiced(start_ms, probability, reply_is_heard)
        if self.phase is TurnPhase.QUIET:
            return None
        self._contour.append(probability)
        if probability < self._low:
            return self._silent(start_ms, reply_is_heard)
        self._said_ms = None
        return self._resolved(reply_is_heard)

    def end(self) -> TurnEvent | None:
        """Somebody else says that the turn is over here: what follows is a new one. Returns its stop, or the
        end of a doubt."""
        phase = self.phase
        stopped = TurnStopped(self._now_ms, self._said_ms)
        self._to_quiet()
        self._free_ms = self._now_ms
        if phase is TurnPhase.SPEAKING:
            return stopped
        return ReplyResumed() if phase is TurnPhase.DOUBTFUL else None

    def _voiced(self, start_ms: int, probability: float, reply_is_heard: bool) -> TurnEvent | None:
        self._note_pause(start_ms)
        self._contour.append(probability)
        if self.phase is TurnPhase.SPEAKING:
            return self._continued()
        if self.phase is TurnPhase.DOUBTFUL:
            return self._resolved(reply_is_heard)
        self._voice_ms = start_ms
        if reply_is_heard and self._settings.min_speech_ms > FRAME_MS:
            self.phase = TurnPhase.DOUBTFUL
            return ReplyPaused()
        return self._started()

    def _silent(self, start_ms: int, reply_is_heard: bool) -> TurnEvent | None:
        if self._quiet_ms is None:
            self._quiet_ms = start_ms
        silence_ms = self._now_ms - self._quiet_ms
        if self.phase is TurnPhase.DOUBTFUL:
            if silence_ms < BACKCHANNEL_GAP_MS:
                return self._resolved(reply_is_heard)
            self._to_quiet()
            return ReplyResumed()
        if self._end_of_turn.ends(self._pause(silence_ms)):
            return self.end()
        if self._said_ms is not None or silence_ms < PAUSE_MS:
            return None
        self._said_ms, self._untold_ms = self._now_ms, 0
        return TurnPaused(self._now_ms)

    def _continued(self) -> TurnContinued | None:
        self._untold_ms += FRAME_MS
        if self._untold_ms < CONTINUED_MS:
            return None
        self._untold_ms = 0
        return TurnContinued(self._now_ms)

    def _resolved(self, reply_is_heard: bool) -> TurnEvent | None:
        """The start, once a doubtful voice has proved to be one."""
        voice_end_ms = self._now_ms if self._quiet_ms is None else self._quiet_ms
        lasted = voice_end_ms - self._voice_ms >= self._settings.min_speech_ms
        if self.phase is TurnPhase.DOUBTFUL and (lasted or not reply_is_heard):
            return self._started()
        return None

    def _started(self) -> TurnStarted:
        self.phase, self._untold_ms = TurnPhase.SPEAKING, 0
        return TurnStarted(max(self._free_ms, self._voice_ms - self._settings.prefix_padding_ms))

    def _to_quiet(self) -> None:
        self.phase, self._quiet_ms, self._said_ms = TurnPhase.QUIET, None, None
        self._contour.clear()

    @property
    def _low(self) -> float:
        return max(self._settings.threshold - HYSTERESIS, LEAST_SILENCE)

    def _note_pause(self, end_ms: int) -> None:
        """The voice is back: what was between was a pause inside the turn."""
        if self._quiet_ms is not None and end_ms - self._quiet_ms >= LEAST_PAUSE_MS:
            self._known_ms.append(end_ms - self._quiet_ms)
        self._quiet_ms = self._said_ms = None

    def _pause(self, silence_ms: int) -> Pause:
        assert self._quiet_ms is not None
        speech_ms = self._quiet_ms - self._voice_ms
        return Pause(silence_ms, speech_ms, tuple(self._known_ms), self._fall_frames())

    def _fall_frames(self) -> int:
        """Frames between the last one at full voice and the silence."""
        top = max(self._contour, default=0.0)
        fading = [self._low <= probability < FALL_PART * top for probability in self._contour]
        return sum(fading)
