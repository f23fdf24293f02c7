"""Copies under way to and from the device of one unit: which tickets, of which blocks, answered or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from antiphon.core.facts import CopyFact, CopyFailed, Ints
from antiphon.core.plans import CopyBlocks, MoveBlocks, ints
from antiphon.kv.host import HostCopy
from antiphon.kv.sequences import Arrival
from antiphon.kv.stage_kv import StageKv

CHUNK_BLOCKS = 32
"""Blocks of one order for what no request waits for: to cancel it is to order no more."""
MAX_CHUNKS = 2
"""Orders on their way in a direction, so that the link is never idle while the next one is decided."""

Purpose = Literal["store", "load", "preload", "move"]
"""Of copies: to the host; back from it for a request that waits, or for none yet; from another unit."""


@dataclass(slots=True, eq=False)
class KvLease:
    """Blocks of `source` that `target` may copy. They are not handed out before the lease is returned.

    blocks      as `source` numbers them; `slots` int64 [groups, n] says where they are
    num_tokens  leading positions of the request that they hold
    is_void     the source is gone, and the blocks with it
    """

    source: str
    target: str
    blocks: Sequence[int]
    slots: Ints
    num_tokens: int
    is_void: bool = False


@dataclass(slots=True, eq=False)
class Transfer:
    """Whole blocks on their way, an order for each KV group.

    blocks    on the device; `copies` on the host, one for each, or else the last ones of `lease`
    groups    indices of the groups that are copied; None: all
    arrival   what a resting sequence is brought; None: a running one, or nothing
    reload_wait_since_s  since when a request waits for it that has joined meanwhile; is_resumed: one that was
              preempted
    tickets   orders that are not answered yet
    has_failed  one of them broke off: what it was to bring is of no use
    is_preload  no request waits for it
    """

    to: Literal["device", "host"]
    blocks: Sequence[int]
    copies: Sequence[HostCopy] = ()
    groups: tuple[int, ...] | None = None
    arrival: Arrival | None = None
    lease: KvLease | None = None
    reload_wait_since_s: float | None = None
    is_resumed: bool = False
    tickets: set[int] = field(default_factory=set[int])
    has_failed: bool = False
    is_preload: bool = False

    @property
    def purpose(self) -> Purpose:
        if self.lease is not None:
            return "move"
        if self.to == "host":
            return "store"
        return "preload" if self.is_preload else "load"

    @property
    def is_doubtful(self) -> bool:
        """It broke off, or may yet."""
        return self.has_failed or bool(self.tickets)


CopyOrder = CopyBlocks | MoveBlocks


class Transfers:
    """Orders copies of one unit and follows them.

    `tickets` ascend, and no other order of the node has one of them.
    `order` says in which order the groups of a block are copied: payloads before layers, so that a step that
    has waited for its last layer has waited for all.
    """

    def __init__(
        self,
        unit: str,
        kv: StageKv,
        order: Sequence[int],
        tickets: Iterator[int],
        told: Callable[[CopyOrder], None],
    ) -> None:
        """told: of every order."""
        self._unit = unit
        self._kv = kv
        self._order = order
        self._tickets = tickets
        self._told = told
        self._orders: list[CopyOrder] = []
        self._under_way: dict[int, Transfer] = {}
        self._arriving: dict[int, Transfer] = {}
        self.num_blocks = {"device": 0, "host": 0}
        """On their way, by where to."""
        self.num_failed_blocks = Counter[Purpose]()
        """Of copies that broke off in a KV group."""

    @property
    def num_in_flight(self) -> int:
        """Orders that are not answered."""
        return len(self._under_way)

    def begin(self, transfer: Transfer) -> None:
        """Order its copies."""
        for group in self._order:
            if transfer.groups is not None and group not in transfer.groups:
                continue
            ticket = next(self._tickets)
            copy = self._ordered(transfer, group, ticket)
            self._orders.append(copy)
            self._told(copy)
            transfer.tickets.add(ticket)
            self._under_way[ticket] = transfer
        self.num_blocks[transfer.to] += len(transfer.blocks)
        if transfer.to == "device":
            self._arriving.update(dict.fromkeys(transfer.blocks, transfer))

    def _ordered(self, transfer: Transfer, group: int, ticket: int) -> CopyOrder:
        name, lease = self._kv.groups[group], transfer.lease
        here = self._kv.blocks.slots(transfer.blocks)[group]
        if lease is not None:
            there = lease.slots[group, -len(transfer.blocks) :]
            return MoveBlocks(lease.source, self._unit, name, there, here, ticket)
        there = ints([copy.slots[group] for copy in transfer.copies])
        ends = (there, here) if transfer.to == "device" else (here, there)
        return CopyBlocks(self._unit, name, transfer.to, *ends, ticket)

    def answer(self, fact: CopyFact) -> Transfer | None:
        """An order was answered; returns the transfer it belongs to, None if it is unknown (any more)."""
        transfer = self._under_way.pop(fact.ticket, None)
        if transfer is None:
            return None
        transfer.tickets.remove(fact.ticket)
        if isinstance(fact, CopyFailed) and not transfer.has_failed:
            transfer.has_failed = True
            self.num_failed_blocks[transfer.purpose] += len(transfer.blocks)
        if not transfer.tickets:
            self.num_blocks[transfer.to] -= len(transfer.blocks)
            if transfer.to == "device":
                for block in transfer.blocks:
                    del self._arriving[block]
        return transfer

    def bringing(self, blocks: Iterable[int]) -> tuple[Transfer, ...]:
        """What has still to arrive in these device blocks."""
        if not self._arriving:
            return ()
        found = (self._arriving.get(block) for block in blocks)
        return tuple(dict.fromkeys(transfer for transfer in found if transfer is not None))

    def are_arriving(self, blocks: Iterable[int]) -> bool:
        """Has something still to arrive in each of these device blocks?"""
        return all(block in self._arriving for block in blocks)

    def drain(self) -> tuple[CopyOrder, ...]:
        """Orders since the last call."""
        if not self._orders:
            return ()
        orders, self._orders = tuple(self._orders), []
        return orders
