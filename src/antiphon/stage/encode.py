"""The step scheduler of an encoder stage, and the ledger of which media outputs are at hand."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from antiphon.core.config import EncoderConfig
from antiphon.core.conversation import Media
from antiphon.core.facts import StageFact, StepDone
from antiphon.core.plans import EncodeStep
from antiphon.interaction.frontier import NOWHERE
from antiphon.policy.base import Budget, Tier
from antiphon.stage.candidates import Listed, Surroundings
from antiphon.stage.policies import Chooser, StagePolicies, changes, to_run


@dataclass(slots=True)
class _Queued:
    """A medium that waits. `wanted`: the slot and the tier of each request that wants it, oldest first."""

    media: Media
    wanted: dict[int, tuple[int, Tier]]

    @property
    def first(self) -> tuple[int, int, Tier]:
        """Request, slot and tier of the one for which it is encoded: of those that are served first, the
        oldest."""
        request = min(self.wanted, key=lambda request: self.wanted[request][1])
        return request, *self.wanted[request]


class EncodeScheduler(Chooser[Listed, tuple[Media, ...]]):
    """Encodes each media content once while a request needs it; keeps some outputs that none needs now.

    Media of a failed step are tried again, each in a step of its own: one that is bad takes no other along.
    """

    def __init__(
        self, name: str, config: EncoderConfig, policies: StagePolicies, around: Surroundings | None = None
    ) -> None:
        super().__init__(policies, around)
        self.name = name
        self.config = config
        self._queue: OrderedDict[int, _Queued] = OrderedDict()
        self._suspects: OrderedDict[int, Media] = OrderedDict()
        self._ready: OrderedDict[int, None] = OrderedDict()
        self._pins: Counter[int] = Counter()

    @changes
    def want(
        self, media: tuple[Media, ...], request: int, slot: int = NOWHERE, tier: Tier = Tier.LATENCY
    ) -> None:
        """Pin these contents for a request and queue those that are not at hand."""
        busy = {*self._flying, *self._suspects}
        for part in media:
            self._pins[part.key] += 1
            if part.key in self._ready:
                self._ready.move_to_end(part.key)
            elif part.key not in busy:
                self._queue.setdefault(part.key, _Queued(part, {})).wanted[request] = slot, tier

    @changes
    def unpin(self, media: tuple[Media, ...], request: int) -> None:
        """A request needs these no more. What no request waits for is not encoded any more."""
        for part in media:
            queued = self._queue.get(part.key)
            if queued is not None and len(queued.wanted) > 1:
                queued.wanted.pop(request, None)
            self._pins[part.key] -= 1
            if self._pins[part.key] <= 0:
                del self._pins[part.key]
                self._queue.pop(part.key, None)
                self._suspects.pop(part.key, None)

    @changes
    def rank(self, request: int, tier: Tier) -> None:
        """The request's tier is another one from now on, for what is queued."""
        for queued in self._queue.values():
            if request in queued.wanted:
                slot, _ = queued.wanted[request]
                queued.wanted[request] = slot, tier

    def holds(self, media: tuple[Media, ...]) -> bool:
        return all(part.key in self._ready for part in media)

    def surplus(self) -> tuple[int, ...]:
        """Keys to drop: outputs beyond the cache's size that no request has pinned, least recently
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
    def has_work(self) -> bool:
        return bool(self._queue or self._suspects)

    @property
    def _flying(self) -> list[int]:
        return [part.key for media in self._flights.values() for part in media]

    @property
    def budget(self) -> Budget:
        return Budget(self.config.step_media, self.config.step_media)

    def _candidates(self, now: float) -> Listed:
        """Media that are queued; none has a row."""
        firsts = (one.first for one in self._queue.values())
        columns = [(-1, request, tier, slot, 1, True) for request, slot, tier in firsts]
        return Listed(self.name, self._around, now, 0, columns)

    def plan(self, step: int, now: float) -> EncodeStep | None:
        """The next media, as chosen."""
        if not self.has_work:
            return None
        if self._suspects:
            media, reason = (self._suspects.popitem(last=False)[1],), "alone, after a failed step"
        else:
            view, choice = self._taken(now)
            chosen: list[int] = to_run(view, choice)[0][: self.config.step_media].tolist()
            keys = list(self._queue)
            media = tuple(self._queue.pop(keys[at]).media for at in chosen)
            reason = choice.reason
        if not media:
            return None
        self.num_changes += 1
        self._flights[step] = media
        return EncodeStep(self.name, step, media, reason)

    @changes
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
        assert all(key in self._pins for key in [*self._queue, *self._suspects]), (
            "queued, and no request waits"
        )
