"""Weights of an ONNX file: its initialisers, and which node takes which. Nothing is run.

Reads as much of protobuf's wire format as that needs: ModelProto.graph is field 7, GraphProto.node 1 and
initializer 5, the rest stands beside the code. Files are checked whole when they are opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.checkpoint.binary import MAX_RANK, Buffer, Cursor, as_array, check_shape, expected, view_file
from antiphon.core.errors import CheckpointError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LOW_BITS, MAX_VARINT_BITS = 127, 63
GRAPH, NODE, INITIALIZER = 7, 1, 5
NODE_INPUT, NODE_NAME = 1, 3
MAX_INPUTS = 64
DIMS, DATA_TYPE, TENSOR_NAME, RAW_DATA, DATA_LOCATION = 1, 2, 8, 9, 14
TYPED_DATA = (4, 5, 6, 7, 10, 11)
"""Fields of TensorProto that hold elements one by one, which exporters of large models do not use."""
DTYPES = {1: "<f4", 2: "u1", 3: "i1", 5: "<i2", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2", 11: "<f8"}
"""ONNX's numbers of element types, as numpy names them."""


@dataclass(frozen=True)
class OnnxWeights:
    """A checked file. Its arrays share the file's bytes.

    inputs   a node's name -> the names of what it takes, in order
    """

    file: str
    initialisers: Mapping[str, np.ndarray]
    inputs: Mapping[str, tuple[str, ...]]

    def read(self, name: str) -> np.ndarray:
        """An initialiser; raises CheckpointError if there is none."""
        return expected(self.initialisers, name, self.file, "weight")

    def read_input(self, node: str, index: int) -> np.ndarray:
        """The initialiser that is this input of a node, where an exporter has given it a name of its own."""
        inputs = self.inputs.get(node, ())
        if index >= len(inputs):
            raise CheckpointError(f"{self.file} has no node {node!r} with {index + 1} inputs: another model")
        return self.read(inputs[index])


def open_onnx(path: Path) -> OnnxWeights:
    """Open and check a file; raises CheckpointError."""
    return parse_onnx(view_file(path), str(path))


def parse_onnx(buffer: Buffer, file: str) -> OnnxWeights:
    """Check bytes; `file` names them in errors. Raises CheckpointError."""
    initialisers: dict[str, np.ndarray] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    whole = Cursor(buffer, file)
    graphs = [_message(whole, value, "the graph") for field, value in _fields(whole) if field == GRAPH]
    if len(graphs) != 1:
        whole.fail(f"an ONNX file has one graph, this one {len(graphs)}", 0)
    for count, (field, value) in enumerate(_fields(graphs[0])):
        graphs[0].count(count, 0, "parts of the graph")
        if field == NODE:
            name, taken = _node(_message(graphs[0], value, "a node"))
            inputs[name] = taken
        elif field == INITIALIZER:
            part = _message(graphs[0], value, "an initialiser")
            name, array = _tensor(part)
            initialisers[part.new(name, initialisers)] = array
    return OnnxWeights(file, initialisers, inputs)


def _node(cursor: Cursor) -> tuple[str, tuple[str, ...]]:
    name, taken = "", []
    for field, value in _fields(cursor):
        if field == NODE_NAME:
            name = _text(cursor, value, "a node's name")
        elif field == NODE_INPUT:
            cursor.count(len(taken) + 1, 0, "inputs of a node", MAX_INPUTS)
            taken.append(_text(cursor, value, "a node's input"))
    return name, tuple(taken)


def _tensor(cursor: Cursor) -> tuple[str, np.ndarray]:
    shape: list[int] = []
    name, kind = "", 0
    raw = memoryview(b"")
    for field, value in _fields(cursor):
        if field == DIMS:
            shape += [value] if isinstance(value, int) else _packed(value)
            cursor.count(len(shape), 0, "dimensions", MAX_RANK)
        elif field == DATA_TYPE and isinstance(value, int):
            kind = value
        elif field == TENSOR_NAME:
            name = _text(cursor, value, "an initialiser's name")
        elif field == RAW_DATA:
            data = _message(cursor, value, "an initialiser's data")
            raw = data.take(data.left, "an initialiser's data")
        elif field in TYPED_DATA or (field == DATA_LOCATION and value != 0):
            cursor.fail(f"{name!r:.80} does not hold its data as raw bytes in this file, which is not read")
    if kind not in DTYPES:
        cursor.fail(f"{name!r:.80} is of type {kind}, which is not read")
    check_shape(cursor, shape, np.dtype(DTYPES[kind]).itemsize * 8, len(raw), f"{name!r:.80}")
    return name, as_array(raw, DTYPES[kind], shape)


def _fields(cursor: Cursor) -> Iterator[tuple[int, int | Cursor]]:
    """(field number, value) of a message: a number, or what walks over the bytes."""
    while cursor.left:
        tag = _varint(cursor)
        field, wire = tag >> 3, tag & 7
        if field == 0 or wire not in (VARINT, FIXED64, BYTES, FIXED32):
            cursor.fail(f"field {field} has the wire type {wire}, which there is not")
        if wire == VARINT:
            yield field, _varint(cursor)
            continue
        size = _varint(cursor) if wire == BYTES else 8 if wire == FIXED64 else 4
        start = cursor.position
        cursor.take(size, f"field {field}")
        yield field, Cursor(cursor.view, cursor.file, start, start + size)


def _varint(cursor: Cursor) -> int:
    value, shift = 0, 0
    while (byte := cursor.take(1, "a number")[0]) > LOW_BITS:
        value |= (byte & LOW_BITS) << shift
        shift += 7
        if shift > MAX_VARINT_BITS:
            cursor.fail("a number of more than 64 bits")
    return value | byte << shift


def _packed(cursor: Cursor) -> list[int]:
    numbers: list[int] = []
    while cursor.left:
        cursor.count(len(numbers) + 1, 0, "dimensions", MAX_RANK)
        numbers.append(_varint(cursor))
    return numbers


def _message(cursor: Cursor, value: int | Cursor, what: str) -> Cursor:
    if isinstance(value, int):
        cursor.fail(f"{what} is a number")
    return value


def _text(cursor: Cursor, value: int | Cursor, what: str) -> str:
    part = _message(cursor, value, what)
    return part.text(part.left, what)
