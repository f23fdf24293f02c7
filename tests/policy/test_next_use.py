"""LiveServe §5: what leaves, what is written early, and what is brought before it is asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any, NamedTuple, cast

import pytest

from antiphon.core.errors import ConfigError
from antiphon.policy.memory import NOTHING, KvState, KvView, Lane, Selection
from antiphon.policy.next_use import LOOK, PROBE_BLOCKS, RETRY_S, NextUse

NOW = 100.0
LANE = Lane(0, 0.0, 0.01)


class Held(NamedTuple):
    """What the view tells of one owner."""

    device: int = 10
    due_s: float = nan
    state: KvState = KvState.RESTING
    host: int = 0


@dataclass
class Kv:
    """A device of 160 blocks, of which 10 are to be kept free; a block takes 10 ms over the link."""

    owners: dict[str, Held] = field(default_factory=dict[str, Held])
    order: tuple[str, ...] = ()
    coming: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    away: dict[str, int] = field(default_factory=dict[str, int])
    tier: str = "device"
    num_wanted: int = 0
    num_free: int = 160
    num_below: int = 1000
    num_blocks: int = 160
    back: Lane = LANE
    out: Lane = LANE
    step_s: float = nan
    expects_at: float = inf
    incoming: dict[str, int] = field(default_factory=dict[str, int])
    preloaded: Counter[str] = field(default_factory=Counter[str])
    patient: tuple[str, ...] = ()
    is_pressed_beside: bool = False
    due_below_s: float = nan

    @property
    def view(self) -> KvView:
        return cast("KvView", self)

    def farthest(self) -> object:
        return iter((*self.order, *self.coming))

    def farthest_dirty(self) -> object:
        return iter(self.order)

    def is_expected(self, owner: str) -> bool:
        return owner in self.coming

    def has(self, owner: str) -> bool:
        return owner in self.owners

    def state(self, owner: str) -> KvState | None:
        return self.owners[owner].state if owner in self.owners else None

    def device(self, owner: str) -> int:
        return self.owners[owner].device

    def on_host(self, owner: str) -> int:
        return self.owners[owner].host

    def due_s(self, owner: str) -> float:
        return self.owners[owner].due_s

    def expected(self) -> object:
        return iter(self.coming)

    def waiting(self) -> object:
        return iter(self.wanted)

    def is_pressing(self, owner: str) -> bool:
        return owner not in self.patient

    def num_away(self, owner: str) -> int:
        return self.away.get(owner, 0)

    def num_preloaded(self, owner: str) -> int:
        return self.preloaded[owner]


def evicted(kv: Kv, policy: NextUse | None = None) -> Selection:
    return (policy or NextUse()).decide_evict(kv.view, NOW)


def fetched(kv: Kv, policy: NextUse) -> Selection:
    """What is selected and waited for by no request is ordered, as far as an order goes."""
    selection = policy.decide_fetch(kv.view, NOW)
    kv.preloaded.update(dict.fromkeys((one for one in selection.owners if one not in kv.wanted), 1))
    return selection


def counted(policy: NextUse) -> dict[str, int]:
    return {name.removeprefix("preload_"): count for name, count in policy.events.items() if count}


def known(*owners: str, **told: object) -> dict[str, Held]:
    return {owner: Held(**told) for owner in owners}  # type: ignore[arg-type]


def test_what_is_needed_last_leaves_first_and_a_little_ahead() -> None:
    kv = Kv(known(*"ab", due_s=110.0), ("a", "b"), num_wanted=7, num_free=3)
    selection = evicted(kv)
    assert (list(selection.owners), selection.count) == (["a", "b"], 14)
    assert evicted(Kv(num_free=160)) is NOTHING
    assert evicted(Kv(num_free=4, num_below=0)) is NOTHING


def test_whose_turn_is_coming_is_protected_up_to_a_share_of_the_blocks() -> None:
    kv = Kv(known(*"abcd"), ("a",), ("b", "c", "d"), num_free=0, num_wanted=1, away={"b": 30})
    kv.num_wanted = 0
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
    kv.step_s, kv.out = 0.05, Lane(0, 0.0, nan)
    assert policy.decide_write(kv.view, NOW).count == 1
    kv.out = Lane(1, nan, nan)
    assert policy.decide_write(kv.view, NOW).count == 0, "its answer says how long one takes"
    assert (policy.events["step_unknown"], policy.events["link_unknown"]) == (1, 2)
    kv.num_free = 21
    assert NextUse().decide_write(kv.view, NOW) is NOTHING, "nothing will have to leave"
    kv.num_free = 20
    assert NextUse(write=False).decide_write(kv.view, NOW) is NOTHING
    assert NextUse().decide_write(Kv(num_free=0).view, NOW) is NOTHING


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


def test_a_preload_takes_the_room_of_none_that_is_due_sooner() -> None:
    due = {"late": 130.0, "near": 110.0, "coming": 120.0}
    owners = {owner: Held(due_s=due_s) for owner, due_s in due.items()}
    kv = Kv(owners, ("late", "near"), num_free=0, num_wanted=20, incoming={"coming": 20})
    assert list(evicted(kv).owners) == ["late"]
    kv.incoming = {}
    assert list(evicted(kv).owners) == ["late", "near"], "a request waits"


def test_many_that_run_are_not_all_that_is_looked_at() -> None:
    running = [f"r{at}" for at in range(2 * LOOK)]
    owners = known(*running, state=KvState.RUNNING) | {"near": Held(due_s=101.0)}
    kv = Kv(owners, (*running, "near"), num_free=20)
    assert list(NextUse().decide_write(kv.view, NOW).owners) == ["near"]


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
    kv = Kv(known("a", "b", due_s=NOW), coming=("a", "b"), away={"a": 50, "b": 5}, back=Lane())
    selection = fetched(kv, policy)
    assert (list(selection.owners), selection.reach) == (["a"], {"a": 10 + PROBE_BLOCKS})
    kv.back = Lane(PROBE_BLOCKS, nan, nan)
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


@pytest.mark.parametrize("options", [{"protects": 1.5}, {"ahead": -0.1}, {"ahead": 0.9}])
def test_shares_beyond_a_whole_are_told(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="it is a share of the blocks"):
        NextUse(**options)  # type: ignore[arg-type]


LEFT = "20 blocks take 0.20 s, its turn is due in 1.00 s"
BEHIND = LEFT.replace("its", "0.90 s of others go before them, its")


@pytest.mark.parametrize(
    ("options", "told", "words"),
    [
        ({}, {}, f"brought: {LEFT}"),
        ({}, {"back": Lane(0, 0.895, 0.01)}, f"too late for all, 10 are brought: {BEHIND}"),
        ({}, {"back": Lane(0, 1.5, 0.01)}, f"too late: {BEHIND.replace('0.90', '1.50')}"),
        (
            {},
            {"back": Lane(0, 0.0, 0.06)},
            f"too late for all, 16 are brought: {LEFT.replace('0.20', '1.20')}",
        ),
        ({}, {"back": Lane()}, "the first 20 of 20 blocks are brought: the link's speed is not known yet"),
        ({}, {"back": Lane(1, nan, nan)}, "put off: the link's speed is not known yet"),
        ({}, {"wanted": ("b",)}, "put off: a request waits for the link"),
        ({"protects": 0.1}, {}, "not brought: what is kept for others fills 10% of the device's blocks"),
        ({"preload": False}, {}, "it comes when a request waits for it (preload is off)"),
    ],
)
def test_why_a_preload_is_begun_or_not(options: dict[str, Any], told: dict[str, Any], words: str) -> None:
    kv = Kv(known("a", due_s=NOW + 1.0), coming=("a",), away={"a": 20}, **told)
    policy = NextUse(**options)
    policy.decide_fetch(kv.view, NOW)
    assert policy.tell_fetch(kv.view, "a", NOW) == ("", words, None)


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
