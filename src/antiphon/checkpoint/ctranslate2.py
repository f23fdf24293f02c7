"""CTranslate2's `model.bin`, binary versions 4 to 6: a table of named arrays.

Per variable: name (length with a closing zero as u16), rank as u8, dimensions as u32, type as u8, bytes as
u32, data. Names that stand for another variable follow as pairs. Files are checked whole when they are
opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.checkpoint.binary import Buffer, Cursor, as_array, check_shape, expected, view_file

BINARY_VERSIONS = (4, 5, 6)
MIN_VARIABLE_BYTES, MIN_ALIAS_BYTES = 8, 4
DTYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
"""CTranslate2's numbers of element types, as numpy names them."""


@dataclass(frozen=True)
class Ct2Model:
    """A checked file. Its arrays share the file's bytes.

    specification   what CTranslate2 calls the model, and which revision of it
    """

    file: str
    specification: str
    revision: int
    variables: Mapping[str, np.ndarray]

    def read(self, name: str) -> np.ndarray:
        """An array as stored; raises CheckpointError if there is none."""
        return expected(self.variables, name, self.file, "variable")


def open_ct2(path: Path) -> Ct2Model:
    """Open and check a file; raises CheckpointError."""
    return parse_ct2(view_file(path), str(path))


def parse_ct2(buffer: Buffer, file: str) -> Ct2Model:
    """Check bytes; `file` names them in errors. Raises CheckpointError."""
    cursor = Cursor(buffer, file)
    version = cursor.number("I", "the binary version")
    if version not in BINARY_VERSIONS:
        versions = ", ".join(map(str, BINARY_VERSIONS))
        cursor.fail(f"not a CTranslate2 model of binary version {versions}", 0)
    specification = _string(cursor, "the specification")
    revision = cursor.number("I", "the revision")
    num_variables = cursor.number("I", "the variable count")
    variables: dict[str, np.ndarray] = {}
    for _ in range(cursor.count(num_variables, MIN_VARIABLE_BYTES, "variables")):
        name = cursor.new(_string(cursor, "a variable's name"), variables)
        variables[name] = _variable(cursor, name)
    num_aliases = cursor.number("I", "the alias count")
    for _ in range(cursor.count(num_aliases, MIN_ALIAS_BYTES, "aliases")):
        alias, name = _string(cursor, "an alias"), _string(cursor, "an alias's variable")
        if name not in variables or alias in variables:
            cursor.fail(f"{alias!r:.80} stands for {name!r:.80}, which is not there, or is there itself")
        variables[alias] = variables[name]
    if cursor.left:
        cursor.fail(f"{cursor.left} bytes follow the last alias")
    return Ct2Model(file, specification, revision, variables)


def _string(cursor: Cursor, what: str) -> str:
    text = cursor.text(cursor.number("H", f"the length of {what}"), what)
    if not text.endswith("\0"):
        cursor.fail(f"{what} does not end in a zero byte")
    return text[:-1]


def _variable(cursor: Cursor, name: str) -> np.ndarray:
    rank = cursor.number("B", f"the rank of {name!r:.80}")
    shape = [
        cursor.number("I", f"the shape of {name!r:.80}") for _ in range(cursor.count(rank, 4, "dimensions"))
    ]
    kind = cursor.number("B", f"the type of {name!r:.80}")
    if kind not in DTYPES:
        cursor.fail(f"{name!r:.80} is of type {kind}, which is not read")
    num_bytes = cursor.number("I", f"the size of {name!r:.80}")
    check_shape(cursor, shape, np.dtype(DTYPES[kind]).itemsize * 8, num_bytes, f"{name!r:.80}")
    return as_array(cursor.take(num_bytes, f"{name!r:.80}"), DTYPES[kind], shape)
