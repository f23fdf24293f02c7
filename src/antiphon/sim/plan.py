"""How many conversations a machine carries within its bounds, and what breaks first: a search over runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

from antiphon.metrics.log import Event, RunStarted
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.bottleneck import DECIDING, StageLoad, bottleneck, device_loads, stage_loads
from antiphon.sim.run import Setup, simulate
from antiphon.workload.load import changed


@dataclass(frozen=True, slots=True)
class Tried:
    """One run with so many conversations at a time.

    missed   the bounds that it missed, a sentence each; empty: it held them
    devices  share of the time that each was busy; "deciding" is the process that decides
    short    where it was shortest, in words
    """

    conversations: int
    figures: dict[str, float]
    missed: tuple[str, ...]
    loads: tuple[StageLoad, ...]
    devices: dict[str, float]
    short: str

    @property
    def holds(self) -> bool:
        return not self.missed


def run_with(
    setup: Setup,
    conversations: int,
    duration_s: float,
    slo: Slo,
    started: RunStarted,
    watch: Callable[[Event], None] | None = None,
) -> Tried:
    """The setup's workload as a closed loop of so many, for so long; `watch` sees its events."""
    load = {"closed": {"concurrency": conversations, "duration_s": duration_s}}
    tried = replace(setup, workload=changed(setup.workload, {"load": load}))
    outcome = simulate(tried, started, watch)
    found = figures(fold(outcome.events), slo)
    units = setup.engine.node.placed
    loads, busy = stage_loads(outcome.events, units), device_loads(outcome.events, units)
    busy[DECIDING] = outcome.deciding_share
    missed = tuple(slo.misses(found))
    return Tried(conversations, found, missed, loads, busy, bottleneck(loads, busy, units))


def search(attempt: Callable[[int], Tried], first: int, most: int) -> Iterator[Tried]:
    """Doubles from `first` until a bound is missed (or `most` holds them), then halves the gap until the
    answer is known within 1/32. Every try is yielded; of those that hold, the highest is the answer."""
    good, bad, number = 0, most + 1, min(first, most)
    while number > good and number < bad:
        tried = attempt(number)
        yield tried
        if tried.holds:
            good = number
        else:
            bad = number
        if bad - good <= _known_within(good):
            return
        number = min(2 * good, most) if bad > most and good else (good + bad) // 2


def num_left(tried: Sequence[Tried]) -> int | None:
    """How many more tries the search needs at most; None before a bound was missed: it doubles until then."""
    bad = min((one.conversations for one in tried if not one.holds), default=None)
    if bad is None:
        return None
    good = max((one.conversations for one in tried if one.holds), default=0)
    return max(0, ceil(log2((bad - good) / _known_within(good))))


def _known_within(good: int) -> int:
    """How far apart the highest number that holds and the lowest that does not may stay."""
    return max(1, good // 32)
