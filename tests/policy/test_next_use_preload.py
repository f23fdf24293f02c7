"""LiveServe §5: what is brought before it is asked for, what became of it, and what is told of it."""

from __future__ import annotations

from collections import Counter
from math import nan
from typing import Any

import pytest

from antiphon.policy.memory import KvState, LaneState, Selection
from antiphon.policy.next_use import LOOK, PROBE_BLOCKS, RETRY_S, NextUse
from policy.sessions import NOW, Held, Kv, known


def fetched(kv: Kv, policy: NextUse) -> Selection:
    """What is selected and waited for by no request is ordered, as far as an order goes."""
    selection = policy.decide_fetch(kv.view, NOW)
    kv.preloaded.update(dict.fromkeys((one for one in selection.owners if one not in kv.wanted), 1))
    return selection


def counted(policy: NextUse) -> dict[str, int]:
    return {name.removeprefix("preload_"): count for name, count in policy.events.items() if count}


def test_what_a_request_waits_for_goes_before_what_is_prepared() -> None:
    policy = NextUse()
    kv = Kv(known("w", "b", due_s=110.0), coming=("b",), wanted=("w",), away={"b": 3})
    selection = policy.decide_fetch(kv.view, NOW)
    assert (list(selection.owners), selection.count) == (["w"], 160)
    assert selection.wake_at == NOW + RETRY_S
    policy.decide_fetch(kv.view, NOW)
    assert policy.events["preload_held"] == 1, "it is one hold, however often it is looked at"
    kv.wanted = ()
    selection = fetched(kv, policy)
    assert (list(selection.owners), selection.wake_at, selection.reach) == (["b"], None, None)
    for _ in range(3):
        fetched(kv, policy)
        assert policy.events["preload_begun"] == 1, "each is counted once"


def test_a_turn_whose_request_waits_is_no_preload_that_is_put_off() -> None:
    """Whoever waits for a reply is still expected: the link is needed for just that."""
    policy = NextUse()
    kv = Kv(known("w", "b", due_s=110.0), coming=("w", "b"), wanted=("w",), away={"w": 5, "b": 3})
    assert list(policy.decide_fetch(kv.view, NOW).owners) == ["w"]
    assert policy.events["preload_held"] == 1
    told = [policy.tell_fetch(kv.view, owner, NOW).why for owner in "wb"]
    assert told == ["its own request waits for it", "put off: a request waits for the link"]


def test_a_request_that_waits_at_another_unit_of_the_device_puts_preloads_off() -> None:
    policy = NextUse()
    kv = Kv(known("b", due_s=110.0), coming=("b",), away={"b": 3}, is_pressed_beside=True)
    assert list(policy.decide_fetch(kv.view, NOW).owners) == []
    assert counted(policy) == {"held": 1}


def test_a_preload_that_is_not_carried_out_is_told_from_one_that_was_put_off() -> None:
    """Its blocks came and went too often, there is no room, or the policy is only observed."""
    policy = NextUse()
    kv = Kv(known("a", due_s=NOW + 9), coming=("a",), away={"a": 5}, preloaded=Counter(a=20))
    for _ in range(3):
        assert list(policy.decide_fetch(kv.view, NOW).owners) == ["a"]
    assert counted(policy) == {}
    kv.owners, kv.coming = known("a", state=KvState.RUNNING), ()
    policy.decide_fetch(kv.view, NOW)
    assert counted(policy) == {"unfilled": 1}


def test_a_preload_whose_copies_broke_off_was_not_read_by_its_turn() -> None:
    policy = NextUse()
    kv = Kv(known("a", "b", due_s=NOW + 9), coming=("a", "b"), away={"a": 5, "b": 5})
    fetched(kv, policy)
    fetched(kv, policy)
    kv.preloaded["a"] = 0
    policy.decide_fetch(kv.view, NOW)
    kv.owners, kv.coming = known("a", "b", state=KvState.RUNNING), ()
    policy.decide_fetch(kv.view, NOW)
    assert counted(policy) == {"begun": 2, "lost": 1, "hit": 1}


def test_who_waits_for_other_than_the_link_holds_no_preload() -> None:
    """Work that is not a person's, or for which there is no room."""
    policy = NextUse()
    kv = Kv(known("w", "b", due_s=110.0), coming=("b",), wanted=("w",), away={"b": 3}, patient=("w",))
    selection = policy.decide_fetch(kv.view, NOW)
    assert list(selection.owners) == ["w", "b"]
    assert selection.wake_at == NOW + RETRY_S, "there may be room for it by then"
    assert policy.events["preload_held"] == 0
    kv.coming = ()
    assert list(policy.decide_fetch(kv.view, NOW).owners) == ["w"]


def test_what_cannot_be_there_in_time_is_brought_in_part_or_not_at_all() -> None:
    """Fifty blocks are half a second; the second one comes behind the first, which is due first."""
    policy = NextUse()
    owners = {"a": Held(due_s=NOW + 0.6), "b": Held(due_s=NOW + 0.715), "c": Held(due_s=NOW + 0.605)}
    kv = Kv(owners, coming=("b", "a", "c"), away=dict.fromkeys("abc", 50), num_blocks=1000)
    selection = fetched(kv, policy)
    assert list(selection.owners) == ["a", "c", "b"]
    assert selection.reach == {"c": 10 + 10, "b": 10 + 11}
    assert selection.wake_at == NOW + RETRY_S
    fetched(kv, policy)
    assert counted(policy) == {"begun": 1, "partial": 2}
    kv.owners = dict.fromkeys("abc", Held(due_s=NOW))
    assert list(fetched(kv, policy).owners) == [], "it is too late for all"
    kv.coming = ()
    policy.decide_fetch(kv.view, NOW)
    assert counted(policy) == {"begun": 1, "partial": 2, "unused": 3}


def test_only_what_is_brought_is_queued_before_the_next() -> None:
    """Twenty of the first one's fifty blocks are: the second one, half a second later, comes whole."""
    owners = {"a": Held(due_s=NOW + 0.2), "b": Held(due_s=NOW + 0.7)}
    kv = Kv(owners, coming=("a", "b"), away=dict.fromkeys("ab", 50), num_blocks=1000)
    assert NextUse().decide_fetch(kv.view, NOW).reach == {"a": 10 + 20}


def test_what_was_put_off_and_brought_in_time_after_all_was_not_skipped() -> None:
    policy = NextUse()
    kv = Kv(known("a", due_s=NOW), coming=("a",), away={"a": 50})
    policy.decide_fetch(kv.view, NOW)
    kv.owners = known("a", due_s=NOW + 9)
    fetched(kv, policy)
    kv.coming = ()
    policy.decide_fetch(kv.view, NOW)
    assert counted(policy) == {"begun": 1, "unused": 1}


def test_it_is_asked_again_when_an_announced_turn_is_near() -> None:
    kv = Kv(known("a", "w", due_s=NOW), expects_at=NOW + 7)
    assert NextUse().decide_fetch(kv.view, NOW).wake_at == NOW + 7
    kv.wanted = ("w",)
    assert NextUse().decide_fetch(kv.view, NOW).wake_at == NOW + 7
    kv.coming, kv.away = ("a",), {"a": 50}
    assert NextUse().decide_fetch(kv.view, NOW).wake_at == NOW + RETRY_S
    kv.wanted, kv.expects_at = (), NOW + RETRY_S / 2
    assert NextUse().decide_fetch(kv.view, NOW).wake_at == NOW + RETRY_S / 2
    assert NextUse(preload=False).decide_fetch(kv.view, NOW).wake_at is None


def test_over_a_link_of_unknown_speed_one_order_goes_at_a_time() -> None:
    policy = NextUse()
    kv = Kv(known("a", "b", due_s=NOW), coming=("a", "b"), away={"a": 50, "b": 5}, back=LaneState())
    selection = fetched(kv, policy)
    assert (list(selection.owners), selection.reach) == (["a"], {"a": 10 + PROBE_BLOCKS})
    kv.back = LaneState(PROBE_BLOCKS, nan, nan)
    assert policy.decide_fetch(kv.view, NOW).count == 0, "its answer says more"
    assert counted(policy) == {"partial": 1, "link_unknown": 2}, "each preload is counted once"


def test_nothing_is_prepared_beyond_what_may_be_protected_nor_if_that_is_off() -> None:
    kv = Kv(known("a", "b", due_s=NOW + 9), coming=("a", "b"), away={"a": 50, "b": 50})
    assert list(NextUse().decide_fetch(kv.view, NOW).owners) == ["a"]
    policy = NextUse(preload=False)
    assert policy.decide_fetch(kv.view, NOW).count == 0
    assert not policy.prepares
    kv.away = {}
    assert NextUse().decide_fetch(kv.view, NOW).count == 0, "all is there"


@pytest.mark.parametrize(
    ("state", "wanted", "outcome"),
    [
        (KvState.RUNNING, (), "hit"),
        (KvState.WAITING, (), "hit"),
        (KvState.WAITING, ("a",), "late"),
        (KvState.RESTING, (), "unused"),
    ],
)
def test_what_became_of_a_preload_is_counted(state: KvState, wanted: tuple[str, ...], outcome: str) -> None:
    policy = NextUse()
    kv = Kv(known("a", due_s=NOW + 9), coming=("a",), away={"a": 5})
    fetched(kv, policy)
    kv.owners, kv.coming, kv.wanted = known("a", state=state), (), wanted
    policy.decide_fetch(kv.view, NOW)
    assert counted(policy) == {"begun": 1, outcome: 1}


def test_one_that_was_skipped_has_no_outcome() -> None:
    policy = NextUse()
    kv = Kv(known("a", due_s=NOW), coming=("a",), away={"a": 50})
    assert policy.decide_fetch(kv.view, NOW).count == 0
    kv.coming = ()
    policy.decide_fetch(kv.view, NOW)
    assert counted(policy) == {"skipped": 1}


LEFT = "20 blocks take 0.20 s, its turn is due in 1.00 s"
BEHIND = LEFT.replace("its", "0.90 s of others go before them, its")


@pytest.mark.parametrize(
    ("options", "told", "label", "words"),
    [
        ({}, {}, "brought", f"brought: {LEFT}"),
        ({}, {"back": LaneState(0, 0.895, 0.01)}, "part", f"too late for all, 10 are brought: {BEHIND}"),
        ({}, {"back": LaneState(0, 1.5, 0.01)}, "late", f"too late: {BEHIND.replace('0.90', '1.50')}"),
        (
            {},
            {"back": LaneState(0, 0.0, 0.06)},
            "part",
            f"too late for all, 16 are brought: {LEFT.replace('0.20', '1.20')}",
        ),
        (
            {},
            {"back": LaneState()},
            "part",
            "the first 20 of 20 blocks are brought: the link's speed is not known yet",
        ),
        ({}, {"back": LaneState(1, nan, nan)}, "unknown", "put off: the link's speed is not known yet"),
        ({}, {"wanted": ("b",)}, "held", "put off: a request waits for the link"),
        (
            {"protects": 0.1},
            {},
            "full",
            "not brought: 10% of the device's blocks are kept for coming turns at most",
        ),
        ({"preload": False}, {}, "off", "it comes when a request waits for it (preload is off)"),
    ],
)
def test_why_a_preload_is_begun_or_not(
    options: dict[str, Any], told: dict[str, Any], label: str, words: str
) -> None:
    kv = Kv(known("a", due_s=NOW + 1.0), coming=("a",), away={"a": 20}, **told)
    policy = NextUse(**options)
    policy.decide_fetch(kv.view, NOW)
    assert policy.tell_fetch(kv.view, "a", NOW) == (label, words, None)


@pytest.mark.parametrize(("due_s", "words"), [(NOW + 30.0, "due in 30.0 s"), (nan, "not near")])
def test_of_a_turn_that_was_announced_far_ahead_it_is_told_that_it_is_early(due_s: float, words: str) -> None:
    kv = Kv(known("a", due_s=due_s), away={"a": 20})
    policy = NextUse()
    policy.decide_fetch(kv.view, NOW)
    assert policy.tell_fetch(kv.view, "a", NOW) == ("early", f"not yet: its turn is {words}", None)


def test_of_what_was_ordered_before_it_is_told_that_it_is_on_its_way() -> None:
    """All of it: nothing is decided about it any more."""
    kv = Kv(known("a", due_s=NOW + 1.0), coming=("a",))
    policy = NextUse()
    policy.decide_fetch(kv.view, NOW)
    assert policy.tell_fetch(kv.view, "a", NOW).why == "all of it is on its way"


def test_what_is_told_is_what_was_decided() -> None:
    """The second waits behind the first; of one whose turn nobody can foresee all is brought."""
    kv = Kv(known("a", "b", due_s=NOW + 0.255), coming=("a", "b", "c"), away={"a": 20, "b": 20, "c": 1})
    kv.owners |= known("c")
    policy = NextUse()
    reach = policy.decide_fetch(kv.view, NOW).reach
    assert reach == {"b": 10 + 5}
    told = [policy.tell_fetch(kv.view, owner, NOW).why for owner in "abc"]
    assert told == [
        "brought: 20 blocks take 0.20 s, its turn is due in 0.25 s",
        "too late for all, 5 are brought: 20 blocks take 0.20 s, 0.20 s of others go before them, "
        "its turn is due in 0.25 s",
        "brought: its turn is coming",
    ]


def test_words_cost_no_look_at_all_who_are_coming() -> None:
    class Counted(Kv):
        num_read = 0

        def expected(self) -> object:
            self.num_read += 1
            return super().expected()

    kv = Counted(known(*"abc", due_s=NOW + 9), coming=("a", "b", "c"), away={"a": 5, "b": 5, "c": 5})
    policy = NextUse()
    policy.decide_fetch(kv.view, NOW)
    for owner in "abc":
        policy.tell_fetch(kv.view, owner, NOW)
    assert kv.num_read == 1


def test_blocks_that_are_away_are_not_looked_at_in_every_decision() -> None:
    """A look costs a pass over an owner's blocks, and many may be expected for long. What is brought
    meanwhile is taken off without one."""
    looks = Counter[str]()

    class Counted(Kv):
        def num_away(self, owner: str) -> int:
            looks[owner] += 1
            return super().num_away(owner)

    names = tuple(f"s{number}" for number in range(3 * LOOK))
    owners = {name: Held(0, due_s=NOW + 50.0) for name in names}
    kv = Counted(owners, coming=names, away=dict.fromkeys(names, 40))
    policy = NextUse()
    for now in (NOW, NOW + 0.01, NOW + 0.02):
        assert list(policy.decide_fetch(kv.view, now).owners) == ["s0", "s1"], "half of the device is kept"
    assert looks == dict.fromkeys(names, 1)
    kv.owners["s0"] = Held(40, due_s=NOW + 50.0)
    assert list(policy.decide_fetch(kv.view, NOW + 0.03).owners) == ["s1"]
    kv.owners["s0"] = Held(45, due_s=NOW + 50.0)
    policy.decide_fetch(kv.view, NOW + 0.04)
    assert looks.total() == len(names) + 1, "it has more than was known"
    policy.decide_fetch(kv.view, NOW + 1.0)
    assert looks.total() == len(names) + 1 + LOOK, "the others in the next decisions"
    kv.coming = ()
    policy.decide_fetch(kv.view, NOW + 1.01)
    kv.coming = names[:1]
    policy.decide_fetch(kv.view, NOW + 1.02)
    assert looks.total() == len(names) + 2 + LOOK, "nothing is kept of who is not expected"
