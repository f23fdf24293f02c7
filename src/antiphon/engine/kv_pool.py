"""Where a stage's KV lies: pages by group and layer on the device, and a tier of the same blocks on the host.

A group is a set of layers with block ids of its own, or a payload beside them (one tensor a "layer").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from antiphon.core.config import ArConfig
from antiphon.core.errors import ConfigError
from antiphon.core.facts import Ints
from antiphon.core.graph import LAYERS
from antiphon.engine.family import Pages
from antiphon.engine.touching import Touching
from antiphon.nn.attention import LayerKv, PagedBatch

Planes = list[tuple[Tensor, ...]]
"""Per layer of a group what it keeps, each tensor [blocks, block_size, ...]."""


class Arrival(Protocol):
    """A copy that is under way. Layers are counted from the first of its group."""

    group: str

    def wait(self, layer: int) -> None:
        """Return when this layer is there, or have the device wait for it. Raises what the copy raised."""
        ...


class KvPool:
    """The pages of one stage. Raises ConfigError if the configured groups don't end with the last layer."""

    def __init__(self, pages: Pages, config: ArConfig, beside: Mapping[str, Tensor] | None = None) -> None:
        self.block_size = config.block_size
        self._pages = pages
        self._split = config.layer_groups or ((LAYERS, 0, len(pages)),)
        if self._split[-1][2] != len(pages):
            raise ConfigError(
                f"layer_groups end at layer {self._split[-1][2]}; the stage has {len(pages)} layers"
            )
        self.device: dict[str, Planes] = {name: list(pages[a:b]) for name, a, b in self._split}
        self.device |= {name: [(tensor,)] for name, tensor in (beside or {}).items()}
        ahead = max(-(-config.step_tokens // config.block_size), config.max_rows)  # those of one step
        mine = (tensor for planes in self.device.values() for layer in planes for tensor in layer)
        self._touching = Touching((tensor for tensor in mine if tensor.device.type == "cpu"), ahead)
        self.host = {name: _host_tier(planes, config.host_blocks) for name, planes in self.device.items()}
        self._arrivals: dict[int, Arrival] = {}
        self._last_ticket = -1

    @property
    def layer_groups(self) -> tuple[str, ...]:
        """Groups that hold layers, in the order of their layers."""
        return tuple(name for name, _, _ in self._split)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.device)

    def reach(self, blocks: Ints) -> None:
        """An order names these blocks of the device, int64 [n]."""
        if len(blocks):
            self._touching.reach(int(blocks.max()))

    def expect(self, ticket: int, arrival: Arrival) -> None:
        """A copy was ordered; tickets ascend."""
        assert ticket > self._last_ticket, "tickets ascend"
        self._last_ticket = ticket
        self._arrivals[ticket] = arrival

    def arrived(self, ticket: int) -> None:
        """The copy was reported done: no step has to wait for it any more."""
        del self._arrivals[ticket]

    @property
    def num_layers(self) -> int:
        return len(self._pages)

    def blank(self, block: int) -> None:
        """Forget what a block of the device holds, in every group."""
        for planes in self.device.values():
            for layer in planes:
                for tensor in layer:
                    tensor[block].zero_()

    def kv(self, batch_at: Callable[[int, str], PagedBatch], waits: tuple[int, ...] = ()) -> list[LayerKv]:
        """Every layer with the batch that `batch_at(layer, group)` gives; those to which one of the tickets
        `waits` brings something wait for it.
        """
        return [
            LayerKv(*self._pages[layer], batch_at(layer, name), self.ready(name, layer - first, waits))
            for name, first, end in self._split
            for layer in range(first, end)
        ]

    def ready(self, group: str, layer: int, waits: tuple[int, ...]) -> Callable[[], None] | None:
        """A call that waits for what these tickets bring to a layer of a group; None if that is nothing."""
        assert all(ticket <= self._last_ticket for ticket in waits), "no order brings that"
        known = [self._arrivals.get(ticket) for ticket in waits]
        mine = [arrival for arrival in known if arrival is not None and arrival.group == group]

        def wait() -> None:
            for arrival in mine:
                arrival.wait(layer)

        return wait if mine else None


def _host_tier(planes: Planes, num_blocks: int) -> Planes:
    """Zeroed tensors on the host for `num_blocks` blocks of these layers; pinned where a device copies by
    itself."""
    return [
        tuple(
            torch.zeros(
                (num_blocks, *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda"
            )
            for tensor in layer
        )
        for layer in planes
    ]
