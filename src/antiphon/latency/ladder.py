"""A quantity over a whole number, as straight lines between knots, and Algorithm 1 that finds the knots."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

import msgspec


class Ladder(msgspec.Struct, frozen=True):
    """values[i] at at[i]; between knots a straight line, before the first its value, after the last the line
    from the first knot to the last goes on. Ascending knots. Nothing at 0 and below.

    What f_D is made of (OmniServe Algorithm 1, line 5).
    """

    at: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        assert self.at, "a ladder has a knot"
        assert len(self.at) == len(self.values), "a value a knot"
        assert all(a < b for a, b in zip(self.at, self.at[1:], strict=False)), "knots ascend"

    def value(self, n: float) -> float:
        if n <= 0:
            return 0.0
        at, values = self.at, self.values
        i = bisect_right(at, n)
        if i == 0:
            return values[0]
        if i == len(at):
            return values[-1] + self._slope * (n - at[-1])
        share = (n - at[i - 1]) / (at[i] - at[i - 1])
        return values[i - 1] + share * (values[i] - values[i - 1])

    @property
    def _slope(self) -> float:
        """Behind the last knot: the ladder's own on the whole, since its last step may be flat or a spike."""
        if len(self.at) == 1:
            return 0.0
        return max((self.values[-1] - self.values[0]) / (self.at[-1] - self.at[0]), 0.0)

    @classmethod
    def of(cls, points: Iterable[tuple[int, float]]) -> Ladder:
        """Through these points, none of them twice, raised where one lies below what is left of it: more work
        never takes less."""
        at: list[int] = []
        values: list[float] = []
        for n, value in sorted(points):
            at.append(n)
            values.append(max(value, values[-1] if values else 0.0))
        return cls(tuple(at), tuple(values))

    def thinned(self, tolerance: float) -> Ladder:
        """As few of the knots as stay within `tolerance` of all of them (Ramer, Douglas and Peucker): what
        noise alone made is gone."""
        kept = {0, len(self.at) - 1}
        open_parts = [(0, len(self.at) - 1)]
        while open_parts:
            low, high = open_parts.pop()
            if high - low < 2:
                continue
            line = Ladder((self.at[low], self.at[high]), (self.values[low], self.values[high]))
            between = range(low + 1, high)
            far = max(between, key=lambda i: abs(line.value(self.at[i]) - self.values[i]))
            if abs(line.value(self.at[far]) - self.values[far]) > tolerance:
                kept.add(far)
                open_parts += [(low, far), (far, high)]
        return Ladder(tuple(self.at[i] for i in sorted(kept)), tuple(self.values[i] for i in sorted(kept)))


def interpolate(measure: Callable[[int], float], low: int, high: int, threshold: float) -> Ladder:
    """Algorithm 1 (MODELING): halve [low, high] until what lies between two measurements is flat, that is,
    differs by at most `threshold`; each spike costs about two measurements a halving.

    `measure` is asked once per number. Of a quantity that never falls, the ladder is nowhere off by more than
    `threshold` within [low, high].
    """
    known: dict[int, float] = {}

    def at(n: int) -> float:
        if n not in known:
            known[n] = measure(n)
        return known[n]

    def model(low: int, high: int) -> None:
        if at(high) - at(low) <= threshold or high - low <= 1:
            return
        mid = (low + high) // 2
        model(low, mid)
        model(mid + 1, high)

    model(low, high)
    return Ladder.of(known.items())
