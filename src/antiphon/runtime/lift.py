"""A record of version 1 as one of version 2: the same facts, and the same decisions in their new shape.

A record of version 1 has no policies: its preset's name says which they were. `ArStep.waits` were tickets
without the rows that wait for them; block tables tell those. Codecs and encoders chose their steps without a
policy, and gave reasons of their own; now the step policy chooses, and gives its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from antiphon.assembly.preset import resolved
from antiphon.core.errors import ConfigError
from antiphon.core.plans import ints
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.record import VERSION, Entry, Header, framed, frames

REASONS = {"baseline": "prompts first", "fcfs": "first come first served"}
"""That the step policies of the presets of version 1 give."""
FORMER = {"CodecStep": "whole chunks", "EncodeStep": "first come first served"}
Array = tuple[str, list[int], bytes]


def lift(old: Path, new: Path) -> int:
    """Write the record `old` as `new`, and return how many decisions it has. Raises ConfigError if `old` is
    no record of version 1 or `new` exists, and OSError."""
    if new.exists():
        raise ConfigError(f"{new} exists already; name a file that does not")
    try:
        return _lift(frames(old), new)
    except (StopIteration, msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        new.unlink(missing_ok=True)
        raise ConfigError(f"{old} is not a record of version 1, or it is damaged ({error!r})") from None


def _lift(read: Iterator[bytes], new: Path) -> int:
    header: Header = decoder(Header).decode(next(read))
    if header.version != 1:
        raise ConfigError(f"the record has version {header.version}, and only those of version 1 are lifted")
    header = Header(VERSION, header.depth, resolved(header.node))
    lifter, entries, count = Lifter(header.node.preset), decoder(Entry), 0
    with new.open("wb") as file:
        file.write(framed(header))
        for frame in read:
            count += 1
            entry: dict[str, Any] = msgspec.msgpack.decode(frame)
            for order in entry["decision"]["orders"]:
                lifter.turn(order)
            lifted: Entry = entries.decode(encode(entry))
            file.write(framed(lifted))
    return count


class Lifter:
    """Turns orders, in the order of the file. Owner of block tables and of what copies fill."""

    def __init__(self, preset: str) -> None:
        self._reason = REASONS[preset]
        self._tables: dict[tuple[str, str], dict[tuple[int, int], int]] = {}
        """By unit and KV group: the block at (row, index)."""
        self._filled: dict[tuple[str, int], tuple[str, frozenset[int]]] = {}
        """By unit and ticket: the group and its blocks."""

    def turn(self, order: dict[str, Any]) -> None:
        """In place."""
        kind = order["type"]
        if order.get("reason") == FORMER.get(kind, ""):
            order["reason"] = self._reason
        elif kind == "CopyBlocks" and order["to"] == "device":
            self._fill(order["stage"], order)
        elif kind == "MoveBlocks":
            self._fill(order["target"], order)
        elif kind == "ArStep":
            self._step(order)

    def _fill(self, unit: str, order: dict[str, Any]) -> None:
        self._filled[unit, order["ticket"]] = order["group"], frozenset(_list(order["targets"]))

    def _step(self, order: dict[str, Any]) -> None:
        unit = order["stage"]
        for delta in order["blocks"]:
            table = self._tables.setdefault((unit, delta["group"]), {})
            places = zip(_list(delta["rows"]), _list(delta["index"]), strict=True)
            table.update(zip(places, _list(delta["blocks"]), strict=True))
        tickets, rows = order["waits"], _list(order["rows"])
        order["waits"] = [ints([self._row(unit, ticket, rows) for ticket in tickets]), ints(tickets)]

    def _row(self, unit: str, ticket: int, rows: list[int]) -> int:
        """The row of a step that waits for a ticket: of several, the last in the step's order."""
        group, blocks = self._filled[unit, ticket]
        table = self._tables[unit, group]
        holding = {row for (row, _), block in table.items() if block in blocks}
        return [row for row in rows if row in holding][-1]


def _list(array: Array) -> list[int]:
    return memoryview(array[2]).cast("q").tolist()
