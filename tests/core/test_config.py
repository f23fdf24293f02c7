"""Options are checked when they are written, not when the engine needs them."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.core.config import ArConfig, ClassBounds, EngineOptions, LinkOptions, Unit
from antiphon.core.errors import ConfigError
from antiphon.core.sampling import Sampling
from antiphon.core.stage_options import EdgeOptions, SamplingDefaults, StageOptions


def test_the_defaults_hold() -> None:
    options = EngineOptions().of("thinker")
    assert options.held_tokens == options.kv_tokens == 32768
    assert (options.max_rows, options.step_tokens) == (16, 1024)
    assert EngineOptions(max_context_tokens=40_001).of("thinker").kv_tokens == 40_016


@pytest.mark.parametrize("field", ["max_rows", "kv_tokens", "step_tokens"])
def test_sizes_may_be_left_to_the_engine(field: str) -> None:
    assert getattr(EngineOptions(**{field: 0}), field) == 0
    with pytest.raises(ConfigError, match=f"{field} is -1; it must be 0 \\(by the model"):
        EngineOptions(**{field: -1})


@pytest.mark.parametrize("field", ["block_size", "max_context_tokens"])
def test_nothing_is_zero(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} is 0; it must be 1 or more"):
        EngineOptions(**{field: 0})


def test_threads_may_be_left_to_torch() -> None:
    assert EngineOptions(threads=0).threads == 0
    with pytest.raises(ConfigError, match="threads is -1"):
        EngineOptions(threads=-1)


@pytest.mark.parametrize(("kv_tokens", "fits"), [(64, True), (63, False), (79, True)])
def test_one_context_fits_in_whole_blocks(kv_tokens: int, fits: bool) -> None:
    """63 tokens are three blocks of 16: 48."""
    if fits:
        EngineOptions(kv_tokens=kv_tokens, max_context_tokens=64)
    else:
        with pytest.raises(ConfigError, match="in whole blocks of 16"):
            EngineOptions(kv_tokens=kv_tokens, max_context_tokens=63)


def test_depth_is_chosen_or_left_open() -> None:
    assert [EngineOptions(depth=depth).depth for depth in (None, 0, 1)] == [None, 0, 1]
    for depth in (-1, 2):
        with pytest.raises(ConfigError, match=f"depth is {depth}; it must be 0 or 1"):
            EngineOptions(depth=depth)


def test_layers_may_be_split_into_groups() -> None:
    assert ArConfig().layer_groups == ()
    assert len(ArConfig(layer_groups=(("low", 0, 3), ("high", 3, 4))).layer_groups) == 2


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ((("a", 1, 4),), "'a' holds layers 1 to 4; it must begin at layer 0"),
        ((("a", 0, 2), ("b", 3, 4)), "'b' holds layers 3 to 4; it must begin at layer 2"),
        ((("a", 0, 2), ("b", 1, 4)), "'b' holds layers 1 to 4; it must begin at layer 2"),
        ((("a", 0, 2), ("b", 2, 2)), "and hold one or more"),
        ((("a", 0, 2), ("a", 2, 4)), "have one name"),
    ],
    ids=["from the first", "gap", "overlap", "empty", "names"],
)
def test_groups_of_layers_lie_side_by_side(groups: tuple, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ArConfig(layer_groups=groups)


def test_layer_groups_are_one_ranks_own() -> None:
    assert EngineOptions(layer_groups=3).layer_groups == 3
    with pytest.raises(ConfigError, match="layer_groups is 0"):
        EngineOptions(layer_groups=0)
    with pytest.raises(ConfigError, match="layer_groups are not divided among ranks"):
        EngineOptions(layer_groups=2, tensor_parallel=2)


def test_a_stage_has_sizes_of_its_own() -> None:
    sizes = {"max_rows": 4, "kv_tokens": 8192, "step_tokens": 64}
    options = EngineOptions(**sizes, stages={"talker": StageOptions(max_rows=9, kv_tokens=16384)})
    assert options.of("thinker") is options
    assert (options.of("talker").max_rows, options.of("talker").kv_tokens) == (9, 16384)
    assert options.of("talker").step_tokens == options.step_tokens


@pytest.mark.parametrize("sizes", [{"max_rows": 0}, {"kv_tokens": 16}, {"host_kv_tokens": -1}])
def test_an_error_names_the_stage(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"stage talker: {next(iter(sizes))}"):
        EngineOptions(stages={"talker": StageOptions(**sizes)})


def test_chosen_sampling_lies_over_the_checkpoints() -> None:
    given = Sampling(temperature=0.9, top_k=50)
    assert SamplingDefaults(temperature=0.0).over(given) == Sampling(temperature=0.0, top_k=50)
    with pytest.raises(ConfigError, match="top_p is 2"):
        SamplingDefaults(top_p=2).over(given)


def test_a_chunk_holds_something() -> None:
    assert EdgeOptions("talker", "code2wav", chunk=8, credit=9).chosen == {"chunk": 8, "credit": 9}
    with pytest.raises(ConfigError, match="edge talker -> code2wav: first_chunk is 0"):
        EdgeOptions("talker", "code2wav", first_chunk=0)


def test_a_host_tier_is_off_unless_asked_for_and_has_one_rank() -> None:
    assert EngineOptions().host_kv_tokens == 0
    with pytest.raises(ConfigError, match="host_kv_tokens is -1; it must be 0"):
        EngineOptions(host_kv_tokens=-1)
    with pytest.raises(ConfigError, match="host_kv_tokens needs tensor_parallel 1"):
        EngineOptions(host_kv_tokens=64, tensor_parallel=2)


def test_ranks_do_not_move_kv() -> None:
    halves = (Unit("p", "thinker", role="prefill"), Unit("d", "thinker", role="decode"))
    with pytest.raises(ConfigError, match="prefill or decode only need tensor_parallel 1"):
        EngineOptions(units=halves, tensor_parallel=2)
    assert EngineOptions(units=halves).units == halves


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"step_rows": 0}, "step_rows is 0; it must be from 1 to max_rows"),
        ({"step_rows": 17, "max_rows": 16}, "step_rows is 17; it must be from 1 to max_rows, which is 16"),
        ({"classes": {"fast": ClassBounds()}}, "classes: 'fast' is not one of latency"),
        ({"graphs": "some"}, "graphs is 'some'; it must be off or on"),
        ({"load_format": "zip"}, "load_format is 'zip'; it must be one of auto, dummy"),
        ({"stages_apart": True, "units": (Unit("t", "thinker"),)}, "both say where the stages are"),
        ({"stages_apart": True, "tensor_parallel": 2}, "are not divided among ranks"),
        (
            {"units": (Unit("t", "thinker", process="p"),), "tensor_parallel": 2},
            "are not divided among ranks",
        ),
        ({"start_limit_s": 0}, "start_limit_s is 0; it must be over 0 seconds"),
        ({"link_gb_s": 0.0}, "link_gb_s is 0; it must be over 0 GB/s"),
        ({"silence_limit_s": -1.5}, "silence_limit_s is -1.5; it must be over 0 seconds"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineOptions(**options)
    assert why in str(caught.value)


def test_all_decoders_are_divided_unless_some_are_named() -> None:
    assert not EngineOptions().is_divided("thinker")
    assert EngineOptions(tensor_parallel=2).is_divided("talker")
    one = EngineOptions(tensor_parallel=2, divided=("thinker",))
    assert [one.is_divided(stage) for stage in ("thinker", "talker")] == [True, False]


def test_a_link_has_a_connector_that_there_is() -> None:
    assert LinkOptions("a", "b", "tcp").connector == "tcp"
    with pytest.raises(ConfigError, match="link a -> b: 'pigeon' is not one of shared_memory, tcp"):
        LinkOptions("a", "b", "pigeon")
