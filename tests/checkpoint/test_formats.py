"""GGUF, CTranslate2 and ONNX: what is in a good file is read, and a damaged one is refused at once."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.checkpoint.ctranslate2 import open_ct2, parse_ct2
from antiphon.checkpoint.gguf import open_gguf, parse_gguf
from antiphon.checkpoint.onnx import open_onnx, parse_onnx
from antiphon.core.errors import CheckpointError
from fakes.model_files import ct2, gguf, onnx

RNG = np.random.default_rng(0)
F32 = RNG.normal(size=(2, 3)).astype(np.float32)
PACKED = RNG.integers(0, 256, 16, dtype=np.uint8)
SCALE, OFFSET = np.float16(0.25), np.float16(-1.5)
METADATA = {"count": 7, "rate": 0.5, "is_it": True, "name": "né", "tokens": ["a", "", "ß"], "types": [1, -3]}
TENSORS = {
    "plain": ((2, 3), 0, F32.tobytes()),
    "half": ((3,), 1, F32[0].astype(np.float16).tobytes()),
    "q4_0": ((1, 32), 2, SCALE.tobytes() + PACKED.tobytes()),
    "q4_1": ((32,), 3, SCALE.tobytes() + OFFSET.tobytes() + PACKED.tobytes()),
    "q8_0": ((1, 32), 8, SCALE.tobytes() + PACKED.tobytes() * 2),
    "bf16": ((2,), 30, np.array([0x3F80, 0xC020], np.uint16).tobytes()),
}
GGUF = gguf(METADATA, TENSORS)
CT2 = ct2({"a/b": F32.astype(np.float16), "c": np.int16([5]), "s": np.array(3, np.int8)}, {"alias": "a/b"})
ONNX = onnx({"w": F32, "n": np.int64([4])}, {"/a/Conv": ("x", "w"), "/b": ()})
PARSERS: dict[str, tuple[Callable[[bytes, str], Any], bytes]] = {
    "gguf": (parse_gguf, GGUF),
    "ct2": (parse_ct2, CT2),
    "onnx": (parse_onnx, ONNX),
}
MOST_BYTES = 2_000_000
"""More than any of these files can need, and less than the smallest count that a damaged byte can claim."""


def nibble(index: int) -> int:
    """Element `index` of 32: the low halves of 16 bytes, then the high ones."""
    byte = int(PACKED[index % 16])
    return byte & 15 if index < 16 else byte >> 4


def test_gguf_tensors_and_metadata() -> None:
    found = parse_gguf(GGUF, "f")
    assert {key: value for key, value in found.metadata.items() if key != "types"} == {
        key: value for key, value in METADATA.items() if key != "types"
    }
    assert found.metadata["types"].tolist() == [1, -3]
    assert np.array_equal(found.read("plain"), F32)
    assert np.array_equal(found.read("half"), F32[0].astype(np.float16).astype(np.float32))
    assert found.read("bf16").tolist() == [1.0, -2.5]
    assert found.read("q4_0").tolist() == [[0.25 * (nibble(i) - 8) for i in range(32)]]
    assert found.read("q4_1").tolist() == [0.25 * nibble(i) - 1.5 for i in range(32)]
    signed = PACKED.view(np.int8).tolist() * 2
    assert found.read("q8_0").tolist() == [[0.25 * value for value in signed]]
    assert all(found.read(name).dtype == np.float32 for name in found.tensors)


def bits_of(block: bytes, kind: str) -> list[float]:
    """As llama.cpp's `ggml-quants.c` has it, number by number."""

    def half(at: int) -> float:
        return float(np.frombuffer(block[at : at + 2], "<f2")[0])

    found = [0.0] * (256 if kind == "Q5_K" else 32)
    if kind == "Q5_K":
        six, high, low = block[4:16], block[16:48], block[48:]
        for at in range(256):
            group, byte = divmod(at, 32)
            if group < 4:
                step, base = six[group] & 63, six[group + 4] & 63
            else:
                step = six[group + 4] & 15 | six[group - 4] >> 6 << 4
                base = six[group + 4] >> 4 | six[group] >> 6 << 4
            number = low[32 * (group // 2) + byte] >> 4 * (group % 2) & 15 | (high[byte] >> group & 1) << 4
            scale, least = np.float32(half(0)) * np.float32(step), np.float32(half(2)) * np.float32(base)
            found[at] = float(scale * np.float32(number) - least)
        return found
    first = 2 if kind == "Q5_0" else 4
    high = int.from_bytes(block[first : first + 4], "little")
    for at in range(32):
        number = block[first + 4 + at % 16] >> 4 * (at // 16) & 15 | (high >> at & 1) << 4
        if kind == "Q5_0":
            found[at] = half(0) * (number - 16)
        else:
            found[at] = float(np.float32(half(0)) * np.float32(number) + np.float32(half(2)))
    return found


@pytest.mark.parametrize(("kind", "number", "size"), [("Q5_0", 6, 22), ("Q5_1", 7, 24), ("Q5_K", 13, 176)])
def test_blocks_of_five_bits(kind: str, number: int, size: int) -> None:
    rng = np.random.default_rng(number)
    blocks = rng.integers(0, 256, (3, size), dtype=np.uint8)
    blocks[:, :4] = rng.normal(size=(3, 2)).astype("<f2").view(np.uint8)
    expected = [bits_of(block.tobytes(), kind) for block in blocks]
    width = len(expected[0])
    found = parse_gguf(gguf({}, {"t": ((3, width), number, blocks.tobytes())}), "f")
    assert found.tensors["t"].encoding.name == kind
    np.testing.assert_array_equal(found.read("t"), np.array(expected, np.float32))


def test_ct2_variables_and_aliases() -> None:
    found = parse_ct2(CT2, "f")
    assert (found.specification, found.revision) == ("WhisperSpec", 3)
    assert np.array_equal(found.read("a/b"), F32.astype(np.float16))
    assert found.read("alias") is found.read("a/b")
    assert found.read("s").shape == ()
    assert found.read("c").tolist() == [5]


def test_onnx_initialisers_by_name_and_by_node() -> None:
    found = parse_onnx(ONNX, "f")
    assert np.array_equal(found.read("w"), F32)
    assert found.read_input("/a/Conv", 1) is found.read("w")
    assert found.read("n").tolist() == [4]
    for node, index in (("/a/Conv", 2), ("/c", 0), ("/a/Conv", 0)):
        with pytest.raises(CheckpointError, match=r"another model|not the model"):
            found.read_input(node, index)


def test_files_are_opened_by_path(tmp_path: Path) -> None:
    for name, opened in (("gguf", open_gguf), ("ct2", open_ct2), ("onnx", open_onnx)):
        path = tmp_path / name
        path.write_bytes(PARSERS[name][1])
        opened(path)
        path.write_bytes(b"")
        with pytest.raises(CheckpointError, match=name):
            opened(path)
        with pytest.raises(CheckpointError, match="cannot be read"):
            opened(tmp_path / "nothing")


def shifted(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


HUGE = struct.pack("<Q", 2**62)
BAD_GGUF = {
    "not a GGUF file": b"GGML" + GGUF[4:],
    "version 9": shifted(GGUF, b"GGUF\3", b"GGUF\x09"),
    "tensors, more than": GGUF[:8] + HUGE + GGUF[16:],
    "metadata entries, more than": GGUF[:16] + HUGE + GGUF[24:],
    "metadata entries take at least": GGUF[:25],
    "a metadata key takes": GGUF[:24] + HUGE + GGUF[32:],
    "elements of 'types' take": shifted(GGUF, struct.pack("<Q", 2) + b"\1\0\0\0\xfd", HUGE + b"\1\0\0\0\xfd"),
    "strings of 'tokens' take": shifted(GGUF, struct.pack("<Q", 3) + struct.pack("<Q", 1), HUGE * 2),
    "'half' lies at": gguf({}, {"half": ((2**40,), 1, b"")}),
    "whole blocks of Q4_0": gguf({}, {"t": ((31,), 2, b"")}),
    "of shape": gguf({}, {"t": ((0, 32), 2, b"")}),
    "5 dimensions": gguf({}, {"t": ((1,) * 5, 0, b"")}),
    "encoding 10": gguf({}, {"t": ((256,), 10, b"")}),
    "general.alignment": gguf({"general.alignment": 24}, {}),
    "is there twice": gguf({"a": 1}, {}).replace(struct.pack("<Q", 1), struct.pack("<Q", 2), 1)[:24]
    + (struct.pack("<Q", 1) + b"a" + struct.pack("<II", 4, 1)) * 2,
    "UTF-8": shifted(GGUF, "né".encode(), b"n\xff\xff"),
}
BAD_CT2 = {
    "binary version": b"\x09" + CT2[1:],
    "variables, more than": ct2({})[:22] + struct.pack("<I", 2**31),
    "takes 6291456 bytes, but has 12": shifted(CT2, struct.pack("<2I", 2, 3), struct.pack("<2I", 2**20, 3)),
    "is of type 77": shifted(CT2, struct.pack("<2IB", 2, 3, 4), struct.pack("<2IB", 2, 3, 77)),
    "zero byte": shifted(CT2, b"WhisperSpec\0", b"WhisperSpec!"),
    "stands for": ct2({"a": F32}, {"b": "c"}),
    "follow the last alias": CT2 + b"!",
    "has the shape": ct2({"a": np.zeros((0, 5), np.float32)}),
}
EXTERNAL = b"\x3a\x04\x2a\x02\x70\x01"
"""A graph of one initialiser, whose data_location is 1: elsewhere."""
BAD_ONNX = {
    "one graph": b"",
    "wire type": ONNX + b"\x0f",
    "more than 64 bits": ONNX + b"\x08" + b"\xff" * 10 + b"\1",
    "takes 24 bytes, but has 20": onnx({"w": F32}, {}).replace(
        b"\x4a\x18" + F32.tobytes(), b"\x4a\x14" + F32.tobytes()[:20] + b"\x78\1\x78\1"
    ),
    "is there twice": onnx({"w": F32, "v": F32}, {}).replace(b"\x42\1v", b"\x42\1w"),
    "is of type 16": onnx({"w": F32}, {}).replace(b"\x10\1\x42", b"\x10\x10\x42"),
    "raw bytes": EXTERNAL,
    "dimensions, more than": onnx({"w": np.zeros((1,) * 9, np.float32)}, {}),
    "but only": ONNX[:-3],
}


@pytest.mark.parametrize(
    ("kind", "says", "data"),
    [
        (kind, says, data)
        for kind, bad in (("gguf", BAD_GGUF), ("ct2", BAD_CT2), ("onnx", BAD_ONNX))
        for says, data in bad.items()
    ],
)
def test_a_bad_file_is_told_with_its_byte(kind: str, says: str, data: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        PARSERS[kind][0](data, "model.file")
    assert says in str(caught.value)
    assert str(caught.value).startswith("model.file")


def test_tensors_may_not_lie_in_each_other() -> None:
    two = gguf({}, {"a": ((8,), 0, bytes(32)), "b": ((8,), 0, bytes(32))})
    with pytest.raises(CheckpointError, match="after the one before it"):
        parse_gguf(shifted(two, struct.pack("<IQ", 0, 32), struct.pack("<IQ", 0, 0)), "f")


def read_all(kind: str, data: bytes) -> int:
    """Bytes of all arrays that a file gives."""
    found = PARSERS[kind][0](data, "f")
    if kind == "gguf":
        return sum(found.read(name).nbytes for name in found.tensors)
    arrays = found.variables if kind == "ct2" else found.initialisers
    return sum(array.nbytes for array in arrays.values())


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """Some bytes changed, a number put somewhere, and perhaps an end cut off or pieces repeated."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(out) - 1))
        put = draw(st.sampled_from((1, 2, 4, 8)))
        bits = st.integers(0, 2 ** (8 * put) - 1)
        value = draw(bits | st.sampled_from((0, 1, 2 ** (8 * put) - 1, 2 ** (8 * put - 1))))
        out[at : at + put] = value.to_bytes(put, "little")
    if draw(st.booleans()):
        del out[draw(st.integers(0, len(out))) :]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(out)))
        out[at:at] = out[: draw(st.integers(0, 64))]
    return bytes(out)


@pytest.mark.parametrize("kind", list(PARSERS))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(draw=st.data())
def test_damage_is_refused_or_harmless(kind: str, draw: st.DataObject) -> None:
    data = draw.draw(damage(PARSERS[kind][1]))
    tracemalloc.start()
    try:
        assert read_all(kind, data) <= 8 * len(data)
    except CheckpointError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_BYTES


@pytest.mark.parametrize("kind", list(PARSERS))
@given(data=st.binary(max_size=300))
def test_noise_holds_nothing(kind: str, data: bytes) -> None:
    with suppress(CheckpointError):
        assert read_all(kind, data) == 0
