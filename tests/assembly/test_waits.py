"""Why a request waits is what was said in this call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from antiphon.assembly.story import Cause
from antiphon.assembly.waits import Waits
from antiphon.policy.base import DeviceChoice, Hold, StepChoice

HEADS = [SimpleNamespace(unit="thinker"), SimpleNamespace(unit="talker")]
VIEW = SimpleNamespace(request=np.array([1, 2]), could_run=np.array([True, True]))
FIRST = StepChoice(np.array([0]), "oldest first")


def passed_over(waits: Waits) -> tuple[Cause | None, str]:
    return waits._passed_over("thinker", 2, Cause.ROW)  # pyright: ignore[reportPrivateUsage]


def called(waits: Waits, asked: tuple[str, ...], chosen: int) -> None:
    """A call in which the device asked these units how urgent they are, and chose one."""
    for unit in asked:
        waits.said("step", unit, VIEW, FIRST)
    waits.said("device", "thinker+talker", HEADS, DeviceChoice(chosen, reason="runs dry"))
    waits.planned((), cast(Any, None))


def test_a_unit_that_was_not_asked_waits_for_its_device_whatever_it_said_before() -> None:
    waits = Waits()
    called(waits, ("thinker", "talker"), 0)
    assert passed_over(waits) == (Cause.ORDER, "oldest first")
    called(waits, ("talker",), 1)
    assert passed_over(waits) == (Cause.DEVICE, "talker goes first: runs dry")


def test_what_was_held_in_another_call_is_told_no_more() -> None:
    waits = Waits()
    waits.said("pace", "thinker", VIEW, Hold(np.array([False, True]), "far ahead", 9.0))
    called(waits, ("thinker", "talker"), 1)
    assert passed_over(waits) == (Cause.HELD, "far ahead")
    called(waits, ("talker",), 1)
    assert passed_over(waits) == (Cause.DEVICE, "talker goes first: runs dry")
