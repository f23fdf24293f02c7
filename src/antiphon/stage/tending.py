"""When the KV of a decoder stage is looked after, and in which order its requests are brought theirs."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.core.facts import NO_INTS
from antiphon.policy.base import StepChoice, soonest
from antiphon.stage.candidates import ArCandidates
from antiphon.stage.kv_asks import idle
from antiphon.stage.kv_ledger import KvLedger
from antiphon.stage.policies import Question
from antiphon.stage.rows import RowLedger
from antiphon.stage.waiting import WaitingQueue


class Tending:
    """Owner of when the KV policies are asked: once the stage or its KV has changed, or when they wish it.
    Without a host they are not, and nothing leaves the device before it must."""

    def __init__(self, waiting: WaitingQueue, rows: RowLedger, held: KvLedger) -> None:
        self._waiting, self._rows, self._held, self._tiers = waiting, rows, held, held.tiers
        self._has_host = held.tiers.host.num_blocks > 0
        self._named = NO_INTS
        """Waiting requests in the order in which the policy named them last, if some were not ready."""
        self._kept, self._to_write = Question(), Question()

    def state(self, num_changes: int) -> tuple[int, int]:
        """Of the stage, which has changed so often, and its KV: another one once policies may have something
        else to say."""
        return num_changes + self._tiers.num_changes, self._tiers.room.num_claimed

    def tend(self, num_changes: int, now: float) -> None:
        """At every decision, before steps are planned: evict ahead, and fetch."""
        if self._has_host and self._kept.is_due(before := self.state(num_changes), now):
            self._kept.asked(before, self._tended(now), now)

    def _tended(self, now: float) -> float | None:
        """When the policies wish to be asked again."""
        in_turn = self._waiting.in_turn
        if len(self._named) and len(in_turn) > self._rows.num_free:
            places = {one: at for at, one in enumerate(self._named.tolist())}
            in_turn.sort(key=lambda one: places.get(one.request, len(places)))
        could_join = [one for one in in_turn if one.lease is None][: self._rows.num_free]
        wanted = self._held.wanted(could_join)
        wake_at = self._tiers.tend(wanted, in_turn[0].owner if in_turn else "", self._rows.num_short)
        for request in could_join:
            since_s = request.reload_wait_since_s
            if request.owner in self._tiers.fetches.coming:
                request.reload_wait_since_s = now if since_s is None else since_s
            elif since_s is not None:
                self._tiers.waited(since_s, bool(request.tokens))
                request.reload_wait_since_s = None
        return wake_at

    def write(self, num_changes: int, left_s: Callable[[], float] | None, is_new: bool) -> None:
        """At every decision, after steps are planned: write what will have to leave. `left_s`: seconds that
        the step on this device will still take; None: none runs. is_new: it was ordered now."""
        if not self._has_host:
            return
        before, now = self.state(num_changes), self._tiers.asks.now
        if is_new or self._to_write.is_due(before, now):
            self._to_write.asked(before, self._tiers.write(left_s or idle), now)

    def chosen(self, view: ArCandidates, choice: StepChoice, now: float) -> None:
        """A step was chosen: what it changes of KV is asked for at the next call, which is due at once."""
        if not self._has_host:
            return
        named = choice.order[choice.order >= view.num_rows]
        self._named = NO_INTS if view.ready[named].all() else view.request[named]
        if choice.moves:
            self._kept.reopen()
            self._kept.wake_at = now

    @property
    def wakes_at(self) -> float | None:
        """When a policy of the KV wishes to be asked again."""
        return soonest(self._kept.wake_at, self._to_write.wake_at, self._tiers.asks.wake_at)
