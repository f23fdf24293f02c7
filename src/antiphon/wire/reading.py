"""How far the reader of a streamed text is: what was sent, and what its client reports (POST /v1/reading)."""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import Annotated

import msgspec
from msgspec import Meta

from antiphon.core.errors import Throttled
from antiphon.wire.client_events import Strict
from antiphon.wire.spoken import Reported

MIN_GAP_S = 0.25
"""Between two reports of one text; more are refused."""


class ReadingReport(Strict, frozen=True, kw_only=True):
    """POST /v1/reading.

    completion_id  as the chunks of the text's stream have it
    read_chars     characters (Unicode code points) of the text that its reader has read, from its beginning
    """

    completion_id: Annotated[str, Meta(min_length=1, max_length=200)]
    read_chars: Annotated[int, Meta(ge=0, le=1 << 31)]


class ReadingAnswer(msgspec.Struct, frozen=True):
    """read_chars: what counts as read: no more than was sent, and no less than was reported before."""

    completion_id: str
    read_chars: int
    sent_chars: int


class Reader(Reported):
    """A text's reader, who takes `rate` tokens a second. What they read is told in seconds at that rate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate = rate
        self._chars, self._tokens = [0], [0]
        """Sent by the end of each piece."""
        self._reported_at = -inf
        self.read_chars = 0
        """By the last report."""

    @property
    def sent_chars(self) -> int:
        return self._chars[-1]

    @property
    def wanted_at(self) -> float:
        """When all that was sent is read, and more is wanted: never sooner than that takes at the rate. The
        pauses of its reader in one text come to `MOST_PAUSED_S` at most."""
        soonest = self.soonest.dry_at
        return min(max(self.playback.dry_at, soonest), soonest + self.pause_left_s)

    def sent(self, text: str, num_tokens: int, now: float) -> None:
        if self.soonest.first_at is not None:
            paused_s = min(now, self.playback.dry_at) - self.soonest.dry_at
            self.pause_left_s = max(self.pause_left_s - max(paused_s, 0.0), 0.0)
        self._chars.append(self._chars[-1] + len(text))
        self._tokens.append(self._tokens[-1] + num_tokens)
        self.sounded(num_tokens / self._rate, now)

    def reported(self, read_chars: int, now: float) -> float | None:
        """The client says how far it has read. Returns the seconds of it that the engine is told, None where
        that is nothing new. Raises Throttled where reports follow each other too fast."""
        wait_s = self._reported_at + MIN_GAP_S - now
        if wait_s > 0:
            raise Throttled(f"Reports of a text are {MIN_GAP_S:g} s apart at least.", wait_s)
        self._reported_at = now
        read_chars = min(read_chars, self.sent_chars)
        if read_chars < self.read_chars:
            return None
        self.read_chars = read_chars
        return self.acked(self._tokens_of(read_chars) / self._rate, now)

    def _tokens_of(self, num_chars: int) -> float:
        """Of a piece that is read in part, that share."""
        at = bisect_right(self._chars, num_chars) - 1
        tokens = float(self._tokens[at])
        if at + 1 < len(self._chars):
            share = (num_chars - self._chars[at]) / (self._chars[at + 1] - self._chars[at])
            tokens += share * (self._tokens[at + 1] - self._tokens[at])
        return tokens
