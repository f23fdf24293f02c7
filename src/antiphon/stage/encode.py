"""The step scheduler of an encoder stage, and the ledger of which media outputs are at hand."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from antiphon.core.config import EncoderConfig
from antiphon.core.conversation import Media
from antiphon.core.facts import StageFact, StepDone
from antiphon.core.plans import EncodeStep
from antiphon.interaction.frontier import NOWHERE
from antiphon.policy.base import Budget, StepChoice, Tier
from antiphon.stage.candidates import Listed, Surroundings
from antiphon.stage.policies import Chooser, StagePolicies, up_to


@dataclass(frozen=True, slots=True)
class _Queued:
    """A medium that waits, and the request that wanted it first."""

    media: Media
    request: int
    slot: int
    tier: Tier


class EncodeScheduler:
    """Encodes each media content once while anybody needs it; keeps some outputs that nobody needs now.

    Media of a failed step are tried again, each in a step of its own: one that is bad takes no other along.
    """

    def __init__(
        self,
        name: str,
        config: EncoderConfig,
        policies: StagePolicies,
        around: Surroundings | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self._around = around or Surroundings()
        self._chooser = Chooser[Listed](policies)
        self._queue: OrderedDict[int, _Queued] = OrderedDict()
        self._flights: OrderedDict[int, tuple[Media, ...]] = OrderedDict()
        self._suspects: OrderedDict[int, Media] = OrderedDict()
        self._ready: OrderedDict[int, None] = OrderedDict()
        self._pins: Counter[int] = Counter()

    def want(
        self, media: tuple[Media, ...], request: int = -1, slot: int = NOWHERE, tier: Tier = Tier.LATENCY
    ) -> None:
        """Pin these contents for a request and queue those that are not at hand."""
        busy = {*self._flying, *self._suspects}
        for part in media:
            self._pins[part.key] += 1
            if part.key in self._ready:
                self._ready.move_to_end(part.key)
            elif part.key not in busy:
                queued = self._queue.get(part.key)
                if queued is None or tier < queued.tier:
                    self._queue[part.key] = _Queued(part, request, slot, tier)

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

    def tell_time(self, now: float) -> None:
        """Before facts of `now` are folded in."""
        self._chooser.tell_time()

    @property
    def wake_at(self) -> float | None:
        """When a policy of this stage wishes to be asked again, of those asked since `tell_time`."""
        return self._chooser.wake_at

    @property
    def seen(self) -> tuple[Listed, StepChoice] | None:
        """What was said last since `tell_time`."""
        return self._chooser.seen

    def choose(self, now: float) -> tuple[Listed, StepChoice]:
        """What the policies say of the stage as it stands. Nothing is changed by it."""
        budget = Budget(self.config.step_media, self.config.step_media)
        return self._chooser.ask(lambda: self._candidates(now), budget, now)

    def _candidates(self, now: float) -> Listed:
        """Media that are queued; none has a row. The request is the first that wanted it."""
        columns = [(-1, one.request, one.tier, one.slot, 1, True) for one in self._queue.values()]
        return Listed(self.name, self._around, now, 0, columns)

    def plan(self, step: int, now: float, most: int | None = None) -> EncodeStep | None:
        """The next media, as chosen. `most`: only those of this urgency and below it."""
        if not self.has_work:
            return None
        if self._suspects:
            media, reason = (self._suspects.popitem(last=False)[1],), "alone, after a failed step"
        else:
            view, choice = self.choose(now)
            self._chooser.changed()
            chosen: list[int] = up_to(view, choice, most)[0][: self.config.step_media].tolist()
            keys = list(self._queue)
            media = tuple(self._queue.pop(keys[at]).media for at in chosen)
            reason = choice.reason
        if not media:
            return None
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
