"""Each media content is encoded once while anybody needs it, and kept while there is room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from antiphon.core.config import EncoderConfig
from antiphon.core.facts import NO_INTS, NO_TOKENS, StepDone, StepFailed
from antiphon.core.plans import EncodeStep
from antiphon.policy.base import Budget, StepChoice, StepView, Tier
from antiphon.stage.encode import EncodeScheduler
from fakes import toy
from stage.test_ar import BASELINE

A, B, C = (toy.tone(number) for number in range(3))


def scheduler(step_media: int = 4, cached_media: int = 1) -> EncodeScheduler:
    return EncodeScheduler("encoders", EncoderConfig(step_media, cached_media), BASELINE)


def planned(encode: EncodeScheduler, step: int) -> list[int]:
    order = encode.plan(step, 0.0)
    assert isinstance(order, EncodeStep)
    return [part.key for part in order.media]


def done(encode: EncodeScheduler, step: int) -> frozenset[int]:
    return encode.observe(StepDone("encoders", step, NO_INTS, NO_TOKENS, NO_INTS, NO_INTS))


def test_two_who_want_the_same_share_one_encoding() -> None:
    encode = scheduler()
    encode.want((A, A, B), 0)
    assert planned(encode, 0) == [A.key, B.key]
    encode.want((B,), 0)
    assert not encode.has_work, "B is in flight already"
    assert encode.plan(1, 0.0) is None
    assert done(encode, 0) == {A.key, B.key}
    assert encode.holds((A, B))
    encode.want((B,), 0)
    assert not encode.has_work
    encode.check_integrity()


def test_pinned_outputs_stay_and_the_least_recently_wanted_goes() -> None:
    encode = scheduler()
    encode.want((A, B, C), 0)
    planned(encode, 0)
    done(encode, 0)
    assert not encode.surplus()
    encode.unpin((A, B, C), 0)
    encode.want((A,), 0)
    dropped = encode.surplus()
    assert dropped == (B.key, C.key)
    assert encode.holds((A,))
    assert not encode.surplus()


def test_what_nobody_waits_for_is_not_encoded() -> None:
    encode = scheduler(step_media=1)
    encode.want((A, B), 0)
    encode.want((B,), 1)
    encode.unpin((A, B), 0)
    assert encode.pins == {B.key: 1}
    assert planned(encode, 0) == [B.key]
    assert not encode.has_work


def test_a_failed_step_loses_its_media_and_they_may_be_tried_again() -> None:
    encode = scheduler()
    encode.want((A,), 0)
    planned(encode, 0)
    assert encode.observe(StepFailed("encoders", 0, NO_INTS, NO_INTS, "no")) == {A.key}
    assert not encode.holds((A,))
    encode.unpin((A,), 0)
    encode.want((A,), 0)
    assert planned(encode, 1) == [A.key]
    assert encode.num_running == encode.num_in_flight == 1


def test_media_of_a_failed_step_are_tried_one_by_one() -> None:
    encode = scheduler()
    encode.want((A, B, C), 0)
    planned(encode, 0)
    encode.unpin((C,), 0)
    assert encode.observe(StepFailed("encoders", 0, NO_INTS, NO_INTS, "no")) == frozenset()
    encode.want((A,), 0)
    encode.check_integrity()
    assert encode.num_running == 2, "nobody waits for C any more, and A is wanted once"
    assert planned(encode, 1) == [A.key]
    assert planned(encode, 2) == [B.key]
    assert not encode.has_work
    assert encode.observe(StepFailed("encoders", 1, NO_INTS, NO_INTS, "no")) == {A.key}
    assert done(encode, 2) == {B.key}
    encode.check_integrity()


def test_a_suspect_that_nobody_waits_for_is_not_tried() -> None:
    encode = scheduler()
    encode.want((A, B), 0)
    planned(encode, 0)
    encode.observe(StepFailed("encoders", 0, NO_INTS, NO_INTS, "no"))
    encode.unpin((A, B), 0)
    assert not encode.has_work
    encode.check_integrity()


class Latest:
    """By lead, and what was wanted last first where that says nothing; `grants` tokens for each, in order."""

    name = "latest"

    def __init__(self, grants: list[int]) -> None:
        self.grants = grants
        self.budget: Budget | None = None

    def decide(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        assert np.isnan(view.lead_s).all(), "nothing that is heard comes of a medium"
        assert view.num_rows == 0
        assert view.row.tolist() == [-1] * len(view.ready)
        self.budget = budget
        order = np.lexsort((-view.request, view.lead_s))
        return StepChoice(order, "latest", counts=np.array(self.grants[: len(order)]))


def test_a_policy_orders_the_media_of_a_step() -> None:
    policy = Latest([1, 1, 1])
    encode = EncodeScheduler("encoders", EncoderConfig(2, 1), replace(BASELINE, step=policy))
    for number, medium in enumerate((A, B, C)):
        encode.want((medium,), request=number)
    assert planned(encode, 0) == [C.key, B.key], "as many as a step takes"
    assert policy.budget == Budget(2, 2)
    assert planned(encode, 1) == [A.key]
    encode.check_integrity()


def test_a_medium_without_a_grant_sits_out() -> None:
    encode = EncodeScheduler("encoders", EncoderConfig(2, 1), replace(BASELINE, step=Latest([0, 1, 1])))
    for number, medium in enumerate((A, B, C)):
        encode.want((medium,), request=number)
    assert planned(encode, 0) == [B.key, A.key]
    assert encode.plan(1, 0.0) is None
    assert encode.has_work


def test_a_medium_is_encoded_for_a_request_that_still_wants_it() -> None:
    """The slot of one that has left may be another response's meanwhile."""
    encode = scheduler()
    encode.want((A,), 5, slot=1, tier=Tier.BEST_EFFORT)
    encode.want((A,), 6, slot=2)
    encode.want((A,), 7, slot=3)
    assert seen_of(encode) == [(6, 2, Tier.LATENCY)]
    encode.unpin((A,), 6)
    assert seen_of(encode) == [(7, 3, Tier.LATENCY)]
    encode.unpin((A,), 7)
    assert seen_of(encode) == [(5, 1, Tier.BEST_EFFORT)]
    encode.unpin((A,), 5)
    assert not encode.has_work


def seen_of(encode: EncodeScheduler) -> list[tuple[int, int, int]]:
    """Request, slot and tier of each medium, as policies see them."""
    encode.tell_time(0.0)
    view, _ = encode.choose(0.0)
    return list(zip(view.request.tolist(), view.slots.tolist(), view.tier.tolist(), strict=True))
