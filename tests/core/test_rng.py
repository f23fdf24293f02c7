"""Random streams are known by name."""

from __future__ import annotations

from antiphon.core.rng import stream


def test_streams_are_named() -> None:
    first = stream(7, "arrivals").random(4)
    assert (stream(7, "arrivals").random(4) == first).all()
    for other in (stream(8, "arrivals"), stream(7, "lengths"), stream(7, "arrivals", "a")):
        assert not (other.random(4) == first).any()
