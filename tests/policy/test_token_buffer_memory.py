"""TokenFlow §5: whose KV is brought before it goes on, whose is written, and whose leaves."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest

from antiphon.policy.base import Place, StepView
from antiphon.policy.memory import NOTHING, KvState, LaneState
from antiphon.policy.token_buffer import SOON_S, TokenBuffer
from policy.readers import NOW, Kv, Takes, crowded, told
from policy.views import stage


def test_a_preempted_request_waits_for_a_look_at_where_its_kv_is() -> None:
    policy = TokenBuffer()
    assert policy.decide_fetch(Kv().view, NOW).wake_at is None, "nobody goes on: an idle node sleeps"
    view = stage(1, 2, lead_s=[3.0, 0.5], begun=[1, 1], request=[7, 8])
    hold = policy.decide_pace(view, NOW)
    assert hold.held is not None
    assert hold.held.tolist() == [False, True]
    assert hold.wake_at == NOW + SOON_S
    kv = Kv(requests={"eight #8": 8, "seven": 7}, waits=("eight #8",), away={"eight #8": 4})
    selection = policy.decide_fetch(kv.view, NOW)
    assert list(selection.owners) == ["eight #8"]
    assert policy.events["brought"] == 1
    assert policy.decide_pace(view, NOW + 0.01).held is not None, "nobody is told that it is known now"
    assert policy.decide_pace(view, hold.wake_at or 0.0).held is None
    told(policy, stage(2, 2, lead_s=[3.0, 0.5], begun=[1, 1], request=[7, 8]))
    assert not policy._brings, "it has its row"


def test_what_lost_its_row_within_its_prompt_is_brought_what_it_had_computed() -> None:
    """Blocks run short for two prompts, and one gives way. Then a reader who is far ahead has to, for it."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    full: dict[str, Any] = {"num_free": 0, "context": [4, 4], "held": [1, 1], "lead_s": [nan, nan]}
    choice = told(policy, stage(2, 2, request=[7, 8], reading=[1, 1], **full))
    assert choice.preempt.tolist() == [1]
    crowd: dict[str, Any] = {"begun": [1, 0], "lead_s": [9.0, nan], "rate": [10.0, 10.0], "num_blocks": 12}
    view = stage(1, 2, request=[7, 8], held=[8, 0], needs=[0, 6], num_free=4, **crowd)
    hold = policy.decide_pace(view, NOW)
    assert hold.held is not None
    assert hold.held.tolist() == [False, True]
    kv = Kv(requests={"eight #8": 8, "seven": 7}, waits=("eight #8",), away={"eight #8": 4})
    assert list(policy.decide_fetch(kv.view, NOW).owners) == ["eight #8"]
    assert policy.events["brought"] == 1
    told(policy, stage(2, 2, request=[7, 8], lead_s=[nan, nan]))
    assert policy.decide_pace(stage(1, 2, request=[7, 8]), NOW + 1.0).held is None, "it has had its row since"


@pytest.mark.parametrize("has_kv", [True, False])
def test_it_asks_again_while_there_is_kv_of_a_preempted_request(has_kv: bool) -> None:
    """Also where the stage comes to rest, and is not looked at again."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    told(policy, stage(1, 2, lead_s=[3.0, 0.5], begun=[1, 1], request=[7, 8]))
    kv = Kv(requests={"eight #8": 8}, states={"eight #8": KvState.PAUSED})
    assert policy.decide_fetch(kv.view, NOW).wake_at == NOW + SOON_S
    later = Kv(requests={"eight": 8}, states={"eight": KvState.RUNNING}) if has_kv else Kv()
    assert policy.decide_fetch(later.view, NOW).wake_at is None, "it runs, or is over"


def test_nothing_else_is_computed_from_its_start_while_what_goes_on_is_looked_at() -> None:
    """A round in which all rows give way leaves the stage without any for a moment."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    columns: dict[str, Any] = {"begun": [1] * 4, "rate": [10.0] * 4, "num_free": 0}
    columns |= {"num_blocks": 20, "block_size": 16}
    crowd = stage(2, 4, lead_s=[9.0, 9.0, 0.1, 0.2], held=[8, 8, 0, 0], needs=[0, 0, 8, 8], **columns)
    choice = told(policy, crowd)
    assert choice.preempt.tolist() == [0, 1]
    assert sorted(choice.order.tolist()) == [2, 3]
    nobody = stage(
        0,
        4,
        lead_s=[9.0, 9.0, 0.1, 0.2],
        held=[0] * 4,
        needs=[8] * 4,
        request=[100, 101, 102, 103],
        **columns,
    )
    assert sorted(told(policy, nobody).order.tolist()) == [2, 3], "and not the oldest, whose KV left"
    policy.decide_fetch(Kv(requests={"c": 102}, waits=("c",), away={"c": 8}).view, NOW)
    assert sorted(told(policy, nobody, NOW + 0.4).order.tolist()) == [2, 3]


def test_what_gave_way_does_not_take_the_room_of_what_is_still_coming() -> None:
    """It would give way again as soon as that is there, and neither would ever get a token."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    assert told(policy, crowded()).preempt.tolist() == [0]
    columns: dict[str, Any] = {"lead_s": [9.0, nan], "begun": [1, 0], "rate": [10.0] * 2, "num_blocks": 20}
    columns |= {"held": [0, 0], "needs": [8, 6], "num_free": 0, "request": [100, 102], "ready": [1, 0]}

    def order(place: Place) -> list[int]:
        return told(policy, stage(0, 2, place=[Place.HOST, place], **columns)).order.tolist()

    assert order(Place.COMING) == [1], "a session's past, for the first word"
    assert order(Place.DEVICE) == [1, 0], "it waits for something else, and one must run"


def test_a_look_that_finds_nothing_to_bring_changes_nothing_before_the_hold_ends() -> None:
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    columns: dict[str, Any] = {"begun": [1] * 4, "rate": [10.0] * 4, "num_free": 0, "num_blocks": 20}
    columns |= {"lead_s": [9.0, 9.0, 0.1, 0.2], "request": [100, 101, 102, 103], "block_size": 16}

    def nobody() -> StepView:
        return stage(0, 4, held=[0] * 4, needs=[8] * 4, **columns)

    told(policy, stage(2, 4, held=[8, 8, 0, 0], needs=[0, 0, 8, 8], **columns))
    told(policy, nobody())
    policy.decide_fetch(Kv().view, NOW + SOON_S / 2)
    assert policy._brings == dict.fromkeys((100, 101, 102, 103), False), "nothing is left of their KV"
    assert sorted(told(policy, nobody(), NOW + SOON_S / 2).order.tolist()) == [2, 3]


def test_what_goes_on_is_brought_before_what_others_have_there() -> None:
    policy = TokenBuffer()
    assert not policy.decide_fetch(Kv().view, NOW).is_first, "all find room"
    told(policy, crowded())
    assert policy.decide_fetch(Kv().view, NOW).is_first


def test_what_is_computed_sooner_than_brought_is_not_brought() -> None:
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    crowd: dict[str, Any] = {"cost": Takes(0.1), "begun": [1] * 3, "rate": [5.0] * 3}

    def has_it_go_on(now: float, left_s: float = 0.1) -> bool:
        """Is it held? left_s: to read."""
        view = crowded(**crowd, lead_s=[9.0, 3.0, left_s])
        told(policy, view, now)
        return not view.ready[2]

    assert has_it_go_on(NOW), "for a look at its KV"
    kv = Kv(requests={"c": 102}, waits=("c",), away={"c": 4}, back=LaneState(0, 0.0, 0.1))
    assert list(policy.decide_fetch(kv.view, NOW).owners) == []
    assert policy.events["computed"] == 1
    quick = Kv(requests={"c": 102}, waits=("c",), away={"c": 4}, back=LaneState(0, 0.0, 0.0001))
    for later_s in (0.0, 0.6, 1.2):
        assert later_s == 0.0 or not has_it_go_on(NOW + later_s), "whatever rounds come, it is not held again"
        assert list(policy.decide_fetch(quick.view, NOW + later_s).owners) == [], (
            "it does not change its mind"
        )
    has_it_go_on(NOW + 1.8, left_s=8.9)  # others do
    assert has_it_go_on(NOW + 2.4)
    assert list(policy.decide_fetch(quick.view, NOW + 2.4).owners) == ["c"], (
        "chosen again, it is looked at anew"
    )


def test_what_is_on_its_way_over_a_slow_link_is_not_given_up_for_another() -> None:
    """A round later it is still to come; another that would take as long is not begun in its place."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    columns: dict[str, Any] = {
        "begun": [1] * 4,
        "rate": [0.3] * 4,
        "held": [8, 8, 0, 0],
        "needs": [0, 0, 6, 6],
        "age_s": [9.0, 8.0, 7.0, 6.0],
        "tokens": [1, 1, 960, 96],
        "num_blocks": 20,
        "num_free": 4,
        "cost": Takes(1.0),
    }
    crowd = stage(2, 4, lead_s=[30.0, 0.2, 0.1, 0.1], **columns)
    told(policy, crowd)
    assert next(iter(policy._plan.resumes.requests)) == 102  # type: ignore[union-attr]
    kv = Kv(requests={"c": 102, "d": 103}, waits=("c", "d"), away={"c": 6, "d": 6})
    assert "c" in list(policy.decide_fetch(kv.view, NOW).owners)
    kv.back = LaneState(6, 2.0, 0.3)
    policy.decide_fetch(kv.view, NOW)
    later = stage(
        1,
        3,
        lead_s=[0.0, 0.1, 0.0],
        request=[101, 102, 103],
        ready=[1, 0, 1],
        **{name: column[1:] if isinstance(column, list) else column for name, column in columns.items()},
    )
    told(policy, later, NOW + 0.5)
    assert next(iter(policy._plan.resumes.requests)) == 102  # type: ignore[union-attr]


def knowing() -> TokenBuffer:
    """Requests 1 to 4 have 1 to 4 s left to read."""
    policy = TokenBuffer()
    told(policy, stage(4, 4, request=[1, 2, 3, 4], lead_s=[1.0, 2.0, 3.0, 4.0], begun=[1] * 4))
    return policy


def test_what_nobody_runs_on_leaves_first_and_then_the_furthest_ahead() -> None:
    kv = Kv({"a": 1, "b": 2, "c": 4}, order=("a", "b", "idle", "c"), num_free=0, num_wanted=3)
    selection = knowing().decide_evict(kv.view, NOW)
    assert list(selection.owners) == ["idle", "c", "b", "a"]
    assert selection.count == 3 + 2, "and a thirty-second of the device ahead"
    assert knowing().decide_evict(Kv().view, NOW) is NOTHING


def test_the_only_copy_of_what_was_preempted_does_not_leave_the_host() -> None:
    states = {"a": KvState.PAUSED, "b": KvState.RUNNING, "past": KvState.RESTING, "idle": KvState.RESTING}
    kv = Kv(
        {"a": 1, "b": 2},
        order=("a", "past", "b", "idle"),
        states=states,
        tier="host",
        num_free=0,
        num_wanted=3,
    )
    assert list(knowing().decide_evict(kv.view, NOW).owners) == ["b", "past", "idle"], "copies first"


def test_the_furthest_ahead_is_written_first_as_much_as_goes_beside_the_step() -> None:
    kv = Kv({"a": 1, "b": 3, "c": 2}, order=("a", "idle", "b", "c"), step_s=0.0125)
    selection = knowing().decide_write(kv.view, NOW)
    assert (list(selection.owners), selection.count) == (["b", "c", "a"], 12)
    policy, kv.step_s = knowing(), nan
    assert policy.decide_write(kv.view, NOW).count == 1
    assert policy.events["step_unknown"] == 1, "counted where it is decided without it"
    assert TokenBuffer(write=False).decide_write(kv.view, NOW) is NOTHING
    assert knowing().decide_write(Kv({"a": 1}, order=("a",), num_below=0).view, NOW) is NOTHING
