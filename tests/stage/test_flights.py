"""Steps in flight: whom they name, and what they waited for."""

from __future__ import annotations

import pytest

from antiphon.core.plans import ints
from antiphon.kv.transfers import Transfer
from antiphon.stage.policies import Flights
from antiphon.stage.step_maker import Flight


def flight(*, joined: tuple[int, ...] = (), waits: tuple[Transfer, ...] = ()) -> Flight:
    return Flight(ints([4, 2]), ints([11, 12]), ints([8, 9]), joined, waits)


def test_each_request_is_named_once() -> None:
    assert flight(joined=(12, 13)).named == (11, 12, 13)
    assert flight().row_of == {11: 4, 12: 2}


def test_a_copy_is_doubtful_until_it_is_there() -> None:
    there, coming, broken = Transfer("device", [1]), Transfer("device", [2]), Transfer("device", [3])
    coming.tickets.add(7)
    broken.has_failed = True
    assert flight(waits=(there, coming, broken)).doubtful == [coming, broken]
    coming.tickets.clear()
    assert flight(waits=(there, coming)).doubtful == []


def test_steps_end_in_the_order_of_their_reports() -> None:
    flights = Flights[Flight]()
    assert (len(flights), flights.last) == (0, None)
    first, second = flight(), flight()
    flights[3] = first
    flights[5] = second
    assert (len(flights), flights.last, 3 in flights, 4 in flights) == (2, 5, True, False)
    assert flights.pop(3) is first
    assert (flights[5], flights.last) == (second, 5)
    assert flights.pop(5) is second
    with pytest.raises(KeyError):
        flights.pop(5)
