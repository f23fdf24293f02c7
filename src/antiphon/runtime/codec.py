"""Messages as bytes: msgpack by type, numpy columns as (dtype, shape, bytes)."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np

T = TypeVar("T")


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"a message holds a {type(value).__name__}, which has no wire form")


def _decode_array(kind: Any, value: Any) -> Any:
    dtype, shape, data = value
    return np.frombuffer(data, dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)


def encode(message: Any) -> bytes:
    """Any message of core, or a tuple of them."""
    return _encoder.encode(message)


def _decode_own_array(kind: Any, value: Any) -> Any:
    """One that may be written: torch warns of any other."""
    return _decode_array(kind, value).copy()


def decoder(kind: Any, own_arrays: bool = False) -> msgspec.msgpack.Decoder[Any]:
    """A decoder for messages of this type (a union of tagged structs, usually). Arrays are views of what was
    read, or copies that may be written."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_own_array if own_arrays else _decode_array)
