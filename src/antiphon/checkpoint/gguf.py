"""GGUF files, versions 2 and 3: metadata, and tensors as blocks, or dequantised to float32.

The layout is that of llama.cpp's `gguf.h` and the block formats those of its `ggml-common.h`. Files are
checked whole when they are opened; `binary` says against what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from antiphon.checkpoint.binary import Buffer, Cursor, as_array, expected, view_file
from antiphon.core.errors import CheckpointError
from antiphon.core.quantised import Groups, Quantised, Super

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 2**20
MIN_METADATA_BYTES, MIN_TENSOR_BYTES, MIN_STRING_BYTES = 13, 24, 8
MAX_DIMENSIONS = 4

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
"""Metadata types that are numbers, by their `struct` letter."""
BOOL, STRING, ARRAY = 7, 8, 9


class Encoding(NamedTuple):
    """How a tensor's elements are stored.

    block_elements  elements of a block; the last dimension is a multiple of it
    block_bytes     bytes of such a block
    decode          (blocks, block_bytes) uint8 to (blocks, block_elements) float32
    group           elements that share a scale; 0 where there are no scales
    split           (blocks, block_bytes) uint8 to the parts of `core.quantised.Groups`, each [blocks, ...]
    """

    name: str
    block_elements: int
    block_bytes: int
    decode: Callable[[np.ndarray], np.ndarray]
    group: int = 0
    split: Callable[[np.ndarray], Groups] | None = None


def _quantised(
    name: str, elements: int, num_bytes: int, group: int, split: Callable[[np.ndarray], Groups]
) -> Encoding:
    return Encoding(name, elements, num_bytes, lambda blocks: split(blocks).numbers(), group, split)


def _halves(blocks: np.ndarray, first: int) -> np.ndarray:
    """The float16 at byte `first` of every block, as a column of float32."""
    return _half(blocks, first).astype(np.float32)


def _half(blocks: np.ndarray, first: int) -> np.ndarray:
    return blocks[:, first : first + 2].copy().view("<f2")


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Of every row of bytes the low four bits, then the high four: int8 [..., 2 n]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).view(np.int8)


def _q4_0(blocks: np.ndarray) -> Groups:
    scale = _halves(blocks, 0)
    return Groups(scale, -8 * scale, _nibbles(blocks[:, None, 2:]))


def _q4_1(blocks: np.ndarray) -> Groups:
    return Groups(_halves(blocks, 0), _halves(blocks, 2), _nibbles(blocks[:, None, 4:]))


def _fifths(blocks: np.ndarray, first: int) -> np.ndarray:
    """Numbers of five bits, 32 a block: the highest of each stand together, in four bytes before the others.
    int8 [blocks, 1, 32]."""
    highest = np.unpackbits(blocks[:, first : first + 4], axis=1, bitorder="little").view(np.int8)
    return (_nibbles(blocks[:, first + 4 :]) | highest << 4)[:, None]


def _q5_0(blocks: np.ndarray) -> Groups:
    scale = _halves(blocks, 0)
    return Groups(scale, np.zeros_like(scale), _fifths(blocks, 2) - np.int8(16))


def _q5_1(blocks: np.ndarray) -> Groups:
    return Groups(_halves(blocks, 0), _halves(blocks, 2), _fifths(blocks, 4))


def _q8_0(blocks: np.ndarray) -> Groups:
    scale = _halves(blocks, 0)
    return Groups(scale, np.zeros_like(scale), blocks[:, None, 2:].view(np.int8))


def _q4_k(blocks: np.ndarray) -> Groups:
    """Eight groups; their scales and lowest numbers have six bits each, in twelve bytes."""
    packed = blocks[:, 4:16]
    low, mid, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    steps = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], 1).astype(np.uint8)
    bases = np.concatenate([mid & 63, (high >> 4) | (mid >> 6 << 4)], 1).astype(np.uint8)
    quants = _nibbles(blocks[:, -128:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    d, least = _half(blocks, 0), _half(blocks, 2)
    scales, lowest = d.astype(np.float32) * steps, -(least.astype(np.float32) * bases)
    return Groups(scales, lowest, quants, Super(d, least, steps, bases))


def _q5_k(blocks: np.ndarray) -> Groups:
    """As Q4_K; of the numbers' highest bits those of a group are one bit of 32 bytes."""
    low = _q4_k(blocks)
    highest = blocks[:, 16:48][:, None] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return low._replace(quants=low.quants | (highest << 4).view(np.int8), parts=None)


def _q6_k(blocks: np.ndarray) -> Groups:
    """Sixteen groups; four bits of a number are in one place and two in another."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    quants = (low | (high << 4).view(np.int8)) - np.int8(32)
    scales = (_halves(blocks, 208) * blocks[:, 192:208].view(np.int8)).astype(np.float32)
    return Groups(scales, np.zeros_like(scales), quants.reshape(-1, 16, 16))


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


ENCODINGS = {
    0: Encoding("F32", 1, 4, lambda blocks: blocks.view("<f4")),
    1: Encoding("F16", 1, 2, lambda blocks: blocks.view("<f2").astype(np.float32)),
    2: _quantised("Q4_0", 32, 18, 32, _q4_0),
    3: _quantised("Q4_1", 32, 20, 32, _q4_1),
    6: _quantised("Q5_0", 32, 22, 32, _q5_0),
    7: _quantised("Q5_1", 32, 24, 32, _q5_1),
    8: _quantised("Q8_0", 32, 34, 32, _q8_0),
    12: _quantised("Q4_K", 256, 144, 32, _q4_k),
    13: _quantised("Q5_K", 256, 176, 32, _q5_k),
    14: _quantised("Q6_K", 256, 210, 16, _q6_k),
    30: Encoding("BF16", 1, 2, _bf16),
}
"""By llama.cpp's number. Another one is a line here."""


@dataclass(frozen=True, slots=True)
class SplitBlocks:
    """Takes rows of blocks apart; goes to other processes."""

    encoding: int

    def __call__(self, rows: np.ndarray) -> Groups:
        encoding = ENCODINGS[self.encoding]
        assert encoding.split is not None
        found = encoding.split(rows.reshape(-1, encoding.block_bytes))
        parts = found.parts

        def by_row(part: np.ndarray) -> np.ndarray:
            return part.reshape(len(rows), -1, *part.shape[2:])

        return Groups(
            *(by_row(part) for part in (found.scales, found.lowest, found.quants)),
            parts=None if parts is None else Super(*map(by_row, parts)),
        )


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """shape as torch has it: the last dimension is the one whose elements lie side by side."""

    shape: tuple[int, ...]
    encoding: Encoding
    data: memoryview

    def in_blocks(self) -> Quantised | None:
        """The tensor's blocks as they lie in the file; None unless it is a quantised matrix."""
        if self.encoding.split is None or len(self.shape) != 2:
            return None
        number = next(number for number, encoding in ENCODINGS.items() if encoding is self.encoding)
        data = as_array(self.data, "u1", (self.shape[0], -1))
        return Quantised(self.encoding.name, self.encoding.group, self.shape[1], data, SplitBlocks(number))


@dataclass(frozen=True)
class Gguf:
    """A checked file. Nothing of its tensors is in memory.

    metadata   key -> number, bool, str, list of str, or array of numbers
    """

    file: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def read(self, name: str) -> np.ndarray:
        """The tensor as float32, dequantised. Raises CheckpointError if there is none."""
        tensor = expected(self.tensors, name, self.file, "tensor")
        blocks = as_array(tensor.data, "u1", (-1, tensor.encoding.block_bytes))
        with np.errstate(all="ignore"):  # a damaged scale may be infinite
            return np.ascontiguousarray(tensor.encoding.decode(blocks)).reshape(tensor.shape)

    def get(self, key: str, kind: type = int) -> Any:
        """Metadata of this kind (np.ndarray for numbers in a row); raises CheckpointError."""
        value = self.metadata.get(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(f"{self.file}: metadata {key!r} is {value!r:.40}, not {kind.__name__}")
        return value

    def optional(self, key: str, kind: type, otherwise: Any) -> Any:
        """Metadata of this kind, `otherwise` if there is none; raises CheckpointError for another kind."""
        return self.get(key, kind) if key in self.metadata else otherwise


def open_gguf(path: Path) -> Gguf:
    """Open and check a file; raises CheckpointError."""
    return parse_gguf(view_file(path), str(path))


def parse_gguf(buffer: Buffer, file: str) -> Gguf:
    """Check bytes; `file` names them in errors. Raises CheckpointError."""
    cursor = Cursor(buffer, file)
    if cursor.take(min(4, cursor.left), "the magic number") != MAGIC:
        cursor.fail("not a GGUF file", 0)
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        cursor.fail(f"GGUF version {version} is not read, only {' and '.join(map(str, VERSIONS))}")
    num_tensors, num_metadata = (
        cursor.number("Q", "the tensor count"),
        cursor.number("Q", "the metadata count"),
    )
    cursor.count(num_metadata, MIN_METADATA_BYTES, "metadata entries")
    metadata: dict[str, Any] = {}
    for _ in range(num_metadata):
        key = cursor.new(_string(cursor, "a metadata key"), metadata)
        metadata[key] = _value(cursor, key)
    cursor.count(num_tensors, MIN_TENSOR_BYTES, "tensors")
    heads: dict[str, _Head] = {}
    for _ in range(num_tensors):
        name = cursor.new(_string(cursor, "a tensor's name"), heads)
        heads[name] = _head(cursor, name)
    return Gguf(file, metadata, _place(cursor, heads, metadata.get("general.alignment", DEFAULT_ALIGNMENT)))


class _Head(NamedTuple):
    shape: tuple[int, ...]
    encoding: Encoding
    offset: int
    num_bytes: int


def _string(cursor: Cursor, what: str) -> str:
    return cursor.text(cursor.number("Q", f"the length of {what}"), what)


def _value(cursor: Cursor, key: str) -> Any:
    kind = cursor.number("I", f"the type of {key!r:.80}")
    if kind != ARRAY:
        return _scalar(cursor, kind, key)
    kind = cursor.number("I", f"the element type of {key!r:.80}")
    count = cursor.number("Q", f"the length of {key!r:.80}")
    if kind in NUMBERS or kind == BOOL:
        letter = NUMBERS.get(kind, "?")
        width = np.dtype(letter).itemsize
        cursor.count(count, width, f"elements of {key!r:.80}", None)
        data = as_array(cursor.take(count * width, f"{key!r:.80}"), "u1" if kind == BOOL else f"<{letter}")
        return data != 0 if kind == BOOL else data
    if kind != STRING:
        cursor.fail(f"{key!r:.80} is an array of type {kind}, which is not read")
    cursor.count(count, MIN_STRING_BYTES, f"strings of {key!r:.80}", None)
    return [_string(cursor, f"a string of {key!r:.80}") for _ in range(count)]


def _scalar(cursor: Cursor, kind: int, key: str) -> Any:
    if kind == STRING:
        return _string(cursor, f"{key!r:.80}")
    if kind == BOOL:
        return cursor.number("B", f"{key!r:.80}") != 0
    if kind not in NUMBERS:
        cursor.fail(f"{key!r:.80} is of type {kind}, which there is not")
    return cursor.number(NUMBERS[kind], f"{key!r:.80}")


def _head(cursor: Cursor, name: str) -> _Head:
    rank = cursor.number("I", f"the rank of {name!r:.80}")
    if rank > MAX_DIMENSIONS:
        cursor.fail(f"{name!r:.80} has {rank} dimensions; a tensor has at most {MAX_DIMENSIONS}")
    shape = tuple(cursor.number("Q", f"the shape of {name!r:.80}") for _ in range(rank))[::-1]
    kind = cursor.number("I", f"the encoding of {name!r:.80}")
    offset = cursor.number("Q", f"the offset of {name!r:.80}")
    if kind not in ENCODINGS:
        names = ", ".join(encoding.name for encoding in ENCODINGS.values())
        raise CheckpointError(
            f"{cursor.file}: {name!r:.80} is stored in encoding {kind}, which is not read; {names} are. "
            "Use a file with one of these"
        )
    encoding = ENCODINGS[kind]
    if (shape[-1] if shape else 1) % encoding.block_elements or 0 in shape:
        cursor.fail(f"{name!r:.80} of shape {list(shape)} is not whole blocks of {encoding.name}")
    return _Head(shape, encoding, offset, math.prod(shape) // encoding.block_elements * encoding.block_bytes)


def _place(cursor: Cursor, heads: Mapping[str, _Head], alignment: Any) -> dict[str, GgufTensor]:
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r:.40}, not a power of two up to {MAX_ALIGNMENT}")
    start = -(-cursor.position // alignment) * alignment
    size = max(cursor.end - start, 0)
    used = 0
    for name, head in sorted(heads.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if head.offset % alignment or head.offset < used or head.offset + head.num_bytes > size:
            cursor.fail(
                f"{name!r:.80} lies at {head.offset} and takes {head.num_bytes} bytes of {size}: it must "
                f"start at a multiple of {alignment}, after the one before it ({used}), and end in the file"
            )
        used = head.offset + head.num_bytes
    return {
        name: GgufTensor(
            head.shape,
            head.encoding,
            cursor.view[start + head.offset : start + head.offset + head.num_bytes],
        )
        for name, head in heads.items()
    }
