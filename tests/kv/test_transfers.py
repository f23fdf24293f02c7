"""Copies under way of one unit: ordered group by group, known until the last of their orders is answered."""

from __future__ import annotations

from itertools import count

from antiphon.core.facts import CopyDone, CopyFailed
from antiphon.core.plans import CopyBlocks, MoveBlocks, ints
from antiphon.kv.host import HostTier
from antiphon.kv.sequences import prefix_of
from antiphon.kv.stage_kv import StageKv
from antiphon.kv.transfers import CopyOrder, KvLease, Transfer, Transfers


def world() -> tuple[StageKv, Transfers, list[CopyOrder], list[int]]:
    """Two groups, of which the second goes first; and the blocks of a sequence of twelve tokens."""
    kv, told = StageKv(("kv", "hidden"), 8, 4), list[CopyOrder]()
    transfers = Transfers("t", kv, (1, 0), count(10), told.append)
    sequence, _ = kv.open("a", prefix_of(ints(range(12)), 4), 3, None)
    assert kv.grow(sequence, 12)
    return kv, transfers, told, sequence.blocks


def test_a_copy_is_ordered_group_by_group_and_told_of() -> None:
    kv, transfers, told, blocks = world()
    host = HostTier(2, 8)
    copies = [host.begin(name, host.lacks(name, None)) for name in (b"x", b"y")]
    transfers.begin(Transfer("host", blocks[:2], copies))
    orders = transfers.drain()
    assert [*orders] == told
    assert transfers.drain() == ()
    assert [(order.group, order.ticket) for order in orders] == [("hidden", 10), ("kv", 11)]
    for order, group in zip(orders, (1, 0), strict=True):
        assert isinstance(order, CopyBlocks)
        assert (order.stage, order.to) == ("t", "host")
        assert order.sources.tolist() == kv.blocks.slots(blocks[:2])[group].tolist()
        assert order.targets.tolist() == [copy.slots[group] for copy in copies]
    assert (transfers.num_in_flight, transfers.num_blocks) == (2, {"device": 0, "host": 2})
    assert transfers.bringing(blocks) == (), "it takes away, and brings nothing"


def test_only_the_groups_that_are_asked_for_move() -> None:
    _, transfers, told, blocks = world()
    host = HostTier(2, 8)
    transfers.begin(Transfer("device", blocks[:1], [host.begin(b"x", (0,))], groups=(0,)))
    (order,) = told
    assert isinstance(order, CopyBlocks)
    assert (order.group, order.to) == ("kv", "device")


def test_a_lease_is_copied_from_its_unit() -> None:
    _, transfers, told, blocks = world()
    lease = KvLease("far", "t", [5, 6, 7], ints([[1, 2, 3], [4, 5, 6]]), 12)
    transfers.begin(Transfer("device", blocks[1:], lease=lease))
    for order, there in zip(told, ([5, 6], [2, 3]), strict=True):
        assert isinstance(order, MoveBlocks)
        assert (order.source, order.target) == ("far", "t")
        assert order.sources.tolist() == there, "its last blocks"


def test_it_is_under_way_until_the_last_answer() -> None:
    _, transfers, _, blocks = world()
    lease = KvLease("far", "t", [5], ints([[1], [4]]), 4)
    transfer = Transfer("device", blocks[:1], lease=lease)
    transfers.begin(transfer)
    assert transfers.bringing([*blocks, *blocks]) == (transfer,)
    assert transfer.is_doubtful
    assert transfers.answer(CopyDone("t", 11, 0.1)) is transfer
    assert transfers.bringing(blocks) == (transfer,)
    assert transfers.answer(CopyDone("t", 10, 0.1)) is transfer
    assert (transfers.bringing(blocks), transfer.is_doubtful) == ((), False)
    assert (transfers.num_in_flight, transfers.num_blocks["device"]) == (0, 0)
    assert transfers.answer(CopyDone("t", 10, 0.1)) is None, "of one that is not known"


def test_one_answer_that_failed_fails_it() -> None:
    _, transfers, _, blocks = world()
    transfer = Transfer("device", blocks[:1], lease=KvLease("far", "t", [5], ints([[1], [4]]), 4))
    transfers.begin(transfer)
    transfers.answer(CopyFailed("t", 10, "torn"))
    transfers.answer(CopyDone("t", 11, 0.1))
    assert transfer.has_failed
    assert transfer.is_doubtful
