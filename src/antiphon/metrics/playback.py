"""A listener's loudspeaker: audio comes in bursts and is played at one second per second.

nothing --first audio--> playing <--more audio / ran dry--> dry --stop--> stopped
"""

from __future__ import annotations


class Playback:
    """Playback of one reply. Times are seconds on any one clock; calls come in time order."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        """When the first audio came: playback starts then."""
        self.received_s = 0.0
        self.gaps: list[float] = []
        """Seconds of silence in the midst of the reply, each time that playback had run dry."""
        self._stopped_s: float | None = None

    @property
    def gap_s(self) -> float:
        """All silence so far, the gap that may be open now excepted."""
        return sum(self.gaps)

    @property
    def dry_at_s(self) -> float | None:
        """When playback runs (or ran) out of what has been received; None before the first audio."""
        return None if self.first_s is None else self.first_s + self.gap_s + self.received_s

    def receive(self, audio_s: float, now: float) -> None:
        """`audio_s` more seconds came at `now`. After `stop` nothing is played any more."""
        if self._stopped_s is not None:
            return
        if self.first_s is None:
            self.first_s = now
        dry_at_s = self.first_s + self.gap_s + self.received_s
        if now > dry_at_s:
            self.gaps.append(now - dry_at_s)
        self.received_s += audio_s

    def heard_s(self, now: float) -> float:
        """Seconds of the reply that were audible until `now`."""
        if self.first_s is None:
            return 0.0
        until = now if self._stopped_s is None else min(now, self._stopped_s)
        return min(max(0.0, until - self.first_s - self.gap_s), self.received_s)

    def stop(self, now: float) -> None:
        """The listener falls silent at `now`: the rest is never heard."""
        if self._stopped_s is None:
            self._stopped_s = now
