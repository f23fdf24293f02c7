"""KV pages on their way between units of two processes, a message a layer.

The process with the source reads a layer when the link has taken those before, so that a peer that takes
none stops this, in bounded memory. The process with the target writes them as they come: nothing else touches
these blocks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator

import torch

from antiphon.core.facts import CopyDone, CopyFailed, Fact
from antiphon.core.plans import MoveBlocks
from antiphon.engine.kv_pool import KvPool
from antiphon.runtime.codec import encode
from antiphon.runtime.connectors.port import Message
from antiphon.runtime.connectors.tensors import array_of, tensor_of
from antiphon.runtime.ipc_messages import PAGES, Pages

MOST_KEPT_TICKETS = 4096


class Arriving:
    """Layers of one order. Implements `engine.kv_pool.Arrival`: a lane's thread waits, another one fills."""

    def __init__(self, group: str, num_layers: int) -> None:
        self.group = group
        self.is_broken = False
        self._layers = [threading.Event() for _ in range(num_layers)]

    def wait(self, layer: int) -> None:
        self._layers[layer].wait()
        if self.is_broken:
            raise RuntimeError("the unit that was to send these pages is lost")

    def came(self, layer: int) -> None:
        self._layers[layer].set()

    def break_off(self) -> None:
        self.is_broken = True
        for layer in self._layers:
            layer.set()

    @property
    def is_over(self) -> bool:
        return all(layer.is_set() for layer in self._layers)


class PageMoves:
    """Moves whose other end is in another process. Owner of what is on its way to the pools of this one."""

    def __init__(self, pools: dict[str, KvPool]) -> None:
        self._pools = pools
        self._leaving: dict[str, deque[Iterator[Message]]] = {}
        """By the unit they are for: one that takes none holds up no other."""
        self._arriving: dict[int, Arriving] = {}
        """By ticket; a layer may come before the order that says so."""
        self._ordered: dict[int, str] = {}
        """By ticket, the unit that waits."""
        self._broken: OrderedDict[int, None] = OrderedDict()

    # -- leaving -------------------------------------------------------------------------------------

    def send(self, number: int, order: MoveBlocks) -> None:
        self._leaving.setdefault(order.target, deque()).append(self._layers(number, order))

    @property
    def targets(self) -> tuple[str, ...]:
        """Units for which layers are to leave."""
        return tuple(self._leaving)

    def next_layer(self, target: str) -> Message | None:
        """Read the next one for it now; None where there is none left."""
        orders = self._leaving[target]
        while orders:
            message = next(orders[0], None)
            if message is not None:
                return message
            orders.popleft()
        del self._leaving[target]
        return None

    def _layers(self, number: int, order: MoveBlocks) -> Iterator[Message]:
        """CUDA: unverified, has not run on an accelerator."""
        sources, targets = torch.from_numpy(order.sources), tuple(order.targets.tolist())
        for layer, planes in enumerate(self._pools[order.source].device[order.group]):
            arrays = tuple(array_of(plane[sources.to(plane.device)]) for plane in planes)
            header = Pages(order.target, number, order.ticket, order.group, layer, targets)
            yield Message(PAGES, "Pages", encode(header), arrays)

    # -- arriving ------------------------------------------------------------------------------------

    def expect(self, order: MoveBlocks) -> None:
        """Steps that are ordered from now on may wait for it."""
        arriving = self._arrival(order.target, order.ticket, order.group)
        if order.ticket in self._broken:
            arriving.break_off()
        self._ordered[order.ticket] = order.target
        self._pools[order.target].reach(order.targets)
        self._pools[order.target].expect(order.ticket, arriving)

    def take_in(self, header: Pages, message: Message) -> None:
        """One layer; the message may be released after."""
        if header.ticket in self._broken:
            return
        planes = self._pools[header.unit].device[header.group][header.layer]
        targets = torch.tensor(header.targets)
        for plane, array in zip(planes, message.arrays, strict=True):
            plane[targets.to(plane.device)] = tensor_of(array).to(plane.device)
        self._arrival(header.unit, header.ticket, header.group).came(header.layer)

    def break_off(self, ticket: int) -> None:
        """Nothing more of it comes, or is taken."""
        self._broken[ticket] = None
        if len(self._broken) > MOST_KEPT_TICKETS:
            self._broken.popitem(last=False)
        if ticket in self._arriving:
            self._arriving[ticket].break_off()

    def has_come(self, tickets: tuple[int, ...]) -> bool:
        """Would a step that waits for these begin without waiting for another process?"""
        return all(self._arriving[ticket].is_over for ticket in tickets if ticket in self._arriving)

    def poll(self) -> list[Fact]:
        """What has come, or never will; once."""
        facts: list[Fact] = []
        for ticket, unit in list(self._ordered.items()):
            arriving = self._arriving[ticket]
            if not arriving.is_over:
                continue
            del self._ordered[ticket], self._arriving[ticket]
            if arriving.is_broken:
                facts.append(CopyFailed(unit, ticket, "the unit that was to send these pages is lost"))
            else:
                self._pools[unit].arrived(ticket)
                facts.append(CopyDone(unit, ticket))
        return facts

    def _arrival(self, unit: str, ticket: int, group: str) -> Arriving:
        if ticket not in self._arriving:
            self._arriving[ticket] = Arriving(group, len(self._pools[unit].device[group]))
        return self._arriving[ticket]
