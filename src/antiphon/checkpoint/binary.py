"""Reading binary model files that nobody vouches for: bounds before bytes, and one error for all that is
wrong.

The formats stand in `gguf`, `ctranslate2` and `onnx`. A number read from a file is checked against what the
file still holds before anything of that size is made, so a damaged file costs no more memory than a good one
of its size.
"""

from __future__ import annotations

import math
import mmap
import struct
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np

from antiphon.core.errors import CheckpointError, system_words

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from pathlib import Path

Part = TypeVar("Part")
Buffer = bytes | bytearray | memoryview | mmap.mmap

MAX_ENTRIES = 65_536
"""Tensors, metadata or nodes of one file: a released model has a few hundred."""
MAX_RANK = 8


class Cursor:
    """Walks over part of a buffer. Every `take` is checked against its end.

    file   names the source in errors
    """

    def __init__(self, buffer: Buffer, file: str, start: int = 0, end: int | None = None) -> None:
        self.view = memoryview(buffer)
        self.file = file
        self.position = start
        self.end = len(self.view) if end is None else end

    @property
    def left(self) -> int:
        """Bytes from here to the end."""
        return self.end - self.position

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        """Raise CheckpointError: `what` is wrong at a byte, by default the next one."""
        at = self.position if at is None else at
        raise CheckpointError(f"{self.file}, byte {at}: {what}. The file is damaged; fetch it again")

    def take(self, count: int, what: str) -> memoryview:
        """The next `count` bytes; raises CheckpointError if there are fewer."""
        if count > self.left:
            self.fail(f"{what} takes {count} bytes, but only {self.left} are left")
        self.position += count
        return self.view[self.position - count : self.position]

    def number(self, form: str, what: str) -> int:
        """The next number of a `struct` format, little-endian."""
        size = struct.calcsize(f"<{form}")
        return struct.unpack(f"<{form}", self.take(size, what))[0]

    def text(self, count: int, what: str) -> str:
        """The next `count` bytes as UTF-8."""
        at = self.position
        try:
            return str(self.take(count, what), "utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8", at)

    def new(self, name: str, found: Container[str]) -> str:
        """`name`, if it is not in `found`; raises CheckpointError otherwise."""
        if name in found:
            self.fail(f"{name!r:.80} is there twice")
        return name

    def count(self, found: int, least_bytes: int, what: str, most: int | None = MAX_ENTRIES) -> int:
        """`found`, if so many of `least_bytes` each can follow; raises CheckpointError otherwise."""
        if most is not None and found > most:
            self.fail(f"{found} {what}, more than the {most} that are read")
        if found * least_bytes > self.left:
            self.fail(
                f"{found} {what} take at least {found * least_bytes} bytes, but only {self.left} are left"
            )
        return found


def view_file(path: Path) -> Buffer:
    """A file's bytes, mapped and not read; raises CheckpointError if there is no such file."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # nothing can be mapped of an empty file
        return b""
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({system_words(error)}). Fetch it again") from None


def check_shape(cursor: Cursor, shape: Sequence[int], bits: int, num_bytes: int, what: str) -> None:
    """Raise CheckpointError unless a shape of `bits` an element takes exactly `num_bytes`."""
    if len(shape) > MAX_RANK or any(extent < 1 for extent in shape):
        cursor.fail(f"{what} has the shape {list(shape)[: MAX_RANK + 1]}")
    if math.prod(shape) * bits != num_bytes * 8:
        needed = math.prod(shape) * bits // 8
        cursor.fail(f"{what} of shape {list(shape)} takes {needed} bytes, but has {num_bytes}")


def expected(parts: Mapping[str, Part], name: str, file: str, what: str) -> Part:
    """The part of this name; raises CheckpointError if the file has no such tensor."""
    if name not in parts:
        raise CheckpointError(f"{file} has no {what} {name!r}: it is not the model that was expected")
    return parts[name]


def as_array(data: memoryview, dtype: str, shape: Sequence[int] | None = None) -> np.ndarray:
    """Bytes as an array that shares them."""
    array = np.frombuffer(data, dtype)
    return array if shape is None else array.reshape(tuple(shape))
