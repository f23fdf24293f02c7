"""What policies see of many owners costs what they read of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from antiphon.policy.memory import LaneState
from antiphon.stage.kv_asks import unknown
from antiphon.stage.tier_views import View


class Owners:
    """Names in order, which count how many were read."""

    def __init__(self, size: int) -> None:
        self.names = {f"session-{at}": None for at in range(size)}
        self.num_read = 0

    def __iter__(self) -> Iterator[str]:
        for name in self.names:
            self.num_read += 1
            yield name

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names


def view_of(owners: Owners) -> View:
    kv, none = cast("Any", SimpleNamespace(resting=SimpleNamespace(owners=owners))), cast("Any", None)
    return View("device", 0, kv, none, none, 0.0, None, {}, lambda to: LaneState(), unknown, False)


@pytest.mark.parametrize(("taken", "most"), [(1, 8), (8, 8), (9, 24), (100, 400)])
def test_the_oldest_cost_what_is_taken_of_them(taken: int, most: int) -> None:
    owners = Owners(10_000)
    oldest = view_of(owners).oldest()
    assert [next(oldest) for _ in range(taken)] == [f"session-{at}" for at in range(taken)]
    assert owners.num_read <= most + 1


@pytest.mark.parametrize("leaves", [lambda at: True, lambda at: at % 3 == 0, lambda at: False])
def test_owners_may_leave_while_the_oldest_are_read(leaves: Callable[[int], bool]) -> None:
    owners = Owners(1000)
    found = []
    for at, name in enumerate(view_of(owners).oldest()):
        found.append(name)
        if leaves(at):
            del owners.names[name]
    assert found == [f"session-{at}" for at in range(1000)]
    assert owners.num_read <= 4 * 1000
