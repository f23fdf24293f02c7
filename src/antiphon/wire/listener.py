"""The input side: the audio that was written, and the turns that are found in it.

Positions count bytes of PCM16 since the session began, whatever was committed or dropped between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.core.errors import LimitExceeded
from antiphon.core.ids import IdSource
from antiphon.core.turns import (
    ReplyPaused,
    ReplyResumed,
    TurnContinued,
    TurnEvent,
    TurnPaused,
    TurnStarted,
    TurnStopped,
)
from antiphon.core.units import PCM16_BYTES, WIRE_SAMPLE_RATE_HZ, pcm16_ms
from antiphon.wire.limits import Limits, check
from antiphon.wire.ports import TurnDetector, TurnDetectorFactory
from antiphon.wire.turn_detection import TurnDetection

MS_BYTES = PCM16_BYTES * WIRE_SAMPLE_RATE_HZ // 1000
SLICE_BYTES = 200 * MS_BYTES
"""Audio is heard in small pieces, so that a long append of many turns needs no more room than one turn."""
BEHIND_MS = 400
"""How far a detector's news may lag behind the audio: frames, resampling, gaps in a doubtful voice."""
MOST_AHEAD_MS = 60_000
"""Of a turn. Of a longer one no pause is told, nor that it goes on: all of its audio would be copied, and
taken up, each time. It is written down when it is over."""
CONTINUED_MS = 1500
"""Audio after which a turn that is committed by hand is told to go on."""


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """A turn began; `item_id` is that of the item it will become."""

    item_id: str
    audio_start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechPaused:
    """A turn will have just this `audio` if it ends in the pause that has begun; `MOST_AHEAD_MS` at most."""

    item_id: str
    audio: bytes


@dataclass(frozen=True, slots=True)
class SpeechContinues:
    """A turn goes on, and has this `audio` so far; `MOST_AHEAD_MS` at most."""

    item_id: str
    audio: bytes


@dataclass(frozen=True, slots=True)
class SpeechOver:
    """A turn ended. `audio` is all of it; None: it stays in the buffer, and the client will commit it."""

    item_id: str
    audio_end_ms: int
    audio: bytes | None


@dataclass(frozen=True, slots=True)
class PushBegan:
    """A client that commits by hand appends the first audio since it committed or cleared."""


@dataclass(frozen=True, slots=True)
class PushOver:
    """It committed or cleared, or has turns detected from here on."""


Noticed = (
    SpeechBegan
    | SpeechPaused
    | SpeechContinues
    | SpeechOver
    | PushBegan
    | PushOver
    | ReplyPaused
    | ReplyResumed
)


class Listener:
    """Owner of the input buffer and the detector."""

    def __init__(
        self, limits: Limits, ids: IdSource, detectors: TurnDetectorFactory | None, tells_pauses: bool = False
    ) -> None:
        """tells_pauses: every pause of a turn is told, and that it goes on without one, and the turn's audio
        ends where its last pause was; else all of the silence that ended it belongs to it."""
        self._limits, self._ids, self._detectors = limits, ids, detectors
        self._tells_pauses = tells_pauses
        self._buffer = bytearray()
        self._base = 0
        """Position of the buffer's first byte."""
        self._detector: TurnDetector | None = None
        self._detector_base = 0
        self._kept_ms = 0
        self._item_id: str | None = None
        self._untold: TurnPaused | TurnContinued | None = None
        """Found in this append."""
        self._is_pushed = False
        """Without a detector: audio was appended since the last commit or clear."""
        self._untold_bytes = 0
        """Of that, since it was told last."""
        self._is_told_full = False
        """Without a detector: the client knows that no more fits beside what is buffered."""

    @property
    def buffered_ms(self) -> float:
        return pcm16_ms(len(self._buffer))

    @property
    def written_ms(self) -> int:
        return int(pcm16_ms(self._base + len(self._buffer)))

    @property
    def is_speaking(self) -> bool:
        """A turn has begun and not ended."""
        return self._item_id is not None and self._detector is not None

    def configure(self, asked: TurnDetection | None) -> list[Noticed]:
        """Detect so from here on; None: not at all. A turn in progress goes on, or is left in the buffer."""
        if asked is None or self._detectors is None:
            noticed = [] if self._detector is None else self._end()
            self._detector = None
            return noticed
        noticed = []
        if self._detector is None:
            noticed, self._is_told_full = self._end(), False
            self._detector, self._item_id = self._detectors(asked), None
            self._detector_base = self._base + len(self._buffer)
        else:
            self._detector.configure(asked)
        self._kept_ms = asked.prefix_padding_ms + asked.min_speech_ms + BEHIND_MS
        return noticed

    def append(self, audio: bytes, reply_is_heard: bool) -> list[Noticed]:
        """More audio. Raises LimitExceeded before anything is taken; once for what is buffered, and more that
        does not fit is dropped until that is committed or cleared: a microphone would have an error each."""
        if self._detector is None:
            if not self._has_room(len(audio)):
                return []
            self._buffer += audio
            return self._pushed(len(audio))
        noticed: list[Noticed] = []
        for start in range(0, len(audio), SLICE_BYTES):
            piece = audio[start : start + SLICE_BYTES]
            self._buffer += piece
            noticed += self._noticed(self._detector.feed(piece, reply_is_heard))
            noticed += self._bounded()
        return [*noticed, *self._so_far()]

    def _has_room(self, num_bytes: int) -> bool:
        """Without a detector: whether so much fits. Raises LimitExceeded where that was not said yet."""
        total_s = pcm16_ms(len(self._buffer) + num_bytes) / 1000
        try:
            check("max_audio_s", self._limits.max_audio_s, total_s, "Commit or clear the input buffer first")
        except LimitExceeded:
            if self._buffer and self._is_told_full:
                return False
            self._is_told_full = bool(self._buffer)
            raise
        return True

    def _pushed(self, num_bytes: int) -> list[Noticed]:
        """A client that commits by hand appended so much. Without a detector it is told at a bounded rate,
        whether there is a voice in it or not."""
        noticed: list[Noticed] = []
        if num_bytes and not self._is_pushed:
            self._is_pushed, self._untold_bytes = True, 0
            noticed.append(PushBegan())
        self._untold_bytes += num_bytes
        if self._tells_pauses and self._untold_bytes >= CONTINUED_MS * MS_BYTES:
            self._untold_bytes = 0
            if self.buffered_ms <= MOST_AHEAD_MS:
                self._item_id = self.item_id
                noticed.append(SpeechContinues(self._item_id, self.audio))
        return noticed

    @property
    def audio(self) -> bytes:
        """Everything buffered."""
        return bytes(self._buffer)

    @property
    def item_id(self) -> str:
        """Of the item that the buffered audio would become: the one announced, or a new one."""
        return self._item_id or self._ids.new("item")

    def clear(self) -> list[Noticed]:
        """Drop everything buffered; a turn in progress ends here."""
        noticed = self._end()
        self._drop(len(self._buffer))
        self._item_id, self._is_told_full = None, False
        return noticed

    def _noticed(self, events: list[TurnEvent]) -> Iterator[Noticed]:
        for event in events:
            match event:
                case TurnStarted():
                    self._item_id, self._untold = self._ids.new("item"), None
                    start = self._position(event.audio_start_ms)
                    self._drop(start - self._base)
                    yield SpeechBegan(self._item_id, start // MS_BYTES)
                case TurnPaused() | TurnContinued():
                    self._untold = event
                case TurnStopped():
                    yield self._over(event)
                case _:
                    yield event

    def _so_far(self) -> list[Noticed]:
        """The last pause or continuation of an append: earlier ones are worth nothing by now."""
        untold, self._untold = self._untold, None
        if untold is None or self._item_id is None or not self._tells_pauses:
            return []
        is_pause = isinstance(untold, TurnPaused)
        until_ms = untold.said_end_ms if is_pause else untold.so_far_ms
        if pcm16_ms(self._position(until_ms) - self._base) > MOST_AHEAD_MS:
            return []
        kind = SpeechPaused if is_pause else SpeechContinues
        return [kind(self._item_id, self._until(until_ms))]

    def _over(self, stopped: TurnStopped) -> SpeechOver:
        item_id, self._item_id = self._item_id, None
        assert item_id is not None, "a turn that stops has started"
        end = self._position(stopped.audio_end_ms)
        said_ms = stopped.said_end_ms if self._tells_pauses else None
        audio = self._until(stopped.audio_end_ms if said_ms is None else said_ms)
        self._drop(end - self._base)
        return SpeechOver(item_id, end // MS_BYTES, audio)

    def _until(self, audio_ms: int) -> bytes:
        """What is buffered before a time that the detector names."""
        with memoryview(self._buffer) as buffer, buffer[: self._position(audio_ms) - self._base] as audio:
            return bytes(audio)

    def _bounded(self) -> list[Noticed]:
        """Silence is dropped but for what a start may reach back to; a turn that fills the buffer ends."""
        if self._item_id is None:
            self._drop(len(self._buffer) - self._kept_ms * MS_BYTES)
        elif self.buffered_ms > 1000 * self._limits.max_audio_s - pcm16_ms(SLICE_BYTES):
            assert self._detector is not None
            return list(self._noticed(self._detector.end()))
        return []

    def _end(self) -> list[Noticed]:
        """End what the detector, or a client that commits by hand, is in the middle of; the audio stays."""
        if self._detector is None:
            was_pushed, self._is_pushed = self._is_pushed, False
            return [PushOver()] if was_pushed else []
        noticed: list[Noticed] = []
        for event in self._detector.end():
            if isinstance(event, TurnStopped) and self._item_id is not None:
                noticed.append(SpeechOver(self._item_id, self.written_ms, None))
            elif isinstance(event, ReplyResumed):
                noticed.append(event)
        return noticed

    def _position(self, audio_ms: int) -> int:
        """Of a time that the detector names, within what is buffered."""
        position = self._detector_base + audio_ms * MS_BYTES
        return max(self._base, min(position, self._base + len(self._buffer)))

    def _drop(self, num_bytes: int) -> None:
        if num_bytes > 0:
            even = num_bytes if num_bytes == len(self._buffer) else num_bytes // PCM16_BYTES * PCM16_BYTES
            del self._buffer[:even]
            self._base += even
