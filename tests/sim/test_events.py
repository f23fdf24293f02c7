"""Virtual time: the order of what happens, and those who wait in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.people.acts import Wait
from antiphon.sim.events import Agenda, Rank
from antiphon.sim.links import Link, Network
from antiphon.sim.process import Process, Waiting

MOMENTS = st.tuples(st.sampled_from([0.0, 0.5, 1.0, 1.5]), st.sampled_from(list(Rank)))


@given(st.lists(MOMENTS, max_size=30))
def test_order_is_time_rank_and_arrival(moments: list[tuple[float, Rank]]) -> None:
    agenda, seen = Agenda(), []
    for number, (time_s, rank) in enumerate(moments):
        agenda.at(time_s, rank, lambda one=(time_s, rank, number): seen.append((agenda.now, *one)))
    agenda.run(9.0, lambda: False)
    wanted = sorted((time_s, rank, number) for number, (time_s, rank) in enumerate(moments))
    assert seen == [(time_s, time_s, rank, number) for time_s, rank, number in wanted]


def test_what_follows_at_the_same_moment_comes_in_its_rank() -> None:
    agenda, seen = Agenda(), []

    def decide() -> None:
        seen.append("decided")
        agenda.at(agenda.now, Rank.DEVICE, lambda: seen.append("device"))

    agenda.at(1.0, Rank.DECIDE, decide)
    agenda.at(1.0, Rank.SAMPLE, lambda: seen.append("sampled"))
    agenda.run(2.0, lambda: False)
    assert seen == ["decided", "device", "sampled"]


def test_time_is_up_before_what_happens_then() -> None:
    agenda, seen = Agenda(), []
    agenda.at(1.0, Rank.LINK, lambda: seen.append(1))
    agenda.run(1.0, lambda: False)
    assert (seen, agenda.now) == ([], 1.0)
    with pytest.raises(AssertionError, match="is past"):
        agenda.at(0.5, Rank.LINK, lambda: None)
    agenda.run(2.0, lambda: True)
    assert seen == []


def waits(agenda: Agenda, seen: list[float], *all_waits: Wait) -> Waiting:
    for wait in all_waits:
        yield wait
        seen.append(agenda.now)


def test_who_listens_is_rung_and_who_sleeps_is_not() -> None:
    agenda, seen, ended = Agenda(), [], []
    process = Process(agenda, lambda: ended.append(agenda.now))
    process.start(waits(agenda, seen, Wait(1.0), Wait(5.0, listens=True), Wait(6.0, listens=True)))
    for time_s in (0.5, 2.0):
        agenda.at(time_s, Rank.LINK, process.ring)
    agenda.run(9.0, lambda: False)
    assert seen == [1.0, 2.0, 6.0]
    assert ended == [6.0]
    process.ring()
    assert process.is_over


def test_who_is_stopped_does_nothing_more() -> None:
    agenda, seen = Agenda(), []
    process = Process(agenda)
    process.stop()
    process = Process(agenda)
    process.start(waits(agenda, seen, Wait(1.0)))
    process.stop()
    agenda.run(9.0, lambda: False)
    assert not seen


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), st.integers(0, 99))
def test_messages_arrive_later_and_in_order(times: list[float], seed: int) -> None:
    agenda, came = Agenda(), []
    link = Link(agenda, Network(0.1, 0.3), seed, "up", "somebody")

    def arrive(number: int) -> None:
        came.append((number, agenda.now))

    sent = sorted(times)
    for number, time_s in enumerate(sent):
        agenda.at(time_s, Rank.PERSON, lambda number=number: link.send(arrive, number))
    agenda.run(99.0, lambda: False)
    assert [number for number, _ in came] == list(range(len(sent)))
    assert all(at_s >= sent[number] + 0.1 for number, at_s in came)


def test_nothing_arrives_over_a_cut_link() -> None:
    agenda, came = Agenda(), []
    link = Link(agenda, Network(0.1), 0, "down")
    link.send(came.append, 1)
    link.cut()
    agenda.run(9.0, lambda: False)
    assert not came
