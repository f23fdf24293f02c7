"""How far a client has played a reply: its own account where it gives one, else the wall clock."""

from __future__ import annotations


class Playback:
    """The cursor of one reply's audio.

    Without `playback.ack`, played = min(now - first delta sent, sent): what stock clients assume.
    With it, played = min(last account + time since, sent).
    """

    def __init__(self) -> None:
        self.sent_ms = 0.0
        self.is_acked = False
        self._at: float | None = None
        self._played_ms = 0.0
        self._is_stopped = False

    def sent(self, length_ms: float, now: float) -> None:
        """More audio went to the client."""
        if self._at is None:
            self._at = now
        self.sent_ms += length_ms

    def acked(self, played_ms: float, now: float) -> float:
        """The client's account, bounded by what was sent and by its accounts before; returns what counts."""
        least = self._played_ms if self.is_acked else 0.0
        # bounded before it is a float: an integer in JSON may be larger than any
        self._played_ms = float(max(least, min(played_ms, self.sent_ms)))
        if self.sent_ms:
            self.is_acked, self._at = True, now
        return self._played_ms

    def played_ms(self, now: float) -> float:
        if self._at is None:
            return 0.0
        if self._is_stopped:
            return self._played_ms
        return max(0.0, min(self._played_ms + 1000.0 * (now - self._at), self.sent_ms))

    def stop(self, now: float) -> None:
        """The client plays no more of it: it was interrupted."""
        if not self._is_stopped and self._at is not None:
            self._played_ms, self._at, self._is_stopped = self.played_ms(now), now, True

    def is_audible(self, now: float) -> bool:
        return not self._is_stopped and self.played_ms(now) < self.sent_ms

    @property
    def ends_at(self) -> float | None:
        """When all that was sent will have been played; None if nothing was."""
        if self._at is None or self._is_stopped:
            return self._at
        return self._at + (self.sent_ms - self._played_ms) / 1000.0
