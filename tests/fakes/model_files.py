"""Small GGUF, CTranslate2 and ONNX files, and wheels to put them in."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.checkpoint.packages import Package

GGUF_ALIGNMENT = 32
UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5
CT2_TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
ONNX_TYPES = {"float32": 1, "int64": 7, "float16": 10}


def gguf(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], int, bytes]]) -> bytes:
    """tensors: name -> (shape as torch has it, encoding number, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _gguf_value(value) for key, value in metadata.items())
    data = b""
    for name, (shape, encoding, payload) in tensors.items():
        head += _string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *shape[::-1]) + struct.pack("<IQ", encoding, len(data))
        data += payload + bytes(-len(payload) % GGUF_ALIGNMENT)
    return head + bytes(-len(head) % GGUF_ALIGNMENT) + data


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _gguf_value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    return struct.pack(f"<IIQ{len(value)}i", ARRAY, INT32, len(value), *value)


def ct2(
    variables: Mapping[str, np.ndarray], aliases: Mapping[str, str] | None = None, revision: int = 3
) -> bytes:
    """A model of specification WhisperSpec."""
    out = struct.pack("<I", 6) + _ct2_string("WhisperSpec") + struct.pack("<II", revision, len(variables))
    for name, array in variables.items():
        out += _ct2_string(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        out += struct.pack("<BI", CT2_TYPES[str(array.dtype)], array.nbytes) + array.tobytes()
    pairs = aliases or {}
    return (
        out
        + struct.pack("<I", len(pairs))
        + b"".join(_ct2_string(alias) + _ct2_string(name) for alias, name in pairs.items())
    )


def _ct2_string(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def onnx(initialisers: Mapping[str, np.ndarray], nodes: Mapping[str, tuple[str, ...]]) -> bytes:
    """nodes: name -> what it takes."""
    graph = b""
    for name, inputs in nodes.items():
        node = b"".join(_message(1, taken.encode()) for taken in inputs) + _message(3, name.encode())
        graph += _message(1, node)
    for name, array in initialisers.items():
        tensor = b"".join(_number(1, extent) for extent in array.shape)
        tensor += _number(2, ONNX_TYPES[str(array.dtype)]) + _message(8, name.encode())
        graph += _message(5, tensor + _message(9, array.tobytes()))
    return _number(1, 8) + _message(2, b"test") + _message(7, graph)


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes((value & 127 | 128,))
        value >>= 7
    return out + bytes((value,))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def wheel(
    folder: Path, name: str, version: str, members: Mapping[str, bytes], tag: str = "py3-none-any"
) -> Package:
    """Write a wheel that pip takes, and say how it is pinned."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    path = folder / f"{module}-{version}-{tag}.whl"
    info = f"{module}-{version}.dist-info"
    told = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tags = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", told)
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    content = path.read_bytes()
    return Package(name, version, hashlib.sha256(content).hexdigest(), len(content), "CC0", "a test", tag)


def word_network(width: int = 8) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Sizes and random weights of a network for unknown words, which always says something."""
    letters, phonemes = "____abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'-.", "____ˈəklmnst"
    rng = np.random.default_rng(5)

    def rand(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    bias = np.full((1, len(letters)), -1000, np.float32)
    bias[:, 4 : len(phonemes)] = 0
    weights = {"model.shared.weight": rand(len(letters), width), "final_logits_bias": bias}
    for half, parts in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        weights[f"model.{half}.embed_positions.weight"] = rand(66, width)
        linears = [f"{part}.{letter}_proj" for part in parts for letter in ("q", "k", "v", "out")]
        for name in linears:
            weights[f"model.{half}.layers.0.{name}.weight"] = rand(width, width)
            weights[f"model.{half}.layers.0.{name}.bias"] = rand(width)
        for name, rows, columns in (("fc1", 2 * width, width), ("fc2", width, 2 * width)):
            weights[f"model.{half}.layers.0.{name}.weight"] = rand(rows, columns)
            weights[f"model.{half}.layers.0.{name}.bias"] = rand(rows)
        norms = [f"layers.0.{part}_layer_norm" for part in parts]
        for name in (*norms, "layers.0.final_layer_norm", "layernorm_embedding"):
            weights[f"model.{half}.{name}.weight"] = np.ones(width, np.float32)
            weights[f"model.{half}.{name}.bias"] = rand(width)
    sizes = {
        "grapheme_chars": letters,
        "phoneme_chars": phonemes,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        "position_offset": 2,
        "layer_norm_eps": 1e-5,
        "num_heads": 1,
        "d_model": width,
    }
    return sizes, weights
