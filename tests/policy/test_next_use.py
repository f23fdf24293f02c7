"""LiveServe §5: what leaves, and what is written early."""

from __future__ import annotations

from math import inf, nan

import pytest

from antiphon.core.errors import ConfigError
from antiphon.policy.memory import NOTHING, KvState, LaneState, Selection
from antiphon.policy.next_use import LOOK, NextUse
from policy.sessions import NOW, Held, Kv, known


def evicted(kv: Kv, policy: NextUse | None = None) -> Selection:
    return (policy or NextUse()).decide_evict(kv.view, NOW)


def test_what_is_needed_last_leaves_first_and_a_little_ahead() -> None:
    kv = Kv(known(*"ab", due_s=110.0), ("a", "b"), num_wanted=7, num_free=3)
    selection = evicted(kv)
    assert (list(selection.owners), selection.count) == (["a", "b"], 14)
    assert evicted(Kv(num_free=160)) is NOTHING
    assert evicted(Kv(num_free=4, num_below=0)) is NOTHING


def test_whose_turn_is_coming_is_protected_up_to_a_share_of_the_blocks() -> None:
    kv = Kv(known(*"abcd"), ("a",), ("b", "c", "d"), num_free=0, away={"b": 30})
    assert list(evicted(kv).owners) == ["a"]
    assert list(evicted(kv, NextUse(protects=50 / 160)).owners) == ["a", "d"]
    assert list(evicted(kv, NextUse(protects=0.0)).owners) == ["a", "b", "c", "d"]


def test_what_is_protected_goes_for_a_request_if_nothing_else_does_and_that_is_counted() -> None:
    due = {"a": 110.0, "soon": 103.0, "later": 109.0, "last": 109.5}
    kv = Kv({one: Held(due_s=at) for one, at in due.items()}, ("a",), ("soon", "later", "last"), num_free=0)
    policy, kv.num_wanted = NextUse(), 12
    owners = iter(evicted(kv, policy).owners)
    assert next(owners) == "a"
    kv.num_free = 10
    assert next(owners) == "last"
    assert policy.events["protected_taken"] == 1
    kv.num_free = 20
    assert [*owners] == [], "there is room for the request"
    kv.incoming = {"soon": 12}
    assert "last" not in evicted(kv, policy).owners, "no request waits for it"
    assert policy.events["protected_taken"] == 1


@pytest.mark.parametrize("tier", ["device", "host"])
def test_kv_of_a_reply_that_was_preempted_does_not_go_for_what_no_request_waits_for(tier: str) -> None:
    owners = {
        "gave way": Held(due_s=NOW, state=KvState.PAUSED, host=10),
        "unknown": Held(host=10),
        "soon": Held(due_s=101.0),
    }
    kv = Kv(owners, ("gave way", "unknown"), tier=tier, num_free=0, num_wanted=5, incoming={"soon": 5})
    assert list(evicted(kv).owners) == ["unknown"]


@pytest.mark.parametrize(
    ("held", "tier", "label", "why"),
    [
        (Held(0, due_s=NOW + 12.34), "device", "last", "its next use is the last, in 12.3 s"),
        (
            Held(7, host=3, due_s=NOW + 1.0),
            "device",
            "last",
            "its next use is the last, in 1.0 s; its first 7 stay",
        ),
        (
            Held(7, host=3, due_s=NOW + 1.0),
            "host",
            "last",
            "its next use is the last, in 1.0 s; its first 3 stay",
        ),
        (Held(0), "device", "unknown", "its next use is not known, and it was used longest ago"),
        (
            Held(0, state=KvState.PAUSED, due_s=NOW),
            "device",
            "preempted",
            "of a preempted request, used longest ago",
        ),
    ],
)
def test_why_kv_leaves_is_told(held: Held, tier: str, label: str, why: str) -> None:
    kv = Kv({"a": held}, ("a",), tier=tier)
    assert NextUse().tell_evict(kv.view, "a", NOW) == (label, why, None)


def test_why_kv_leaves_whose_turn_is_coming_is_told() -> None:
    kv = Kv(known("a", due_s=NOW + 1.0, device=0), coming=("a",))
    why = "its turn is coming or under way, and nothing else was left to go"
    assert NextUse().tell_evict(kv.view, "a", NOW) == ("coming", why, None)


def test_what_is_protected_is_worked_out_once_and_only_if_it_comes_to_that() -> None:
    class Counted(Kv):
        num_read = 0

        def num_away(self, owner: str) -> int:
            self.num_read += 1
            return 0

    kv = Counted(known(*"abcd"), ("a",), ("b", "c", "d"), num_free=0)
    assert next(iter(evicted(kv).owners)) == "a"
    assert kv.num_read == 0
    assert list(evicted(kv).owners) == ["a"]
    assert kv.num_read == 3
    kv.coming = ("b", "c")
    NextUse().decide_fetch(kv.view, NOW)
    assert kv.num_read == 5


def test_a_preload_takes_the_room_of_none_that_is_due_sooner() -> None:
    due = {"late": 130.0, "near": 110.0, "coming": 120.0}
    owners = {owner: Held(due_s=due_s) for owner, due_s in due.items()}
    kv = Kv(owners, ("late", "near"), num_free=0, num_wanted=20, incoming={"coming": 20})
    assert list(evicted(kv).owners) == ["late"]
    kv.incoming = {}
    assert list(evicted(kv).owners) == ["late", "near"], "a request waits"


@pytest.mark.parametrize(
    ("coming", "owners", "count"),
    [
        ({"soon": 5}, ["late", "near"], 5),
        ({"soon": 9}, ["late", "near"], 6),
        ({"soon": 2}, ["late", "near"], 2),
        ({"between": 5}, ["late"], 3),
        ({"last": 5}, [], 0),
        ({"soon": 5, "last": 50}, ["late", "near"], 5),
        ({"last": 50, "between": 3, "soon": 1}, ["late"], 3),
        ({"last": 50, "between": 1, "soon": 4}, ["late", "near"], 4),
        ({"unknown": 9}, ["late", "near", "never"], 9),
    ],
)
def test_the_host_gives_up_only_what_is_needed_later_than_what_comes(
    coming: dict[str, int], owners: list[str], count: int
) -> None:
    due = {"soon": 101.0, "near": 110.0, "between": 120.0, "late": 130.0, "last": 140.0, "never": 100.5}
    known = {owner: Held(due_s=due_s, host=3) for owner, due_s in due.items()} | {"unknown": Held()}
    kv = Kv(known, ("late", "near", "never"), ("spoken",), tier="host", num_free=0, incoming=coming)
    kv.owners["spoken"] = Held(due_s=160.0, host=3)
    kv.num_wanted = sum(coming.values())
    selection = evicted(kv)
    assert (list(selection.owners), selection.count) == (owners, count)


def test_the_host_gives_up_nothing_while_there_is_room_for_what_is_needed_sooner() -> None:
    owners = {"soon": Held(due_s=101.0), "last": Held(due_s=140.0), "late": Held(due_s=130.0)}
    kv = Kv(owners, ("late",), tier="host", num_free=5, num_wanted=10, incoming={"soon": 5, "last": 5})
    assert evicted(kv) is NOTHING


def test_a_host_of_which_nothing_is_known_gives_up_what_was_used_longest_ago() -> None:
    owners = {"old": Held(host=4), "new": Held(host=4), "soon": Held(due_s=101.0)}
    kv = Kv(owners, ("old", "new"), tier="host", num_free=0, num_wanted=7, incoming={"soon": 7})
    selection = evicted(kv)
    assert (list(selection.owners), selection.count) == (["old", "new"], 7)


def test_the_host_keeps_copies_of_those_whose_turn_is_coming_up_to_a_share() -> None:
    owners = {name: Held(due_s=130.0 + at, host=4) for at, name in enumerate("cba")} | {
        "soon": Held(due_s=101.0)
    }
    kv = Kv(owners, (), ("a", "b", "c"), tier="host", num_free=0, num_wanted=6, incoming={"soon": 6})
    assert evicted(kv) is NOTHING
    selection = evicted(kv, NextUse(protects=5 / 160))
    assert (list(selection.owners), selection.count) == (["b", "c"], 6)


def test_that_nothing_is_known_is_counted() -> None:
    policy = NextUse()
    for kv in (
        Kv(known("a", "b", due_s=nan), ("a", "b"), num_free=0, num_wanted=1),
        Kv(known("a", due_s=NOW), ("a",), num_free=0, num_wanted=1),
        Kv(num_free=0, num_wanted=1),
    ):
        list(evicted(kv, policy).owners)
    assert policy.events["next_use_unknown"] == 1
    kv = Kv(known("a", due_s=nan), ("a",), tier="host", num_free=0, num_wanted=1, incoming={"a": 1})
    evicted(kv, policy)
    assert policy.events["next_use_unknown"] == 2
    policy.decide_write(Kv(known("a", due_s=nan), ("a",), num_free=0).view, NOW)
    policy.decide_write(Kv(known("a", due_s=NOW), ("a",), num_free=0).view, NOW)
    assert policy.events["next_use_unknown"] == 3


def test_what_will_leave_soon_is_written_beside_the_step() -> None:
    owners = {"near": Held(due_s=101.0), "far": Held(due_s=140.0), "runs": Held(state=KvState.RUNNING)}
    kv = Kv(owners, ("near", "runs", "far", "gone"), num_free=20, step_s=0.05)
    selection = NextUse().decide_write(kv.view, NOW)
    assert (list(selection.owners), selection.count) == (["near", "far"], 5)
    assert not selection.displaces, "nothing is known of what is on the host"
    kv.num_below = 0
    assert NextUse().decide_write(kv.view, NOW) is NOTHING
    kv.due_below_s = 102.0
    selection = NextUse().decide_write(kv.view, NOW)
    assert (selection.owners, selection.displaces) == (["near"], True), (
        "the other is needed later than all there"
    )
    kv.num_below = 1000
    kv.step_s = 0.004
    assert NextUse().decide_write(kv.view, NOW).count == 1, "the next step may be as short"
    kv.step_s = inf
    assert NextUse().decide_write(kv.view, NOW).count == 160, "there is no step"
    policy, kv.step_s = NextUse(), nan
    assert policy.decide_write(kv.view, NOW).count == 1, "its time is not known"
    kv.step_s, kv.out = 0.05, LaneState(0, 0.0, nan)
    assert policy.decide_write(kv.view, NOW).count == 1
    kv.out = LaneState(1, nan, nan)
    assert policy.decide_write(kv.view, NOW).count == 0, "its answer says how long one takes"
    assert (policy.events["step_unknown"], policy.events["link_unknown"]) == (1, 2)
    kv.num_free = 21
    assert NextUse().decide_write(kv.view, NOW) is NOTHING, "nothing will have to leave"
    kv.num_free = 20
    assert NextUse(write=False).decide_write(kv.view, NOW) is NOTHING
    assert NextUse().decide_write(Kv(num_free=0).view, NOW) is NOTHING


def test_many_that_run_are_not_all_that_is_looked_at() -> None:
    running = [f"r{at}" for at in range(2 * LOOK)]
    owners = known(*running, state=KvState.RUNNING) | {"near": Held(due_s=101.0)}
    kv = Kv(owners, (*running, "near"), num_free=20)
    assert list(NextUse().decide_write(kv.view, NOW).owners) == ["near"]


@pytest.mark.parametrize("options", [{"protects": 1.5}, {"ahead": -0.1}, {"ahead": 0.9}])
def test_shares_beyond_a_whole_are_told(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="it is a share of the blocks"):
        NextUse(**options)  # type: ignore[arg-type]
