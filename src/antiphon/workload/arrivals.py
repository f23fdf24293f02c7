"""When sessions begin: laws of arrival, each giving ascending times in seconds from the run's start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Tag, model_validator

from antiphon.workload.laws import Count, Law, NotNegative, Positive, Rng, Spec, one_of


class Rate(Spec):
    rate_per_s: Positive


class RateAndCv(Spec):
    rate_per_s: Positive
    cv: Positive


class Poisson(Spec):
    """Independent arrivals at a mean rate."""

    poisson: Rate

    def times(self, rng: Rng) -> Iterator[float]:
        return gamma_times(self.poisson.rate_per_s, 1.0, rng)


class Even(Spec):
    """One arrival every 1 / rate, the first at once."""

    uniform: Rate

    def times(self, rng: Rng) -> Iterator[float]:
        index = 0
        while True:
            yield index / self.uniform.rate_per_s
            index += 1


class GammaArrivals(Spec):
    """Independent gaps of a gamma law: cv 1 is Poisson, above it arrivals cluster."""

    gamma: RateAndCv

    def times(self, rng: Rng) -> Iterator[float]:
        return gamma_times(self.gamma.rate_per_s, self.gamma.cv, rng)


class Flash(Spec):
    """`size` arrivals every `every_s`, all within `spread_s`; in between, Poisson at `base_rate_per_s`."""

    size: Count
    every_s: Positive
    spread_s: NotNegative = 0.0
    base_rate_per_s: NotNegative = 0.0

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.spread_s >= self.every_s:
            raise ValueError(f"spread_s ({self.spread_s:g}) must be below every_s ({self.every_s:g})")
        return self


class Bursts(Spec):
    """Flash crowds (TokenFlow §7.3: bursts of size b)."""

    bursts: Flash

    def times(self, rng: Rng) -> Iterator[float]:
        law, index = self.bursts, 0
        while True:
            start = index * law.every_s
            crowd = [start + law.spread_s * float(share) for share in rng.random(law.size)]
            num_others = int(rng.poisson(law.base_rate_per_s * law.every_s))
            others = [start + law.every_s * float(share) for share in rng.random(num_others)]
            yield from sorted(crowd + others)
            index += 1


class Switched(Spec):
    """Periods of two kinds in turn, the first one on, with Poisson arrivals inside."""

    on_s: Law
    off_s: Law
    rate_per_s: Positive
    off_rate_per_s: NotNegative = 0.0


class OnOff(Spec):
    """Busy and quiet periods."""

    on_off: Switched

    def times(self, rng: Rng) -> Iterator[float]:
        law, start, is_on = self.on_off, 0.0, True
        while True:
            length = max(1e-3, (law.on_s if is_on else law.off_s).draw(rng))
            num = int(rng.poisson((law.rate_per_s if is_on else law.off_rate_per_s) * length))
            yield from sorted(start + length * float(share) for share in rng.random(num))
            start, is_on = start + length, not is_on


class Replayed(Spec):
    """These times, or those of the workload's trace; `speed` 2 plays them in half the time."""

    times_s: tuple[NotNegative, ...] | None = None
    speed: Positive = 1.0

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.times_s is not None and list(self.times_s) != sorted(self.times_s):
            raise ValueError("times_s must ascend")
        if self.times_s == ():
            raise ValueError("times_s is empty: nobody would come")
        return self


class Replay(Spec):
    """Given times. Without `times_s`, whoever draws hands those of the trace's sessions in as `times_s`."""

    replay: Replayed

    def times(self, rng: Rng) -> Iterator[float]:
        return (time_s / self.replay.speed for time_s in self.replay.times_s or ())


Arrivals = Annotated[
    Annotated[Poisson, Tag("poisson")]
    | Annotated[Even, Tag("uniform")]
    | Annotated[GammaArrivals, Tag("gamma")]
    | Annotated[Bursts, Tag("bursts")]
    | Annotated[OnOff, Tag("on_off")]
    | Annotated[Replay, Tag("replay")],
    one_of("a law of arrivals", ("poisson", "uniform", "gamma", "bursts", "on_off", "replay")),
]


def gamma_times(rate_per_s: float, cv: float, rng: Rng) -> Iterator[float]:
    """A renewal process whose gaps have mean 1 / rate and this coefficient of variation."""
    shape, now_s = cv**-2, 0.0
    while True:
        now_s += float(rng.gamma(shape, 1 / (rate_per_s * shape)))
        yield now_s
