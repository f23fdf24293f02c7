"""Record and replay: every fact and decision of a node in order, and the same decisions made again.

A record file is a sequence of length-prefixed msgpack frames: a header with the node's configuration, then
one frame per decision. Raw media and audio are left out: nothing is decided upon them but how long audio is,
so it is silence of the same length when a record is read.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from antiphon.assembly.node import Node
from antiphon.assembly.preset import replayable, resolved
from antiphon.core.config import NodeConfig
from antiphon.core.conversation import AudioPart, ImagePart, VideoPart
from antiphon.core.errors import ConfigError, system_words
from antiphon.core.facts import Fact, StepDone
from antiphon.core.plans import Decision
from antiphon.runtime.codec import decoder, encode

log = logging.getLogger(__name__)

VERSION = 2
SAMPLE_BYTES = 4


class Header(msgspec.Struct, frozen=True):
    """What a node needs to be made again."""

    version: int
    depth: int
    node: NodeConfig


class Entry(msgspec.Struct, frozen=True, eq=False):
    """One call of `Node.decide`."""

    now: float
    facts: tuple[Fact, ...]
    decision: Decision


class Difference(msgspec.Struct, frozen=True):
    """A decision that came out otherwise; `index` counts entries from 0."""

    index: int
    now: float
    recorded: str
    replayed: str


class RecordWriter:
    """Writes entries as they happen. Implements `runtime.driver.DecisionRecorder`.

    The header has the policies, their options and the digests of those that do not ship. Raises ConfigError
    if the file cannot be begun, or is there already. If it cannot be continued (a full disk), the record ends
    there (`has_stopped`) and the engine goes on.
    """

    has_stopped = False

    def __init__(self, path: Path, node: NodeConfig, depth: int) -> None:
        try:
            # unbuffered: what was decided is on record however the process ends
            self._file = path.open("wb" if is_device(path) else "xb", buffering=0)
            try:
                self._frame(Header(VERSION, depth, resolved(node)))
            except OSError:
                self._file.close()
                raise
        except FileExistsError:
            raise ConfigError(_exists(path)) from None
        except OSError as error:
            raise ConfigError(f"cannot write the record {path}: {system_words(error)}") from None

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None:
        if self._file.closed:
            return
        try:
            self._frame(Entry(now, tuple(facts), decision))
        except OSError:
            log.exception("the record ends here")
            self.has_stopped = True
            self._file.close()

    def close(self) -> None:
        self._file.close()

    def _frame(self, message: Header | Entry) -> None:
        frame = framed(message)
        if self._file.write(frame) < len(frame):
            raise OSError("the disk is full")


def check_new(path: Path) -> None:
    """Raise ConfigError if no record can be begun there, as far as can be said without beginning one."""
    if path.exists() and not is_device(path):
        raise ConfigError(_exists(path))
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"cannot write the record {path}: {path.absolute().parent} is not a directory")


def unused(path: Path) -> Path:
    """It, if a record can be begun there, or the first of that name and a number that is not there yet."""
    found, number = path, 1
    while found.exists() and not is_device(found):
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found


def is_device(path: Path) -> bool:
    """Say a pipe, or /dev/null: nothing is lost by writing to it."""
    return path.exists() and not (path.is_file() or path.is_dir())


def _exists(path: Path) -> str:
    return f"the record {path} is there already, and is not written over: name another file, or move it away"


def framed(message: Header | Entry) -> bytes:
    """A message as bytes of the file: its length, then its encoding without media."""
    data = encode(without_media(message))
    return struct.pack("<I", len(data)) + data


def read_record(path: Path) -> tuple[Header, Iterator[Entry]]:
    """Header and entries. A frame cut short by a crash ends the record; raises ConfigError for a file that is
    not there, for a foreign one and, while entries are read, for a damaged one."""
    read = frames(path)
    try:
        header: Header = decoder(Header).decode(next(read))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({system_words(error)}); name a file that `antiphon serve --record` wrote"
        ) from None
    except (StopIteration, msgspec.MsgspecError):
        raise ConfigError(f"{path} is not a record file (written by `antiphon serve --record`)") from None
    if header.version != VERSION:
        way = f", and `antiphon lift {path} NEW` makes one of it" if header.version == 1 else ""
        raise ConfigError(f"{path} has record version {header.version}; this program reads {VERSION}{way}")
    return header, _entries(path, read)


def ends_early(path: Path) -> bool:
    """Is the last frame cut short?"""
    return path.stat().st_size > sum(4 + len(frame) for frame in frames(path))


class Decider(Protocol):
    """A node, or what turns one and looks on."""

    def decide(self, facts: tuple[Fact, ...], now: float) -> Decision: ...


def replay(
    path: Path, preset: str = "", make: Callable[[NodeConfig, int], Decider] = Node
) -> tuple[int, list[Difference]]:
    """Decide again on the recorded facts; returns how many decisions, and those that differ. `preset`: names
    the code of policies that do not ship. `make`: of configuration and depth. Raises ConfigError where the
    preset is another, or is not named."""
    header, entries = read_record(path)
    node = make(replayable(header.node, preset), header.depth)
    differences: list[Difference] = []
    count = 0
    for count, entry in enumerate(entries, 1):
        decision = without_media(node.decide(entry.facts, entry.now))
        if encode(decision) != encode(entry.decision):
            difference = Difference(count - 1, entry.now, describe(entry.decision), describe(decision))
            differences.append(difference)
    return count, differences


def describe(decision: Decision) -> str:
    """A decision in one line."""
    orders = [f"{type(order).__name__}({getattr(order, 'stage', '')})" for order in decision.orders]
    outputs = [type(output).__name__ for output in decision.outputs]
    return f"orders [{', '.join(orders)}] outputs [{', '.join(outputs)}]"


def without_media(message: Any) -> Any:
    """The message with raw media and audio bytes emptied; content keys stay."""
    if isinstance(message, AudioPart):
        return AudioPart(b"", message.key, message.options)
    if isinstance(message, ImagePart):
        return ImagePart(b"", message.width, message.height, message.key)
    if isinstance(message, VideoPart):
        sound = None if message.audio is None else b""
        return msgspec.structs.replace(message, frames=b"", audio=sound)
    if isinstance(message, tuple):
        return tuple(without_media(entry) for entry in message)
    if not isinstance(message, msgspec.Struct):
        return message
    values = {name: without_media(getattr(message, name)) for name in message.__struct_fields__}
    if isinstance(values.get("audio"), bytes):
        values["audio"] = b""
    elif isinstance(values.get("audio"), tuple):
        values["audio"] = (b"",) * len(values["audio"])
    if isinstance(values.get("logprobs"), bytes | tuple):
        values["logprobs"] = type(values["logprobs"])()
    return type(message)(**values)


def _entries(path: Path, read: Iterator[bytes]) -> Iterator[Entry]:
    entries = decoder(Entry)
    for index, frame in enumerate(read):
        try:
            entry = entries.decode(frame)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}: entry {index} is damaged ({error})") from None
        yield Entry(entry.now, tuple(map(_sounding, entry.facts)), entry.decision)


def _sounding(fact: Fact) -> Fact:
    """With silence for the audio that was left out."""
    if not isinstance(fact, StepDone) or not fact.audio:
        return fact
    silence = tuple(bytes(SAMPLE_BYTES * count) for count in fact.samples.tolist())
    return msgspec.structs.replace(fact, audio=silence)


def frames(path: Path) -> Iterator[bytes]:
    """Header and entries as bytes. One cut short ends them."""
    with path.open("rb") as file:
        while len(head := file.read(4)) == 4:
            size = struct.unpack("<I", head)[0]
            data = file.read(size)
            if len(data) < size:
                return
            yield data
