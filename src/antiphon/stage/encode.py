"""The step scheduler of an encoder stage, and the ledger of which media outputs are at hand."""

from __future__ import annotations

from collections import Counter, OrderedDict

from antiphon.core.config import EncoderConfig
from antiphon.core.conversation import Media
from antiphon.core.facts import StageFact, StepDone
from antiphon.core.plans import EncodeStep


class EncodeScheduler:
    """Encodes each media content once while anybody needs it; keeps some outputs that nobody needs now.

    Media of a failed step are tried again, each in a step of its own: one that is bad takes no other along.
    """

    def __init__(self, name: str, config: EncoderConfig) -> None:
        self.name = name
        self.config = config
        self._queue: OrderedDict[int, Media] = OrderedDict()
        self._flights: OrderedDict[int, tuple[Media, ...]] = OrderedDict()
        self._suspects: OrderedDict[int, Media] = OrderedDict()
        self._ready: OrderedDict[int, None] = OrderedDict()
        self._pins: Counter[int] = Counter()

    def want(self, media: tuple[Media, ...]) -> None:
        """Pin these contents and queue those that are not at hand."""
        busy = {*self._flying, *self._suspects}
        for part in media:
            self._pins[part.key] += 1
            if part.key in self._ready:
                self._ready.move_to_end(part.key)
            elif part.key not in busy:
                self._queue.setdefault(part.key, part)

    def unpin(self, media: tuple[Media, ...]) -> None:
        """These are needed once less. What nobody waits for is not encoded any more."""
        for part in media:
            self._pins[part.key] -= 1
            if self._pins[part.key] <= 0:
                del self._pins[part.key]
                self._queue.pop(part.key, None)
                self._suspects.pop(part.key, None)

    def holds(self, media: tuple[Media, ...]) -> bool:
        return all(part.key in self._ready for part in media)

    def surplus(self) -> tuple[int, ...]:
        """Keys to drop: outputs beyond the cache's size that nobody has pinned, least recently
        wanted first."""
        excess = len(self._ready) - self.config.cached_media
        if excess <= 0:
            return ()
        loose = [key for key in self._ready if key not in self._pins][:excess]
        for key in loose:
            del self._ready[key]
        return tuple(loose)

    @property
    def pins(self) -> dict[int, int]:
        """How often each content is wanted."""
        return dict(self._pins)

    @property
    def num_requests(self) -> int:
        """Media that are wanted, ready or not."""
        return len(self._pins)

    @property
    def num_running(self) -> int:
        return len(self._queue) + len(self._suspects) + len(self._flying)

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    @property
    def has_work(self) -> bool:
        return bool(self._queue or self._suspects)

    @property
    def _flying(self) -> list[int]:
        return [part.key for media in self._flights.values() for part in media]

    def is_flying(self, step: int) -> bool:
        """Is its report still to come?"""
        return step in self._flights

    def plan(self, step: int, now: float) -> EncodeStep | None:
        if not self.has_work:
            return None
        if self._suspects:
            media, reason = (self._suspects.popitem(last=False)[1],), "alone, after a failed step"
        else:
            count = min(self.config.step_media, len(self._queue))
            media = tuple(self._queue.popitem(last=False)[1] for _ in range(count))
            reason = "first come first served"
        self._flights[step] = media
        return EncodeStep(self.name, step, media, reason)

    def observe(self, fact: StageFact) -> frozenset[int]:
        """Fold a reported step in; returns the keys whose state changed: ready, or lost if it failed."""
        media = self._flights.pop(fact.step)
        if isinstance(fact, StepDone):
            self._ready.update(dict.fromkeys(part.key for part in media))
        elif len(media) > 1:
            self._suspects.update({part.key: part for part in media if part.key in self._pins})
            return frozenset()
        return frozenset(part.key for part in media)

    def check_integrity(self) -> None:
        """A key is queued, in flight or ready, never two of them."""
        everywhere = [*self._queue, *self._suspects, *self._flying, *self._ready]
        assert len(everywhere) == len(set(everywhere)), "a media key is in two places"
        assert all(key in self._pins for key in [*self._queue, *self._suspects]), "queued though nobody waits"
