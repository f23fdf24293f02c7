"""How near the listeners are to a gap: seconds that a second of audio takes, where nothing is held back.

A response whose listener has plenty may be slow on purpose; it says nothing of what the engine can do. So
only those count that run less than `ahead_s` ahead of their listener. People who listen or think now will
speak again, so the worst of the last `hold_s` seconds is what a newcomer has to fit beside. Pure: times are
handed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MIN_CHUNKS = 3
"""Fewer pieces of audio than this tell no rate."""
SAMPLE_S = 0.25


@dataclass(slots=True)
class Stream:
    """One response's audio: when the first piece came, and the pieces of the last seconds."""

    first_s: float
    total_s: float
    num_chunks: int = 1
    recent: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])

    def ahead_s(self, now: float) -> float:
        """Audio that was made and cannot have been heard yet."""
        return self.total_s - (now - self.first_s)


class Pressure:
    """Folds the audio of all open responses into one figure."""

    def __init__(self, window_s: float = 4.0, ahead_s: float = 1.5, hold_s: float = 15.0) -> None:
        self._window_s = window_s
        self._ahead_s = ahead_s
        self._hold_s = hold_s
        self._sampled = deque[tuple[float, float]](maxlen=int(hold_s / SAMPLE_S) + 1)
        self._streams: dict[str, Stream] = {}

    def heard(self, response: str, audio_s: float, now: float) -> None:
        """A piece of audio was made. The first is the start of the clock, not part of the rate."""
        stream = self._streams.get(response)
        if stream is None:
            self._streams[response] = Stream(now, audio_s)
            return
        stream.total_s += audio_s
        stream.num_chunks += 1
        stream.recent.append((now, audio_s))
        if not self._sampled or now - self._sampled[-1][0] >= SAMPLE_S:
            self._sampled.append((now, self.audio_rtf(now) or 0.0))

    def ended(self, response: str) -> None:
        self._streams.pop(response, None)

    def audio_rtf(self, now: float) -> float | None:
        """Wall seconds per second of audio over the window; below 1 nobody waits. None: nothing to tell."""
        wall_s = audio_s = 0.0
        for stream in self._streams.values():
            since = max(stream.first_s, now - self._window_s)
            while stream.recent and stream.recent[0][0] <= since:
                stream.recent.popleft()
            told = stream.num_chunks >= MIN_CHUNKS or now - stream.first_s >= self._window_s
            if told and stream.ahead_s(now) < self._ahead_s:
                wall_s += now - since
                audio_s += sum(length for _, length in stream.recent)
        if not wall_s:
            return None
        return wall_s / audio_s if audio_s else float("inf")

    def worst_rtf(self, now: float) -> float:
        """The highest `audio_rtf` of the last `hold_s` seconds; 0 where there was nothing to tell."""
        while self._sampled and self._sampled[0][0] <= now - self._hold_s:
            self._sampled.popleft()
        return max([self.audio_rtf(now) or 0.0, *(rtf for _, rtf in self._sampled)])
