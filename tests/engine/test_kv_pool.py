"""Pages by group and layer, their host tier, and who waits for what."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.core.errors import ConfigError
from antiphon.nn.attention import PagedBatch
from engine.pools import BLOCK_SIZE, BLOCKS, LAYERS, new_pool


class Waited:
    """An arrival that notes who waited."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.layers: list[int] = []

    def wait(self, layer: int) -> None:
        self.layers.append(layer)


def test_groups_in_the_order_of_their_layers() -> None:
    pool = new_pool()
    assert pool.layer_groups == ("low", "high")
    assert pool.groups == ("low", "high", "beside")
    assert [len(pool.device[group]) for group in pool.groups] == [1, 3, 1]
    assert new_pool(groups=()).groups == ("kv", "beside")


@pytest.mark.parametrize("end", [3, 5])
def test_groups_end_with_the_last_layer(end: int) -> None:
    with pytest.raises(ConfigError, match=f"end at layer {end}; the stage has {LAYERS} layers"):
        new_pool(groups=(("all", 0, end),))


def test_the_host_tier_has_the_same_blocks() -> None:
    pool = new_pool(host_blocks=3)
    for group in pool.groups:
        for device, host in zip(pool.device[group], pool.host[group], strict=True):
            for there, here in zip(device, host, strict=True):
                assert here.shape == (3, *there.shape[1:])
                assert here.dtype == there.dtype


def test_layers_share_memory_with_their_group() -> None:
    pool = new_pool()
    batch = PagedBatch.build([1], [0], np.array([[3]]), BLOCK_SIZE)
    kv = pool.kv(lambda layer, group: batch)
    planes = [plane for group in pool.layer_groups for plane in pool.device[group]]
    assert [(layer.k_pages is k, layer.v_pages is v) for layer, (k, v) in zip(kv, planes, strict=True)] == [
        (True, True)
    ] * LAYERS
    assert planes[0][0].shape[0] == BLOCKS


def test_a_layer_waits_for_its_own_part() -> None:
    pool = new_pool()
    low, high, other = Waited("low"), Waited("high"), Waited("high")
    for ticket, arrival in enumerate((low, high, other)):
        pool.expect(ticket, arrival)
    batch = PagedBatch.build([1], [0], np.array([[3]]), BLOCK_SIZE)
    kv = pool.kv(lambda layer, group: batch, waits=(0, 1))
    kv[2].ready()
    assert (low.layers, high.layers, other.layers) == ([], [1], [])
    kv[0].ready()
    assert low.layers == [0]
    assert pool.ready("beside", 0, (0, 1)) is None


def test_what_has_arrived_is_not_waited_for() -> None:
    pool = new_pool()
    pool.expect(4, Waited("low"))
    assert pool.ready("low", 0, (4,)) is not None
    pool.arrived(4)
    assert pool.ready("low", 0, (4,)) is None


def test_tickets_are_ordered_first_and_ascend() -> None:
    pool = new_pool()
    pool.expect(4, Waited("low"))
    with pytest.raises(AssertionError, match="no order brings"):
        pool.ready("low", 0, (5,))
    with pytest.raises(AssertionError, match="ascend"):
        pool.expect(4, Waited("low"))
