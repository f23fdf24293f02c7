"""Spoken replies that a later request may name: bounded in number and time. One owner, one thread."""

from __future__ import annotations

from collections import OrderedDict


class ReplyStore:
    """Exact tokens by audio id; the oldest go first."""

    def __init__(self, max_replies: int, ttl_s: float) -> None:
        self._max_replies = max_replies
        self._ttl_s = ttl_s
        self._replies: OrderedDict[str, tuple[float, tuple[int, ...]]] = OrderedDict()

    @property
    def ttl_s(self) -> float:
        return self._ttl_s

    def __len__(self) -> int:
        return len(self._replies)

    def keep(self, audio_id: str, token_ids: list[int], now: float) -> None:
        self._replies[audio_id] = (now + self._ttl_s, tuple(token_ids))
        while len(self._replies) > self._max_replies or self._oldest_is_over(now):
            self._replies.popitem(last=False)

    def recall(self, audio_id: str, now: float) -> tuple[int, ...] | None:
        """The reply's tokens; None for an unknown id and one whose time is over."""
        until, tokens = self._replies.get(audio_id, (now, None))
        return tokens if until > now else None

    def _oldest_is_over(self, now: float) -> bool:
        until, _ = next(iter(self._replies.values()), (now + 1, ()))
        return until <= now
