"""Sizes that nobody chose: from the model, the cores and the memory; and those that somebody chose stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon.core.config import (
    USUAL_ROWS,
    USUAL_STEP_TOKENS,
    ArConfig,
    ClassBounds,
    EngineOptions,
    NodeConfig,
)
from antiphon.engine.derived import derived, ready
from antiphon.engine.device import left_in_cgroup
from antiphon.engine.load import open_source
from antiphon.graphs import find_graph
from antiphon.latency.shapes import DecoderShape, ModelShape, find_shape

SMALL = ModelShape("small", {"thinker": DecoderShape(30, 576, 9, 3, 64, 49152, mlp=1536)})
TOKEN_BYTES = 30 * 2 * 3 * 64 * 4
TEXT, OMNI = find_graph("llama"), find_graph("qwen3_omni_moe")
PLACE = torch.device("cpu"), torch.float32
GIB = 2**30


def sizes(options: EngineOptions, shape: ModelShape = SMALL, free: int = 20 * GIB) -> EngineOptions:
    graph = TEXT if shape is SMALL else OMNI
    return derived(options, graph, shape, PLACE, (free, GIB // 2))[0]


def test_32_streams_of_a_small_model_need_no_option() -> None:
    assert sizes(EngineOptions(threads=2)).max_rows == 32


def test_what_was_chosen_stays() -> None:
    options = EngineOptions(max_rows=5, kv_tokens=16384, step_tokens=333)
    found, why = derived(options, TEXT, SMALL, PLACE, (20 * GIB, 0))
    assert found == options
    assert why == {}


def test_a_model_that_speaks_has_the_usual_rows() -> None:
    found = sizes(EngineOptions(threads=64), find_shape("qwen3-omni-30b-a3b")).of("talker")
    assert (found.max_rows, found.step_tokens) == (USUAL_ROWS, USUAL_STEP_TOKENS)


def test_a_promise_of_a_class_bounds_the_rows() -> None:
    promised = {"latency": ClassBounds(tpot_s=1.0)}
    assert sizes(EngineOptions(threads=2, classes=promised)).max_rows > 32


def test_no_more_rows_than_have_kv() -> None:
    options = EngineOptions(threads=64, kv_tokens=40_000)
    assert sizes(options).max_rows == 40_000 // 1024
    assert sizes(EngineOptions(threads=64), free=GIB).max_rows == USUAL_ROWS


def test_a_profile_is_asked_where_there_is_one() -> None:
    found, why = derived(EngineOptions(profile="H200"), TEXT, SMALL, PLACE, (200 * GIB, 0))
    assert found.max_rows == 256
    assert "the profile H200" in why["max_rows"]


def test_fewer_rows_than_run_in_a_step_cannot_be() -> None:
    assert sizes(EngineOptions(threads=1, step_rows=100)).max_rows >= 100


@pytest.mark.parametrize("free_gib", [2, 4, 8])
def test_kv_is_half_of_what_is_left(free_gib: int) -> None:
    found = sizes(EngineOptions(threads=2), free=free_gib * GIB)
    left = (free_gib * GIB - GIB // 2) // 2
    assert found.kv_tokens == left // TOKEN_BYTES // 16 * 16


def test_no_more_kv_than_rows_can_fill_and_one_context_at_least() -> None:
    assert sizes(EngineOptions(threads=2), free=1000 * GIB).kv_tokens == 32 * 8192
    assert sizes(EngineOptions(max_context_tokens=5001), free=GIB // 2).kv_tokens == 5008


def test_memory_grows_for_cache_by_a_hundredth() -> None:
    node = NodeConfig("text", {"thinker": ArConfig(num_blocks=10**6)}, {}, {}, {})
    for free, tokens in ((GIB, 1024), (100 * GIB, GIB // TOKEN_BYTES)):
        found = ready(node, TEXT, SMALL, torch.float32, free).ar["thinker"]
        assert found.ready_blocks == tokens // 16


def test_what_was_derived_reaches_the_node(tiny_checkpoint: Path) -> None:
    opened = open_source(str(tiny_checkpoint), EngineOptions(device="cpu"), lambda *_: None)
    thinker = opened.node.ar["thinker"]
    assert thinker.num_blocks * 16 == opened.options.kv_tokens
    assert thinker.ready_blocks is not None
    assert opened.why["max_rows"].startswith(f"{USUAL_ROWS}, the usual size")
    assert "kv_tokens" in opened.why


@pytest.mark.parametrize(("asked", "is_told"), [(8192, False), (8193, True)])
def test_a_context_that_the_model_was_not_made_for_is_told(
    tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture, asked: int, is_told: bool
) -> None:
    options = EngineOptions(device="cpu", max_context_tokens=asked)
    open_source(str(tiny_checkpoint), options, lambda *_: None)
    said = "max_context_tokens is 8193, and this model was made for 8192"
    assert (said in caplog.text) == is_told


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    told = {"max": "4000", "current": "2500", "stat": "anon 1500\ninactive_file 700\n"}
    assert left_in_cgroup(tmp_path) is None
    for name, text in told.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert left_in_cgroup(tmp_path) == 4000 - 2500 + 700
    (tmp_path / "memory.max").write_text("max\n")
    assert left_in_cgroup(tmp_path) is None
