"""The units of one process: carries out their orders, in that order, and takes parcels in for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from antiphon.core.facts import Fact, MediaArrived, PayloadArrived
from antiphon.core.plans import ArStep, CopyBlocks, DropMedia, DropPayload, Handoff, MoveBlocks, SendMedia
from antiphon.engine.features import Features
from antiphon.engine.load import LoadedUnits
from antiphon.runtime.codec import encode
from antiphon.runtime.connectors.port import Message
from antiphon.runtime.connectors.tensors import array_of, tensor_of
from antiphon.runtime.ipc_messages import (
    PARCELS,
    Arrivals,
    CompileGuide,
    GuideCompiled,
    Parcel,
    RemoteOrder,
    pages,
    parcels,
)
from antiphon.runtime.page_moves import PageMoves

Outgoing = tuple[str, Message]
"""A unit of another process, and a parcel for it."""


class LocalUnits:
    """For one thread, beside the lane's. The owner of the links empties `outgoing`, which the lane fills."""

    def __init__(self, loaded: LoadedUnits, born: int = 0) -> None:
        """born: the number of the first order that is for these units."""
        self.executors = loaded.executors
        self.mover = loaded.mover
        self.moves = PageMoves(loaded.mover.pools)
        self.lane = loaded.lane
        self.outgoing: deque[Outgoing] = deque()
        self.guides = loaded.guides
        self.compiling: list[tuple[CompileGuide, Callable[[], bool]]] = []
        """Orders for guides that are not there yet, each with what says when it is."""
        self._payloads = loaded.payloads
        self._device = loaded.device
        self._facts: deque[Fact] = deque()
        self._arrivals = Arrivals(born)

    def carry_out(self, number: int, order: RemoteOrder) -> None:
        """Nothing is raised for a step; what an order beside the steps raises comes from here or the lane."""
        match order:
            case Handoff():
                here = order.target in self.executors
                work = (
                    partial(self._payloads.handoff, order)
                    if here
                    else partial(self._send_rows, number, order)
                )
                self._in_order(work)
            case DropPayload():
                if self._arrivals.drop((order.target, "request", order.request), number):
                    self._in_order(partial(self._payloads.drop_payload, order))
            case DropMedia():
                keys = tuple(
                    key for key in order.keys if self._arrivals.drop((order.unit, "medium", key), number)
                )
                kept = msgspec.structs.replace(order, keys=keys)
                self._in_order(partial(self._payloads.drop_media, kept))
            case SendMedia():
                self._in_order(partial(self._send_media, number, order))
            case CopyBlocks():
                self.mover.copy(order)
            case MoveBlocks():
                self._move(number, order)
            case CompileGuide():
                assert self.guides is not None, "only units that write text are guided"
                self.compiling.append((order, self.guides.prepare(order.guide)))
            case _:
                self.executors[order.stage].submit(order)

    def is_held(self, order: RemoteOrder) -> bool:
        """Would it wait for another process, in the thread that takes in what comes from there?"""
        return self.lane is None and isinstance(order, ArStep) and not self.moves.has_come(order.tickets)

    def take_in(self, message: Message) -> None:
        """A parcel, or pages; the message may be released after. Raises msgspec.MsgspecError."""
        if message.kind == "Pages":
            header = pages.decode(message.header)
            if self._arrivals.is_for_us(header.number):
                self.moves.take_in(header, message)
            return
        parcel = parcels.decode(message.header)
        tensors = [tensor_of(array).to(self._device, copy=True) for array in message.arrays]
        if parcel.request is not None:
            if self._arrivals.arrives((parcel.unit, "request", parcel.request), parcel.number):
                put = partial(self._payloads.put_rows, parcel.unit, parcel.request, tensors[0])
                self._in_order(put, PayloadArrived(parcel.unit, parcel.request))
        elif parcel.key is not None and self._arrivals.arrives(
            (parcel.unit, "medium", parcel.key), parcel.number
        ):
            features = Features(tensors[0], tuple(tensors[1:]))
            put = partial(self._payloads.put_features, parcel.unit, parcel.key, features)
            self._in_order(put, MediaArrived(parcel.unit, (parcel.key,)))

    def poll(self) -> list[Fact]:
        """What has arrived and what was copied; steps are reported by the executors."""
        facts = [*self.mover.poll(), *self.moves.poll()]
        while self._facts:
            facts.append(self._facts.popleft())
        return facts

    def compiled(self) -> list[GuideCompiled]:
        """Guides that are there since the last call."""
        ready = [order for order, is_over in self.compiling if is_over()]
        self.compiling = [(order, is_over) for order, is_over in self.compiling if order not in ready]
        return [GuideCompiled(order.unit, order.guide) for order in ready]

    def _move(self, number: int, order: MoveBlocks) -> None:
        """A step that was reported has computed the sources, and none in the lane touches the targets."""
        if order.source in self.executors and order.target in self.executors:
            self.mover.move(order)
        elif order.source in self.executors:
            self.moves.send(number, order)
        else:
            self.moves.expect(order)

    def _in_order(self, work: Callable[[], None], fact: Fact | None = None) -> None:
        """After all that was ordered before, and between steps; then report."""

        def do() -> None:
            work()
            if fact is not None:
                self._facts.append(fact)

        if self.lane is None:
            do()
        else:
            self.lane.carry_out(do)

    def _send_rows(self, number: int, order: Handoff) -> None:
        header = encode(Parcel(order.target, number, request=order.request))
        arrays = (array_of(self._payloads.rows(order)),)
        message = Message(PARCELS, "Parcel", header, arrays)
        self.outgoing.append((order.target, message))

    def _send_media(self, number: int, order: SendMedia) -> None:
        for key in order.keys:
            features = self._payloads.features(key)
            arrays = tuple(array_of(rows) for rows in (features.embeddings, *features.deepstack))
            header = encode(Parcel(order.target, number, key=key))
            self.outgoing.append((order.target, Message(PARCELS, "Parcel", header, arrays)))
