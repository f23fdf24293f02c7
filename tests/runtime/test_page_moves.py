"""KV pages between two processes' pools, message by message: what comes early, late, or after the end."""

from __future__ import annotations

import threading

import pytest
import torch

from antiphon.core.config import ArConfig
from antiphon.core.facts import CopyDone, CopyFailed
from antiphon.core.plans import MoveBlocks, ints
from antiphon.engine.kv_pool import KvPool
from antiphon.runtime.ipc_messages import pages
from antiphon.runtime.page_moves import PageMoves

LAYERS, BLOCKS, SIZE = 3, 6, 2


def new_pool() -> KvPool:
    planes = [
        tuple(torch.randn(BLOCKS, SIZE, 2, 4, dtype=torch.bfloat16) for _ in "kv") for _ in range(LAYERS)
    ]
    return KvPool(
        planes, ArConfig(num_blocks=BLOCKS, block_size=SIZE), {"hidden": torch.randn(BLOCKS, SIZE, 5)}
    )


class Both:
    """A unit p in one process, d in another, and layers on their way between them."""

    def __init__(self) -> None:
        self.p, self.d = new_pool(), new_pool()
        self.there, self.here = PageMoves({"p": self.p}), PageMoves({"d": self.d})
        self.before = {
            name: [[t.clone() for t in layer] for layer in planes] for name, planes in self.d.device.items()
        }

    def leave(self, order: MoveBlocks) -> list:
        self.there.send(1, order)
        messages = []
        while self.there.targets:
            assert self.there.targets == ("d",)
            messages.append(self.there.next_layer("d"))
        assert messages.pop() is None
        return messages

    def arrive(self, *messages) -> None:
        for message in messages:
            self.here.take_in(pages.decode(message.header), message)

    def check(self, order: MoveBlocks) -> None:
        """What was named is the source's; all else is as it was."""
        for group, planes in self.d.device.items():
            for layer, (tensors, old) in enumerate(zip(planes, self.before[group], strict=True)):
                for plane, (tensor, was) in enumerate(zip(tensors, old, strict=True)):
                    wanted = was.clone()
                    if group == order.group:
                        wanted[order.targets] = self.p.device[group][layer][plane][order.sources]
                    assert torch.equal(tensor, wanted)


def order(group: str = "kv", ticket: int = 7) -> MoveBlocks:
    return MoveBlocks("p", "d", group, ints([4, 1, 0]), ints([2, 3, 5]), ticket)


@pytest.mark.parametrize("group", ["kv", "hidden"])
@pytest.mark.parametrize("is_early", [False, True])
def test_a_layer_a_message(group: str, is_early: bool) -> None:
    """It may be there before the order that says what it is for."""
    both, one = Both(), order(group)
    messages = both.leave(one)
    assert len(messages) == (LAYERS if group == "kv" else 1)
    if not is_early:
        both.here.expect(one)
        assert not both.here.has_come((7,))
    both.arrive(*messages[:-1])
    assert not both.here.poll()
    both.arrive(messages[-1])
    if is_early:
        assert not both.here.poll(), "nobody was told of it yet"
        both.here.expect(one)
    assert both.here.has_come((7,))
    assert both.here.poll() == [CopyDone("d", 7)]
    assert both.here.poll() == []
    both.check(one)


def test_a_unit_that_takes_none_holds_up_no_other() -> None:
    both, one = Both(), order()
    both.there.send(1, one)
    both.there.send(2, MoveBlocks("p", "e", "kv", ints([2]), ints([1]), 8))
    others = [both.there.next_layer("e") for _ in range(LAYERS + 1)]
    assert [message is None for message in others] == [False] * LAYERS + [True]
    assert both.there.targets == ("d",)


def test_a_layer_waits_for_its_own_part_only() -> None:
    both, one = Both(), order()
    both.here.expect(one)
    first, *rest = both.leave(one)
    both.arrive(first)
    both.d.ready("kv", 0, (7,))()
    waits = threading.Thread(target=both.d.ready("kv", 2, (7,)))
    waits.start()
    waits.join(0.05)
    assert waits.is_alive()
    both.arrive(*rest)
    waits.join(10)
    assert not waits.is_alive()


@pytest.mark.parametrize("is_early", [False, True])
def test_what_broke_off_is_reported_and_no_more_of_it_is_taken(is_early: bool) -> None:
    both, one = Both(), order()
    first, *rest = both.leave(one)
    if is_early:
        both.here.break_off(7)
        both.here.expect(one)
    else:
        both.here.expect(one)
        both.here.break_off(7)
    both.arrive(first, *rest)
    with pytest.raises(RuntimeError, match="is lost"):
        both.d.ready("kv", 0, (7,))()
    (failed,) = both.here.poll()
    assert isinstance(failed, CopyFailed)
    assert (failed.stage, failed.ticket) == ("d", 7)
    assert torch.equal(both.d.device["kv"][0][0], both.before["kv"][0][0])


def test_a_break_after_the_end_is_nothing() -> None:
    both, one = Both(), order()
    both.here.expect(one)
    both.arrive(*both.leave(one))
    assert both.here.poll() == [CopyDone("d", 7)]
    both.here.break_off(7)
    assert both.here.poll() == []
    both.check(one)
