"""What a policy answers is made anew, of plain values, or it is nonsense."""

from __future__ import annotations

from dataclasses import fields
from math import inf, isnan, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from antiphon.assembly.answers import (
    CHECKS,
    MAX_TEXT,
    NonsenseError,
    check_admission,
    check_device,
    check_hold,
    check_replica,
    check_selection,
    check_step,
)
from antiphon.policy.base import DeviceChoice, Hold, Refuse, StepChoice
from antiphon.policy.memory import Selection

STAGE: Any = SimpleNamespace(ready=np.ones(3, np.bool_), num_rows=2)
KV: Any = SimpleNamespace(groups=("full", "window"), num_blocks=400)
HEADS = SimpleNamespace(urgency=0), SimpleNamespace(urgency=0)
INTS = np.array([1, 0])


class OwnText(str):
    __slots__ = ()


class OwnChoice(StepChoice):
    """Made otherwise than what it is a kind of."""

    def __init__(self) -> None:
        super().__init__(INTS, OwnText("own"))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_columns_are_int64(dtype: Any) -> None:
    own = INTS.astype(dtype)
    made = check_step(STAGE, StepChoice(own, "", counts=own + dtype(1), urgency=own, preempt=own))
    for column in (made.order, made.counts, made.urgency, made.preempt):
        assert column is not None
        assert column.dtype == np.int64
    assert made.order.tolist() == [1, 0]


def test_what_a_policy_changes_afterwards_changes_nothing() -> None:
    order, keeps, held = INTS.copy(), np.array([True]), np.zeros(3, np.bool_)
    step = check_step(STAGE, StepChoice(order, "", preempt=order[:1], keeps=keeps))
    hold = check_hold(STAGE, Hold(held, "", spared=held))
    reach = {"a": 3}
    selection = check_selection(KV, Selection((), 1, "", reach=reach))
    order[:], keeps[:], held[:] = 63, False, True
    reach["a"] = -1
    assert (step.order.tolist(), step.preempt.tolist()) == ([1, 0], [1])
    assert step.keeps is not None
    assert step.keeps.all()
    assert hold.held is not None
    assert not hold.held.any()
    assert hold.spared is not None
    assert not hold.spared.any()
    assert selection.reach == {"a": 3}


def test_what_a_mask_hides_is_looked_at() -> None:
    masked = np.ma.masked_array(np.array([0, 99]), mask=[False, True])
    with pytest.raises(NonsenseError, match="candidate 99 is not one of 3"):
        check_step(STAGE, StepChoice(masked, ""))


def test_subclasses_become_the_plain_class() -> None:
    made = check_step(STAGE, OwnChoice())
    assert type(made) is StepChoice
    assert type(made.reason) is str


def test_numbers_become_those_of_python() -> None:
    """As a record reads them."""
    stops: Any = np.bool_(True)
    step = check_step(STAGE, StepChoice(INTS, "", stops=stops, wake_at=7))
    assert (step.stops, type(step.stops), type(step.wake_at)) == (True, bool, float)
    refuse = check_admission(STAGE, Refuse("full", predicted_s=3, retry_s=np.float32(2)))  # type: ignore[arg-type]
    assert refuse is not None
    assert (type(refuse.predicted_s), type(refuse.retry_s)) == (float, float)
    assert check_admission(STAGE, None) is None
    unknown = check_admission(STAGE, Refuse("full"))
    assert unknown is not None
    assert isnan(unknown.predicted_s)
    device = check_device(HEADS, DeviceChoice(np.int8(1)))  # type: ignore[arg-type]
    assert type(device.index) is int
    assert type(check_replica(SimpleNamespace(loads=(0, 0)), np.int8(1))) is int


@pytest.mark.parametrize(
    ("count", "made"), [(np.uint8(200), 200), (np.int8(100), 100), (np.uint64(1), 1), (10**40, 800)]
)
def test_a_count_of_blocks_is_bounded_by_the_pool(count: Any, made: int) -> None:
    selection = check_selection(KV, Selection((), count, "", reach={"a": np.uint8(3)}))  # type: ignore[dict-item]
    assert (selection.count, type(selection.count)) == (made, int)
    assert selection.reach is not None
    assert type(selection.reach["a"]) is int


def test_kv_groups_are_read_once() -> None:
    groups: Any = (name for name in ("window", "full", "window"))
    assert check_selection(KV, Selection((), 1, "", groups=groups)).groups == ("full", "window")


def test_owners_are_taken_as_they_are_needed() -> None:
    made = check_selection(KV, Selection((name for name in (OwnText("a"), None)), 1, ""))  # type: ignore[misc]
    owners = iter(made.owners)
    assert type(next(owners)) is str
    with pytest.raises(NonsenseError, match="owners: None is not a name"):
        next(owners)


def test_a_reason_can_be_encoded_and_read() -> None:
    assert check_hold(STAGE, Hold(None, "a\ud800b")).reason == "a?b"
    assert len(check_hold(STAGE, Hold(None, "x" * 10_000)).reason) == MAX_TEXT


class Unseen:
    """It cannot be shown."""

    def __repr__(self) -> str:
        raise KeyError


@pytest.mark.parametrize(
    ("decision", "answer", "said"),
    [
        ("step", StepChoice(INTS, None), "reason: None is not text"),  # type: ignore[arg-type]
        ("step", StepChoice(INTS, Unseen()), "reason: <Unseen"),  # type: ignore[arg-type]
        ("step", StepChoice(INTS, "", stops=np.ones(2)), "stops: array"),  # type: ignore[arg-type]
        ("step", StepChoice(INTS, "", moves=1), "moves: 1 is neither"),  # type: ignore[arg-type]
        ("step", StepChoice(INTS, "", urgency=INTS.astype(np.uint64) << np.uint64(63)), "urgency: 92233"),
        ("pace", Hold(None, "", spared=np.ones(2, np.bool_)), "spared: it must be a mask over 3"),
        ("pace", Hold(None, "", wake_at=True), "wake_at: True is not a time"),
        ("pace", Hold(None, "", wake_at=10**400), "wake_at: 1000"),
        ("pace", Hold(None, "", wake_at=-1e16), "wake_at: -1e\\+16 is not a time"),
        ("pace", Hold(None, "", wake_at="5"), "wake_at: '5' is not a time"),  # type: ignore[arg-type]
        ("admission", Refuse(5), "reason: 5 is not text"),  # type: ignore[arg-type]
        ("admission", Refuse("", predicted_s=None), "predicted_s: None is not a time"),  # type: ignore[arg-type]
        ("admission", Refuse("", predicted_s="x"), "predicted_s: 'x' is not a time"),  # type: ignore[arg-type]
        ("admission", Refuse("", predicted_s=inf), "predicted_s: inf is not a time"),
        ("admission", Refuse("", retry_s=10**400), "retry_s: 1000"),
        ("admission", Refuse("", retry_s=nan), "retry_s: nan is not a time to wait"),
        ("admission", Refuse("", retry_s=-1), "retry_s: -1.0 is not a time to wait"),
        ("evict", Selection((), 1, "", reach=[1]), "reach: it must map"),  # type: ignore[arg-type]
        ("evict", Selection((), 1, "", reach={"a": -2}), "reach: -2 is not a number of blocks"),
        ("fetch", Selection((), 1, "", is_first=1), "is_first: 1 is neither"),  # type: ignore[arg-type]
        ("write", Selection((), 1, "", displaces="no"), "displaces: 'no' is neither"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_made_plain_is_nonsense(decision: str, answer: Any, said: str) -> None:
    with pytest.raises(NonsenseError, match=said):
        CHECKS[decision](STAGE if decision in ("step", "pace", "admission") else KV, answer)


def test_nothing_of_a_choice_is_lost() -> None:
    """Every field of it is said otherwise than by default, and is there afterwards."""
    mask = np.ones(1, np.bool_)
    said = StepChoice(INTS[:2], "why", INTS[:2] + 1, INTS[:2], INTS[:1], mask, True, 7.0, True)
    made = CHECKS["step"](STAGE, said)
    for field in fields(StepChoice):
        assert np.array_equal(getattr(made, field.name), getattr(said, field.name)), field.name


def test_every_field_is_looked_at() -> None:
    """Of each kind of answer: who adds one checks it."""
    known = {StepChoice: 9, Hold: 4, Refuse: 3, DeviceChoice: 3, Selection: 8}
    assert {kind: len(fields(kind)) for kind in known} == known
