"""Encoder outputs for readers of another process: sent once, dropped with their last maker, sent again by
another maker when the first is lost."""

from __future__ import annotations

from typing import cast

from antiphon.core.conversation import AudioPart
from antiphon.core.plans import DropMedia, SendMedia
from antiphon.flow.media import MediaRoutes
from antiphon.flow.stages import Path, Stages

ONE, TWO = AudioPart.of(b"one"), AudioPart.of(b"two")
HERE, THERE, OTHER = Path("e0", "t0"), Path("e0", "t1"), Path("e1", "t1")


class Apart:
    """Unit t1 lives in a process of its own."""

    def is_local(self, source: str, target: str) -> bool:
        return target != "t1"


def routes() -> MediaRoutes:
    return MediaRoutes(cast(Stages, Apart()))


def test_what_is_read_beside_its_encoder_is_not_sent() -> None:
    made = routes()
    assert made.bring(HERE, (ONE,)) is None
    assert made.has_arrived(HERE, (ONE,))


def test_what_is_read_elsewhere_is_sent_once() -> None:
    made = routes()
    assert made.bring(THERE, (ONE, TWO)) == SendMedia("e0", "t1", (ONE.key, TWO.key))
    assert made.bring(THERE, (ONE,)) is None
    assert not made.has_arrived(THERE, (ONE,))
    made.arrived("t1", (ONE.key, 7))
    made.arrived("t9", (ONE.key,))
    assert made.has_arrived(THERE, (ONE,))
    assert not made.has_arrived(THERE, (ONE, TWO))
    assert not made.has_arrived(OTHER, (AudioPart.of(b"three"),))


def test_a_copy_goes_with_the_last_that_made_it() -> None:
    made = routes()
    made.bring(THERE, (ONE, TWO))
    assert made.bring(OTHER, (ONE,)) is None, "the other encoder's is there already"
    keys = ONE.key, TWO.key
    assert made.drop("e0", keys) == [DropMedia("e0", keys), DropMedia("t1", (TWO.key,))]
    assert made.drop("e1", (ONE.key,)) == [DropMedia("e1", (ONE.key,)), DropMedia("t1", (ONE.key,))]
    assert made.drop("e1", (ONE.key,)) == [DropMedia("e1", (ONE.key,))]


def test_what_a_lost_encoder_was_to_send_another_sends() -> None:
    made = routes()
    made.bring(THERE, (ONE, TWO))
    made.bring(OTHER, (ONE,))
    assert made.lose("e0") == [DropMedia("t1", (TWO.key,)), SendMedia("e1", "t1", (ONE.key,))]
    assert made.lose("e0") == []


def test_what_has_arrived_is_not_sent_again() -> None:
    made = routes()
    made.bring(THERE, (ONE,))
    made.bring(OTHER, (ONE,))
    made.arrived("t1", (ONE.key,))
    assert made.lose("e0") == []
    assert made.has_arrived(THERE, (ONE,))


def test_a_reader_that_is_lost_is_sent_everything_again() -> None:
    made = routes()
    made.bring(THERE, (ONE,))
    assert made.lose("t1") == []
    assert made.bring(THERE, (ONE,)) == SendMedia("e0", "t1", (ONE.key,))
