"""A GGUF as a checkpoint: its config and tokenizer, what is refused, and where it may lie."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from antiphon.checkpoint import gguf_directory
from antiphon.checkpoint.demo import make_demo
from antiphon.checkpoint.files import open_checkpoint
from antiphon.checkpoint.gguf import parse_gguf
from antiphon.checkpoint.gguf_directory import directory_of
from antiphon.checkpoint.gguf_model import model_config, read_tensor, released_names
from antiphon.checkpoint.source import check_source, find_directory
from antiphon.core.errors import CheckpointError
from antiphon.core.quantised import Quantised
from antiphon.engine.load import takes_media
from antiphon.models.vocabulary import Vocabulary
from fakes.model_files import gguf
from fakes.quantised import metadata_of, write_gguf

opened = partial(open_checkpoint, takes_media=takes_media)
TEXTS = ("Hello, world! It's 1234567 o'clock.", "  two  spaces\n\nand ünïcode — 你好", "<|im_start|>user")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(tmp_path_factory.mktemp("whole") / "qwen3", model="qwen3", size="tiny")


@pytest.fixture(scope="module")
def file(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(whole, tmp_path_factory.mktemp("alone") / "some.gguf", "Q8_0")


def test_config_and_tokenizer_come_from_the_metadata(whole: Path, file: Path) -> None:
    found, first = opened(str(file)), opened(str(whole))
    assert set(found.tensors) == set(first.tensors)
    for name, info in found.tensors.items():
        assert info.shape == first.tensors[name].shape
    told = {key: first.config[key] for key in found.config if key in first.config} | {"dtype": "float32"}
    assert {key: found.config[key] for key in told} == told
    assert found.generation["eos_token_id"] == found.config["eos_token_id"]
    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (found.path, whole))
    for text in TEXTS:
        assert ours(text).input_ids == theirs(text).input_ids
        assert ours.decode(ours(text).input_ids) == text
    said = [{"role": "user", "content": "Hi"}]
    assert ours.apply_chat_template(said, tokenize=False) == theirs.apply_chat_template(said, tokenize=False)


def test_it_is_opened_by_name_by_its_directory_and_again(whole: Path, file: Path, tmp_path: Path) -> None:
    named = opened(str(file))
    assert opened(str(file.parent)).path == opened(named.source).path == named.path
    check_source(str(file))
    beside = tmp_path / "beside"
    beside.mkdir()
    for path in whole.iterdir():
        if path.suffix != ".safetensors":
            (beside / path.name).write_bytes(path.read_bytes())
    (beside / "x.gguf").write_bytes(file.read_bytes())
    config = json.loads((beside / "config.json").read_text()) | {"max_position_embeddings": 99}
    (beside / "config.json").write_text(json.dumps(config))
    for source in (beside, beside / "x.gguf"):
        assert opened(str(source)).config["max_position_embeddings"] == 99
    (beside / "y.gguf").write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError, match=r"2 GGUF files .*name the one"):
        opened(str(beside))
    (beside / "config.json").unlink()
    with pytest.raises(CheckpointError, match="2 GGUF files"):
        find_directory(str(beside))


def test_a_changed_file_has_another_directory_and_few_are_kept(
    file: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_directory, "KEPT", 2)
    copy, found = tmp_path / "copy.gguf", []
    copy.write_bytes(file.read_bytes())
    for second in range(4):
        os.utime(copy, (second, second))
        found.append(directory_of(copy))
        os.utime(found[-1], (1e9 + second, 1e9 + second))
    assert len(set(found)) == 4
    assert sorted((cache / "antiphon" / "gguf").iterdir()) == sorted(found[2:])


def test_a_cache_that_others_may_write_is_not_used(file: Path, cache: Path) -> None:
    folder = cache / "antiphon" / "gguf"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(CheckpointError, match=r"nobody else may write.*XDG_CACHE_HOME"):
        find_directory(str(file))


def changed(whole: Path, rows: int | None = None, **changes: Any) -> bytes:
    """The tiny model's metadata with these instead, "__" for "."; None leaves one out. rows: of the
    embedding, if not one a token."""
    told = metadata_of(whole, json.loads((whole / "config.json").read_text()))
    for key, value in changes.items():
        told[key.replace("__", ".")] = value
    width = told["qwen3.embedding_length"]
    rows = len(told["tokenizer.ggml.tokens"] or [0]) if rows is None else rows
    tensors = {"token_embd.weight": ((rows, width), 0, bytes(4 * rows * width))}
    return gguf({key: value for key, value in told.items() if value is not None}, tensors)


BAD = {
    "architecture 'gemma3'; llama, qwen2, qwen3": {"general__architecture": "gemma3"},
    "is one of 3 files": {"split__count": 3},
    "qwen3.block_count' is None": {"qwen3__block_count": None},
    "scales its rotary positions": {"qwen3__rope__scaling__type": "yarn"},
    "not all of its": {"tokenizer__ggml__eos_token_id": 10**6},
    "makes no tokenizer": {"tokenizer__ggml__model": "rwkv"},
    "tokenizer.ggml.tokens' is None": {"tokenizer__ggml__tokens": None},
    "no chat template in its metadata": {"tokenizer__chat_template": None},
    "tokens, but an embedding of 7 rows": {"rows": 7},
    "splits text as 'as nobody does'.*files of the model": {"tokenizer__ggml__pre": "as nobody does"},
    "sizes that are not above 0: .*num_key_value_heads": {"qwen3__attention__head_count_kv": 0},
    "head_count_kv' is 'two'": {"qwen3__attention__head_count_kv": "two"},
    "freq_base' is 'fast'": {"qwen3__rope__freq_base": "fast"},
    "freq_base' is nan, not a number above 0": {"qwen3__rope__freq_base": float("nan")},
    "scales its rotary positions, which": {"qwen3__rope__scaling__factor": 4.0},
    "not all of its [0-9]+ tokens": {"tokenizer__ggml__eot_token_id": 10**6},
    "a chat template of": {"tokenizer__chat_template": "x" * (1 << 20 | 1)},
}


@pytest.mark.parametrize("says", BAD)
def test_metadata_of_no_model_that_is_read(says: str, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(changed(whole, **BAD[says]))
    with pytest.raises(CheckpointError, match=says):
        find_directory(str(tmp_path / "bad.gguf"))
    assert not list((tmp_path / "cache" / "antiphon" / "gguf").iterdir())


def test_unknown_tensors_are_named() -> None:
    found = parse_gguf(gguf({}, {"blk.0.ffn_gate_exps.weight": ((1,), 0, bytes(4))}), "f")
    with pytest.raises(CheckpointError, match="ffn_gate_exps"):
        released_names(found)


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """Numbers put anywhere among counts, shapes, encodings and offsets, and perhaps an end cut off."""
    out, head = bytearray(data), data.index(b"blk.0.")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(head + 3000, len(out) - 9)))
        size, value = (
            draw(st.sampled_from((1, 4, 8))),
            draw(st.sampled_from((0, 1, 3, 2**31, 2**62, 2**64 - 1))),
        )
        out[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(out[: draw(st.integers(0, len(out)))] if draw(st.booleans()) else out)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_a_damaged_model_is_refused_before_anything_is_made(draw: st.DataObject) -> None:
    """Or what is changed is a number of the weights, or of the config."""
    data = draw.draw(damage(SMALL))
    tracemalloc.start()
    try:
        found = parse_gguf(data, "f")
        model_config(found)
        for own in released_names(found).values():
            tensor = read_tensor(found, own)
            size = tensor.data.nbytes if isinstance(tensor, Quantised) else tensor.nbytes
            assert size <= 4 * len(data)
    except CheckpointError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1_000_000


def small() -> bytes:
    """A Llama of one layer, with all encodings."""
    sizes = {"block_count": 1, "context_length": 8, "embedding_length": 256, "feed_forward_length": 256}
    told: dict[str, Any] = {"general.architecture": "llama", **{f"llama.{k}": v for k, v in sizes.items()}}
    told |= {"llama.attention.head_count": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    kinds = {"attn_q": (12, 144), "attn_k": (8, 8 * 34), "attn_v": (14, 210), "ffn_up": (2, 8 * 18)}
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = {
        f"blk.0.{part}.weight": ((4, 256), kind, bytes(4 * size)) for part, (kind, size) in kinds.items()
    }
    tensors["token_embd.weight"] = (4, 256), 3, bytes(4 * 8 * 20)
    tensors["output_norm.weight"] = (256,), 0, struct.pack("<256f", *[1] * 256)
    return gguf(told, tensors)


SMALL = small()


def test_a_reply_ends_at_the_end_of_a_turn_too(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(changed(whole, tokenizer__ggml__eot_token_id=7))
    found = json.loads((find_directory(str(tmp_path / "a.gguf")) / "generation_config.json").read_text())
    first = json.loads((whole / "config.json").read_text())["eos_token_id"]
    assert found["eos_token_id"] == sorted({7, first})


def test_a_raw_prompt_begins_and_ends_as_the_metadata_says(whole: Path, tmp_path: Path) -> None:
    told = metadata_of(whole, json.loads((whole / "config.json").read_text()))
    eos = told["tokenizer.ggml.eos_token_id"]
    for before, behind in product((False, True), repeat=2):
        flags = {"tokenizer__ggml__add_bos_token": before, "tokenizer__ggml__add_eos_token": behind}
        file = tmp_path / f"{before}-{behind}.gguf"
        file.write_bytes(changed(whole, tokenizer__ggml__bos_token_id=7, **flags))
        directory = find_directory(str(file))
        vocabulary = Vocabulary(Tokenizer.from_file(str(directory / "tokenizer.json")))
        expected = [7] * before + list(vocabulary.encode("hello")) + [eos] * behind
        assert list(vocabulary.spell("hello")) == expected
        assert AutoTokenizer.from_pretrained(directory)("hello").input_ids == expected


def test_a_special_token_that_is_spelt_otherwise_is_refused(whole: Path, tmp_path: Path) -> None:
    """transformers respells what is beyond the alphabet of bytes, and the token itself would get an id behind
    all that the embedding has rows for."""
    told = metadata_of(whole, json.loads((whole / "config.json").read_text()))
    tokens = list(told["tokenizer.ggml.tokens"])
    tokens[told["tokenizer.ggml.eos_token_id"]] = "<｜end▁of▁sentence｜>"
    (tmp_path / "a.gguf").write_bytes(changed(whole, tokenizer__ggml__tokens=tokens))
    with pytest.raises(CheckpointError, match=r"end▁of▁sentence｜>' otherwise.*files of the model"):
        find_directory(str(tmp_path / "a.gguf"))


def test_biases_that_no_layer_adds_are_refused(whole: Path) -> None:
    told = metadata_of(whole, json.loads((whole / "config.json").read_text()))
    data = gguf(told, {"blk.0.attn_q.bias": ((4, 1), 0, bytes(16))})
    with pytest.raises(CheckpointError, match=r"nothing is known of the tensor 'blk.0.attn_q.bias'"):
        released_names(parse_gguf(data, "f"))


def test_the_files_beside_a_link_count(whole: Path, file: Path, tmp_path: Path) -> None:
    """The hub's cache is made of links; what they lead to lies elsewhere."""
    for path in whole.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text()) | {"max_position_embeddings": 99}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "x.gguf").symlink_to(file)
    assert opened(str(tmp_path / "x.gguf")).config["max_position_embeddings"] == 99
