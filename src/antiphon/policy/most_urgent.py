"""LiveServe's choice among stages that share a device: the most urgent work first (§4.1, across engines)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from antiphon.core.errors import ConfigError
from antiphon.policy.base import FIRST_SOUND, IDLE, RUNS_DRY, URGENCIES, DeviceChoice, Head

IN_TURN = "in turn with first sounds"
"""Why work goes first that may run dry and can wait, or of which no urgency is known."""


class MostUrgent:
    """The stage whose choice begins with the most urgent class; well-buffered work yields. One whose policy
    tells no urgency counts as if it had a first sound to make (§6). Equals take turns, in pipeline order, and
    those behind one that would run dry are not asked: nothing is more urgent.

    spare_s    least lead with which replies that may run dry share the device with first sounds, in turns;
               inf: first sounds wait for them (the order of Algorithm 1)
    yields_s   first sounds wait so long at most for those with less, and then take one turn with them, the
               nearest to it first of those that can run: each needs few turns, and where the device has too
               much to do there is always a reply with less; inf: for as long as it takes
    """

    name = "most-urgent"

    def __init__(self, spare_s: float = inf, yields_s: float = inf) -> None:
        for name, value in (("spare_s", spare_s), ("yields_s", yields_s)):
            if not value > 0:
                raise ConfigError(f"{name} is {value}; it must be above 0")
        self._spare_s, self._yields_s = spare_s, yields_s
        self.events = {"others_yield": 0, "urgency_unknown": 0}
        """others_yield: other stages with work, each time that one is chosen whose reply would run dry."""
        self._all_asked_at = -inf
        """When nothing kept first sounds from the device."""
        self._named: tuple[int, int | None, float] | None = None
        """The place whose first sounds were to take the turn, the one that had stepped before, and when: the
        turn is over if that place steps."""

    def decide(self, heads: Sequence[Head], last: int | None, now: float) -> DeviceChoice:
        after = -1 if last is None else last
        could_not = self._could_not(last, now)
        is_owed = now > self._all_asked_at + self._yields_s
        chosen, least, reason, nearest = 0, IDLE + 1, "", -1
        for at in sorted(range(len(heads)), key=lambda at: heads[at].place <= after):
            told = heads[at].urgency
            counted = FIRST_SOUND if is_owed and told == RUNS_DRY else self._counted(heads[at], told)
            if told == FIRST_SOUND:
                nearest = max(nearest, at)
            if counted < least:
                chosen, least = at, counted
                reason = URGENCIES[counted] if counted == told else IN_TURN
            if least == RUNS_DRY:
                self.events["others_yield"] += len(heads) - 1
                return DeviceChoice(chosen, reason=reason)
        is_next = reason != IN_TURN
        if is_owed and (is_next or could_not) and nearest >= 0:
            self._named = heads[nearest].place, last, now
            return DeviceChoice(nearest, reason=URGENCIES[FIRST_SOUND])
        if not could_not and (is_next or nearest < 0):
            self._all_asked_at = now
        return DeviceChoice(chosen, reason=reason)

    def _could_not(self, last: int | None, now: float) -> bool:
        """Is it asked again at once, since the stage that was to take the turn of first sounds cannot run? If
        that one has stepped, the turn is over."""
        if self._named is None:
            return False
        place, before, at = self._named
        if now == at and (last != place or last == before):
            return True
        self._named = None
        if last == place:
            self._all_asked_at = now
        return False

    def _counted(self, head: Head, urgency: int | None) -> int:
        """What a head's urgency counts as."""
        if urgency is None:
            self.events["urgency_unknown"] += 1
            return FIRST_SOUND
        can_wait = urgency == RUNS_DRY and self._spare_s < inf and head.slack_s >= self._spare_s
        return FIRST_SOUND if can_wait else urgency
