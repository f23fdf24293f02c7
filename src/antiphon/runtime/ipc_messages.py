"""What crosses between the engine's process and those of its units, and how: orders, facts, parcels.

A message's kind says what it is; large ones travel as an array, since headers are never divided. Orders carry
a number: a drop may overtake the parcel it is about, and by the numbers the receiver knows which came first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import msgspec

from antiphon.core.config import EngineOptions
from antiphon.core.facts import Fact
from antiphon.core.plans import CopyBlocks, DropMedia, DropPayload, Handoff, MoveBlocks, SendMedia, Step
from antiphon.core.sampling import Guide
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.connectors.port import Array, Message
from antiphon.runtime.messages import Failed, LoadProgress

BODY_BYTES = 64 << 10
"""Longer values travel beside the header."""

MOST_KEPT_DROPS = 4096

ORDERS, WORDS, FACTS, PARCELS, PAGES = "orders", "words", "facts", "parcels", "pages"
"""Channels. Words are what has to come through beside orders that wait."""


class CompileGuide(msgspec.Struct, frozen=True, tag=True):
    """The unit's texts will have to match it; answered by GuideCompiled."""

    unit: str
    guide: Guide


class GuideCompiled(msgspec.Struct, frozen=True, tag=True):
    """It is over: the unit's texts can begin to follow it, or will be refused."""

    unit: str
    guide: Guide


RemoteOrder = Handoff | DropPayload | DropMedia | SendMedia | CopyBlocks | MoveBlocks | CompileGuide | Step


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Load the units of `process`; orders numbered below `born` were for one that is no more."""

    source: str
    options: EngineOptions
    process: str
    born: int


class Ordered(msgspec.Struct, frozen=True, tag=True, eq=False):
    """An order of the deciding half; later ones have higher numbers, whichever process they go to."""

    number: int
    order: RemoteOrder


class Broken(msgspec.Struct, frozen=True, tag=True):
    """What this ticket of MoveBlocks was to bring to `unit` does not come, since its source is lost. Orders
    that wait for it are behind this, whatever came before."""

    unit: str
    ticket: int


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Are you there?"""


class Here(msgspec.Struct, frozen=True, tag=True):
    """The answer: between two orders."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """All units are loaded."""


class Happened(msgspec.Struct, frozen=True, tag=True, eq=False):
    """A fact about one of the process's units."""

    fact: Fact


class Parcel(msgspec.Struct, frozen=True, tag=True):
    """The header of tensors for a unit, beside it as arrays: rows of a hand-off, or one medium's features.

    number   of the order by which it was sent
    request  of a hand-off, None of a medium
    key      of a medium
    """

    unit: str
    number: int
    request: int | None = None
    key: int | None = None


class Pages(msgspec.Struct, frozen=True, tag=True):
    """The header of one layer's blocks of a KV group, for blocks `targets` of `unit`, beside it as arrays.

    number  of the order by which they were sent; `ticket` is the order's own
    """

    unit: str
    number: int
    ticket: int
    group: str
    layer: int
    targets: tuple[int, ...]


class LinkOffer(msgspec.Struct, frozen=True):
    """Comes with a socket: a link with that process, "" for the engine's."""

    process: str
    connector: str = "shared_memory"


Downward = Begin | Ordered | Broken | Ask
Upward = Ready | Here | Happened | GuideCompiled | Failed | LoadProgress

downward = decoder(Downward, own_arrays=True)
upward = decoder(Upward)
parcels = msgspec.msgpack.Decoder(Parcel)
pages = msgspec.msgpack.Decoder(Pages)
link_offers = msgspec.msgpack.Decoder(LinkOffer)


def packed(channel: str, value: Any) -> Message:
    """A value as a message of its own."""
    data = encode(value)
    kind = type(value).__name__
    if len(data) <= BODY_BYTES:
        return Message(channel, kind, data)
    return Message(channel, kind, arrays=(Array("uint8", (len(data),), memoryview(data)),))


def unpacked(message: Message, kinds: msgspec.msgpack.Decoder[Any]) -> Any:
    """What was packed; nothing of it looks at the message any more. Raises msgspec.MsgspecError."""
    return kinds.decode(message.arrays[0].data if message.arrays else message.header)


class Arrivals:
    """Tells what came from what was dropped meanwhile, by the numbers of the orders.

    born  parcels of older orders were for a process that is gone
    """

    def __init__(self, born: int = 0) -> None:
        self._born = born
        self._held: dict[Hashable, int] = {}
        self._dropped: OrderedDict[Hashable, int] = OrderedDict()

    def is_for_us(self, number: int) -> bool:
        """Was it sent since these units are there?"""
        return number >= self._born

    def arrives(self, name: Hashable, number: int) -> bool:
        """Is it still wanted?"""
        if number < max(self._born, self._dropped.get(name, 0)):
            return False
        self._held[name] = max(number, self._held.get(name, 0))
        return True

    def drop(self, name: Hashable, number: int) -> bool:
        """Is what is here to be forgotten? Not if it was sent after the drop was ordered."""
        self._dropped[name] = number
        self._dropped.move_to_end(name)
        if len(self._dropped) > MOST_KEPT_DROPS:
            self._dropped.popitem(last=False)
        if self._held.get(name, 0) > number:
            return False
        self._held.pop(name, None)
        return True
