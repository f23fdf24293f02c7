"""LiveServe §5: what leaves, what is written early, and what is brought before it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import Any, cast

import pytest

from antiphon.core.errors import ConfigError
from antiphon.policy.memory import NOTHING, Held, KvState, KvView, Lane, Selection
from antiphon.policy.next_use import RETRY_S, NextUse

NOW = 100.0
LANE = Lane(0, 0.0, 0.01)


def held(device: int = 10, due_s: float = nan, state: KvState = KvState.RESTING) -> Held:
    return Held(state, device, 0, 4, 0.0, due_s, False, nan)


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

    @property
    def view(self) -> KvView:
        return cast("KvView", self)

    def farthest(self) -> object:
        return iter((*self.order, *self.coming))

    def dirty(self) -> object:
        return iter(self.order)

    def expected(self) -> object:
        return iter(self.coming)

    def waiting(self) -> object:
        return iter(self.wanted)

    def find(self, owner: str) -> Held | None:
        return self.owners.get(owner)

    def num_away(self, owner: str) -> int:
        return self.away.get(owner, 0)


def evicted(kv: Kv, policy: NextUse | None = None) -> Selection:
    return (policy or NextUse()).decide_evict(kv.view, NOW)


def known(*owners: str, **told: object) -> dict[str, Held]:
    return {owner: held(**told) for owner in owners}  # type: ignore[arg-type]


def test_what_is_needed_last_leaves_first_and_a_little_ahead() -> None:
    kv = Kv(known(*"ab", due_s=110.0), ("a", "b"), num_wanted=7, num_free=3)
    selection = evicted(kv)
    assert (list(selection.owners), selection.count) == (["a", "b"], 14)
    assert evicted(Kv(num_free=160)) is NOTHING
    assert evicted(Kv(num_free=4, num_below=0)) is NOTHING


def test_whose_turn_is_coming_is_protected_up_to_a_share_of_the_blocks() -> None:
    kv = Kv(known(*"abcd"), ("a",), ("b", "c", "d"), num_free=0, num_wanted=1, away={"b": 30})
    assert list(evicted(kv).owners) == ["a"]
    assert list(evicted(kv, NextUse(protects=50 / 160)).owners) == ["a", "d"]
    assert list(evicted(kv, NextUse(protects=0.0)).owners) == ["a", "b", "c", "d"]


def test_of_the_host_too() -> None:
    kv = Kv(known(*"ab"), ("a",), ("b",), tier="host", num_free=0, num_wanted=1)
    assert list(evicted(kv).owners) == ["a"]


def test_that_nothing_is_known_is_counted() -> None:
    policy = NextUse()
    evicted(Kv(known("a", due_s=nan), ("a",), num_free=0, num_wanted=1), policy)
    assert policy.events["next_use_unknown"] == 1
    evicted(Kv(known("a", due_s=NOW), ("a",), num_free=0, num_wanted=1), policy)
    evicted(Kv(num_free=0, num_wanted=1), policy)
    assert policy.events["next_use_unknown"] == 1


def test_what_will_leave_soon_is_written_beside_the_step() -> None:
    owners = {"near": held(due_s=101.0), "far": held(due_s=140.0), "runs": held(state=KvState.RUNNING)}
    kv = Kv(owners, ("near", "far", "runs", "gone"), num_free=20, step_s=0.05)
    selection = NextUse().decide_write(kv.view, NOW)
    assert (list(selection.owners), selection.count) == (["far", "near"], 5)
    kv.step_s = nan
    assert NextUse().decide_write(kv.view, NOW).count == 160, "there is no step, or nothing is known of it"
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
    assert policy.events["preload_held"] == 1
    kv.wanted = ()
    selection = policy.decide_fetch(kv.view, NOW)
    assert (list(selection.owners), selection.wake_at, selection.reach) == (["b"], None, None)
    assert policy.events["preload_begun"] == 1
    policy.decide_fetch(kv.view, NOW)
    assert policy.events["preload_begun"] == 1, "each is counted once"


def test_what_cannot_be_there_in_time_is_brought_in_part_or_not_at_all() -> None:
    """Fifty blocks are half a second; the second one comes behind the first."""
    policy = NextUse()
    owners = {"a": held(due_s=NOW + 0.6), "b": held(due_s=NOW + 0.7), "c": held(due_s=NOW + 0.5)}
    kv = Kv(owners, coming=("a", "b", "c"), away=dict.fromkeys("abc", 50), num_blocks=1000)
    selection = policy.decide_fetch(kv.view, NOW)
    assert list(selection.owners) == ["a", "b"]
    assert selection.reach == {"b": 10 + 20}
    assert selection.wake_at == NOW + RETRY_S
    counts = {name[8:]: count for name, count in policy.events.items() if count}
    assert counts == {"begun": 1, "partial": 1, "skipped": 1}


def test_where_the_links_speed_is_not_known_it_is_tried() -> None:
    kv = Kv(known("a", due_s=NOW), coming=("a",), away={"a": 50}, back=Lane())
    assert list(NextUse().decide_fetch(kv.view, NOW).owners) == ["a"]


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
    policy.decide_fetch(kv.view, NOW)
    kv.owners, kv.coming, kv.wanted = known("a", state=state), (), wanted
    policy.decide_fetch(kv.view, NOW)
    counts = {name[8:]: count for name, count in policy.events.items() if count}
    assert counts == {"begun": 1, outcome: 1}


def test_one_that_was_skipped_has_no_outcome() -> None:
    policy = NextUse()
    kv = Kv(known("a", due_s=NOW), coming=("a",), away={"a": 50})
    assert policy.decide_fetch(kv.view, NOW).count == 0
    kv.coming = ()
    policy.decide_fetch(kv.view, NOW)
    counts = {name[8:]: count for name, count in policy.events.items() if count}
    assert counts == {"skipped": 1}


@pytest.mark.parametrize("options", [{"protects": 1.5}, {"ahead": -0.1}, {"ahead": 0.9}])
def test_shares_beyond_a_whole_are_told(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="it is a share of the blocks"):
        NextUse(**options)  # type: ignore[arg-type]


LEFT = "20 blocks take 0.20 s, its turn is due in 1.00 s"


@pytest.mark.parametrize(
    ("options", "told", "words"),
    [
        ({}, {}, f"brought: {LEFT}"),
        ({}, {"back": Lane(0, 0.9, 0.01)}, f"too late for all: {LEFT}"),
        ({}, {"back": Lane()}, "brought: its turn is coming"),
        ({}, {"wanted": ("b",)}, "put off: a request waits for the link"),
        ({"protects": 0.1}, {}, "not brought: what is kept for others fills 10% of the device's blocks"),
        ({"preload": False}, {}, "it comes when a request waits for it (preload is off)"),
    ],
)
def test_why_a_preload_is_begun_or_not(options: dict[str, Any], told: dict[str, Any], words: str) -> None:
    kv = Kv(known("a", due_s=NOW + 1.0), coming=("a",), away={"a": 20}, **told)
    assert NextUse(**options).tell_fetch(kv.view, "a", NOW) == ("", words, None)
