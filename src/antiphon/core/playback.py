"""How far a reply's audio has been played: the one rule, wherever that is asked.

    nothing --first audio--> playing <--more audio / ran dry--> dry
    any of them --stop--> stopped

Audio is played at one second per second from the first of it on. Once dry, playback goes on from where it
stopped when more comes, so silence counts as nothing played. What a client reports of its own playback
replaces the estimate. One number says all of this: `dry_at`, when all that has come will have been played.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf


class Source(IntEnum):
    """How a playback is known."""

    UNKNOWN = 0
    """No audio has come."""
    ESTIMATED = 1
    """From the clock alone."""
    ACKED = 2
    """From the client's last report, and the clock since."""


class Playback:
    """The playback of one reply. Times are seconds of any one clock; calls come in time order."""

    __slots__ = ("_stopped_s", "acked_s", "audio_s", "dry_at", "first_at")

    def __init__(self) -> None:
        self.audio_s = 0.0
        """Seconds of audio that have come, played or not."""
        self.first_at: float | None = None
        """When the first of it came, and playback began."""
        self.dry_at = -inf
        """When all of it is played, or playback was stopped; -inf before the first audio."""
        self.acked_s: float | None = None
        """What the client last reported to have played."""
        self._stopped_s: float | None = None

    @property
    def source(self) -> Source:
        if self.first_at is None:
            return Source.UNKNOWN
        return Source.ESTIMATED if self.acked_s is None else Source.ACKED

    @property
    def is_stopped(self) -> bool:
        """The listener hears no more of it, whatever comes."""
        return self._stopped_s is not None

    def add(self, audio_s: float, now: float) -> float:
        """More audio came. Returns the silence that it ends, in seconds: 0 unless playback had run dry."""
        self.audio_s += audio_s
        if self._stopped_s is not None:
            return 0.0
        if self.first_at is None:
            self.first_at = self.dry_at = now
        gap_s = max(now - self.dry_at, 0.0)
        self.dry_at = max(now, self.dry_at) + audio_s
        return gap_s

    def acked(self, played_s: float, now: float) -> bool:
        """The client reports how far it has played; beyond all that has come counts as that. Returns False,
        and nothing changes, before the first audio and for less than was reported before."""
        if self.first_at is None or not played_s >= (self.acked_s or 0.0):
            return False
        self.acked_s = min(played_s, self.audio_s)
        if self._stopped_s is None:
            self.dry_at = now + (self.audio_s - self.acked_s)
        else:
            self._stopped_s = self.acked_s
        return True

    def stop(self, now: float) -> None:
        """The listener hears no more of it, whatever comes. Only the first stop counts."""
        if self._stopped_s is None:
            self._stopped_s = self.played_s(now)
            self.dry_at = min(now, self.dry_at)

    def lead_s(self, now: float) -> float:
        """Seconds of audio that have come and are still to be played."""
        left_s = self.dry_at - now
        return left_s if left_s > 0.0 else 0.0

    def played_s(self, now: float) -> float:
        """Seconds of audio that have been played."""
        if self._stopped_s is not None:
            return self._stopped_s
        return max(self.audio_s - self.lead_s(now), 0.0)

    def is_audible(self, now: float) -> bool:
        return now < self.dry_at
