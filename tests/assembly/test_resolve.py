"""What deployments come to: units, sizes, memory, and every thing that is wrong in words."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from antiphon.assembly.deployment import Deployment, StageSizes, WrittenEdge
from antiphon.assembly.deployment_file import deployment_names, read_deployment
from antiphon.assembly.footprint import GIB, parts
from antiphon.assembly.links import peers_of
from antiphon.assembly.node import Node
from antiphon.assembly.placement import Machine
from antiphon.assembly.resolve import resolve
from antiphon.assembly.session_size import Rates, rates_of, session_size
from antiphon.assembly.units import units_of
from antiphon.checkpoint.files import open_directory
from antiphon.core.config import CONNECTORS, EngineOptions, NodeConfig, ProcessOptions, Unit
from antiphon.core.errors import ConfigError
from antiphon.core.stage_options import StageOptions
from antiphon.engine.placing import configured
from antiphon.graphs import find_graph
from antiphon.latency.shapes import ModelShape, find_shape
from antiphon.models.qwen2_5_omni.audio import num_audio_tokens as qwen25_audio_tokens
from antiphon.models.qwen3_omni.family import FAMILY
from antiphon.models.qwen_media.preprocess_shapes import num_audio_tokens as qwen3_audio_tokens
from antiphon.wire.limits import Limits
from antiphon.wire.readers import ReaderRates
from antiphon.workload.load import named
from assembly.deployed import HOST, deployed, full_size

GRAPH = find_graph("qwen3_omni_moe")


def node_config(options: EngineOptions, checkpoint: Path) -> NodeConfig:
    """As the engine makes it, of a small model."""
    values = open_directory(str(checkpoint)).config
    node = configured(FAMILY.read_geometry(FAMILY.read_config(values), {}, options), GRAPH, options)
    return NodeConfig(
        **{name: getattr(node, name) for name in node.__struct_fields__} | {"units": options.units}
    )


def test_a_cascade_that_names_no_parts_has_its_four_stages() -> None:
    found = resolve(read_deployment("cascade"), None, HOST)
    assert found.problems == ()
    assert [unit.name for unit in found.placement.units] == ["ears", "transcriber", "thinker", "voice"]
    assert found.sound.of("transcriber").max_rows == 4


@pytest.mark.parametrize("name", [name for name in deployment_names() if name != "cascade"])
def test_every_omni_deployment_that_ships_makes_a_node(name: str, tiny_checkpoint: Path) -> None:
    found = resolve(read_deployment(name), full_size(), Machine(host=200 * GIB))
    assert found.problems == ()
    config = node_config(found.sound, tiny_checkpoint)
    Node(config)
    assert {unit.name for unit in units_of(GRAPH, config)} == set(found.memory)


def test_liveserves_eight_gpus() -> None:
    """§7.1: thinker DP 4 and talker DP 4, encoders with the thinker, vocoder with the talker."""
    found = resolve(read_deployment("liveserve-8gpu"), full_size(), HOST)
    where = {unit.name: (found.placement.torch_device(unit), unit.process) for unit in found.sound.units}
    for index in range(4):
        assert where[f"thinker.{index}"] == where[f"encoders.{index}"] == (f"cuda:{index}", f"reader.{index}")
        there = f"cuda:{index + 4}", f"speaker.{index}"
        assert where[f"talker.{index}"] == where[f"code2wav.{index}"] == there
    assert len(where) == 16
    assert found.sound.device == "cuda:0"
    assert found.sound.places == {f"gpu{index}": f"cuda:{index}" for index in range(1, 8)}
    assert [(link.source, link.target) for link in found.sound.links] == [("thinker", "talker")]


def test_a_share_of_memory_becomes_kv() -> None:
    """What 0.75 of 139 GiB leaves beside 56.9 GiB of weights, at 100 KiB a token, in whole blocks."""
    found = resolve(read_deployment("one-gpu"), full_size(), HOST)
    kv_tokens = found.sound.of("thinker").kv_tokens
    taken = found.memory["thinker"]
    assert taken["weights"] == pytest.approx(56.9 * GIB, rel=0.005)
    assert taken["KV"] == kv_tokens * 100 * 1024
    share = 0.75 * 139 * GIB
    assert share - 16 * 100 * 1024 < sum(taken.values()) <= share
    assert kv_tokens % 16 == 0


def test_the_shape_of_the_full_model_weighs_what_the_model_weighs() -> None:
    """Billions, as counted on the model itself; a shape leaves out what is no large matrix."""
    counted = {"thinker": 30.53, "talker": 3.32, "code2wav": 0.216, "encoders": 1.187}
    for stage, number in full_size().parameters.items():
        assert 0.8 * counted[stage] < number / 1e9 < 1.005 * counted[stage]


def test_units_of_one_process_share_a_decoders_weights(tmp_path: Path) -> None:
    tree = {"devices": {"a": {"device": "cpu"}, "b": {"device": "cpu"}}, "dtype": "bfloat16"}
    stages: dict[str, Any] = {"thinker": {"replicas": 2, "devices": ["a", "b"]}}
    tree["stages"] = stages | {name: {"device": "a"} for name in ("encoders", "talker", "code2wav")}
    found = deployed(tmp_path, tree, full_size(), Machine(host=200 * GIB))
    assert found.problems == ()
    assert found.memory["thinker.0"]["weights"] > 50 * GIB
    assert found.memory["thinker.1"]["weights"] == 0
    stages["thinker"]["process"] = "own"
    apart = deployed(tmp_path, tree, full_size(), Machine(host=200 * GIB))
    assert apart.memory["thinker.1"]["weights"] > 50 * GIB


def test_sizes_of_all_and_of_one(tmp_path: Path) -> None:
    found = deployed(
        tmp_path,
        {
            "defaults": {"max_rows": 5, "kv_tokens": 20000, "block_size": 8},
            "stages": {
                "talker": {"kv_tokens": 9000, "process": "voice", "threads": 3, "sampling": {"top_k": 7}},
                "code2wav": {"process": "voice", "max_rows": 2, "threads": 2},
            },
            "edges": {"talker -> code2wav": {"first_chunk": 1, "chunk": 9}},
            "limits": {"max_context_tokens": 1000, "session": {"max_items": 3}},
        },
    )
    options = found.sound
    assert (options.max_rows, options.kv_tokens, options.max_context_tokens) == (5, 20000, 1000)
    assert (options.of("talker").kv_tokens, options.of("talker").block_size) == (9000, 8)
    assert options.of("code2wav").max_rows == 2
    assert options.stages["encoders"] == StageOptions()
    assert options.stages["talker"].sampling.top_k == 7
    assert options.processes == (ProcessOptions("voice", 3),)
    assert Unit("talker", "talker", process="voice") in options.units
    assert (options.edges[0].first_chunk, options.edges[0].chunk) == (1, 9)
    assert found.limits == Limits(max_items=3)


def test_prompts_and_replies_apart(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """PD: the first units of the stage read, the others write; their KV has a connector of its own."""
    tree = {
        "stages": {"thinker": {"replicas": 3, "prefill": 1, "process": "own"}},
        "edges": {"thinker->thinker": {"connector": "tcp"}},
    }
    options = deployed(tmp_path, tree).sound
    roles = {unit.name: unit.role for unit in options.units if unit.stage == "thinker"}
    assert roles == {"thinker.0": "prefill", "thinker.1": "decode", "thinker.2": "decode"}
    assert {unit.role for unit in options.units if unit.stage != "thinker"} == {"both"}
    assert [(link.source, link.target, link.connector) for link in options.links] == [
        ("thinker", "thinker", "tcp")
    ]
    assert options.edges == ()
    Node(node_config(options, tiny_checkpoint))


def test_a_connector_where_something_crosses(tmp_path: Path) -> None:
    tree = apart("encoders", "thinker", "talker") | {
        "edges": {"encoders -> thinker": {"connector": "tcp"}, "thinker -> talker": {"connector": "tcp"}}
    }
    found = deployed(tmp_path, tree)
    assert peers_of(find_graph("qwen3_omni_moe"), found.placement.units, found.sound.links) == {
        frozenset(("encoders", "thinker")): "tcp",
        frozenset(("thinker", "talker")): "tcp",
    }


def test_one_context_fits_where_nothing_says(tmp_path: Path) -> None:
    options = deployed(tmp_path, {"limits": {"max_context_tokens": 50_001}}).sound
    assert options.of("talker").kv_tokens == options.kv_tokens == 50_016


def test_a_plain_deployment_names_no_units(tmp_path: Path) -> None:
    """So it does for checkpoints with other stages too."""
    options = deployed(tmp_path, {"devices": {"here": {"device": "cpu"}}}).sound
    assert (options.units, options.device, options.places) == ((), "cpu", {})
    assert deployed(tmp_path, {"depth": 0}).sound.device == "auto"


FULL = {"a": {"device": "cuda:0", "kind": "H200"}, "b": {"device": "cuda:1", "kind": "H200"}}


ALIKE = ("thinker", "talker")


def on_a(**stages: dict[str, Any]) -> dict[str, Any]:
    """Two GPUs, and stages on the first unless they say another."""
    names = ("encoders", "thinker", "talker", "code2wav")
    written = {name: {"device": "a"} | stages.get(name, {}) for name in names}
    return {"devices": FULL, "dtype": "bfloat16", "stages": written}


def stage(name: str, **keys: Any) -> dict[str, Any]:
    return {"stages": {name: keys}}


def apart(*names: str) -> dict[str, Any]:
    return {"stages": {name: {"process": "own"} for name in names}}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"preset": "fcsf"}, "preset: no preset 'fcsf'; did you mean fcfs? There are baseline"),
        (stage("thinkr"), "stages.thinkr: the model has no such stage; did you mean thinker?"),
        ({"devices": FULL}, "stages.encoders: names no device; say which of a, b"),
        (on_a(talker={"device": "bb"}), "no device 'bb'"),
        ({"devices": {"a": {"kind": "H20"}}}, "devices.a.kind: no datasheet of 'H20'; did you mean H200?"),
        ({"devices": {"a": FULL["a"], "c": FULL["a"]}}, "devices: a, c are all cuda:0"),
        (
            on_a(thinker={"memory_fraction": 0.8}, talker={"memory_fraction": 0.3}),
            "cuda:0: fractions sum to 1.1 (thinker 0.8, talker 0.3); 1 at most",
        ),
        (
            on_a(thinker={"memory_fraction": 0.4}),
            "stages.thinker.memory_fraction: 0.4 of cuda:0 (139.0 GiB) leaves KV for 0 tokens, and one "
            "context (limits.max_context_tokens) has 8192; that needs 0.42 at least",
        ),
        (on_a() | {"defaults": {"kv_tokens": 1_000_000}}, "cuda:0 has 139.0 GiB, and its stages take 18"),
        (
            on_a(talker={"memory_fraction": 0.04, "kv_tokens": 32768}),
            "cuda:0: talker takes 6.8 GiB, and its share (0.04 of 139.0 GiB) is 5.6 GiB",
        ),
        (
            stage("thinker", memory_fraction=0.5) | {"devices": {"x": {"device": "cuda:3"}}},
            "it is not known how much memory x has; say its `kind` or `memory_gib`",
        ),
        (stage("code2wav", kv_tokens=4), "stages.code2wav.kv_tokens: only decoders have that"),
        (stage("encoders", replicas=2), "stages.encoders: 2 units in process 'shared'"),
        (
            {"stages": {"thinker": {"tensor_parallel": 2}, "talker": {"tensor_parallel": 4}}},
            "and talker differ: all tensor-parallel stages must use the same degree",
        ),
        (stage("code2wav", tensor_parallel=2), "only decoders are divided (thinker, talker)"),
        (
            {"stages": {name: {"tensor_parallel": 2, "replicas": 2} for name in ALIKE}},
            "it runs without replicas",
        ),
        (
            on_a(**{name: {"tensor_parallel": 2} for name in ALIKE}),
            "stages.thinker.tensor_parallel is 2: it runs on a CPU only, and thinker is on cuda:0",
        ),
        (stage("talker", replicas=2, prefill=1), "stages.talker.prefill is 1: only thinker can be split"),
        (stage("encoders", replicas=2, prefill=1), "stages.encoders.prefill is 1: only thinker"),
        (
            on_a(thinker={"device": None, "replicas": 2, "devices": ["a", "b"], "prefill": 1}),
            "stages.thinker.prefill: the decoders of its process are on cuda:0, cuda:1",
        ),
        (
            stage("thinker", replicas=2, prefill=1) | {"edges": {"thinker -> thinker": {"chunk": 2}}},
            "edges.thinker -> thinker: KV that moves has a connector only; take chunk out",
        ),
        (
            stage("thinker", replicas=2, prefill=1) | {"edges": {"thinker -> thinker": {"connector": "tcp"}}},
            "both stages are in one process",
        ),
        (
            {"edges": {"thinker -> thinker": {"connector": "tcp"}}},
            "edges: this model has no thinker -> thinker",
        ),
        (stage("thinker", kv_tokens=100), "stage thinker: kv_tokens (100) must hold at least one context"),
        ({"edges": {"talker -> thinker": {}}}, "edges: this model has no talker -> thinker; it has enc"),
        ({"edges": {"thinker -> talker": {"chunk": 2}}}, "chunk are for a codec, which talker is not"),
        ({"edges": {"talker -> code2wav": {"chunk": 99}}}, "a chunk is more than its credit (64)"),
        ({"edges": {"talker -> code2wav": {"credit": 3}}}, "a chunk is more than its credit (3)"),
        ({"edges": {"thinker -> talker": {"connector": "tcp"}}}, "both stages are in one process"),
        (
            apart("talker", "code2wav") | {"edges": {"talker -> code2wav": {"connector": "tcp"}}},
            "edges.talker -> code2wav.connector: what talker hands to code2wav goes through the process that "
            "decides; take it out",
        ),
        (
            apart("talker") | {"edges": {"thinker -> talker": {"connector": "tcp"}}},
            "edges.thinker -> talker.connector: the shared process is joined to all others by shared memory",
        ),
        (
            {
                "stages": {
                    "encoders": {"process": "a"},
                    "thinker": {"process": "b"},
                    "talker": {"process": "a"},
                }
            }
            | {"edges": {"encoders -> thinker": {"connector": "tcp"}}},
            "processes a and b are joined once; give all that goes between them one connector",
        ),
        (
            on_a(talker={"device": "b"}, thinker={"host_kv_tokens": 64}),
            "stages.thinker.host_kv_tokens: the decoders of its process are on cuda:0, cuda:1",
        ),
    ],
)
def test_what_is_wrong(tmp_path: Path, tree: dict[str, Any], words: str) -> None:
    found = deployed(tmp_path, tree, full_size(), Machine())
    assert any(words in problem for problem in found.problems), found.problems
    with pytest.raises(ConfigError, match="this deployment can't be"):
        _ = found.sound


def test_all_that_is_wrong_is_said(tmp_path: Path) -> None:
    tree = {"preset": "x", "stages": {"y": {}, "encoders": {"replicas": 2}}, "edges": {"a -> b": {}}}
    assert len(deployed(tmp_path, tree).problems) == 4


def test_a_share_needs_a_model(tmp_path: Path) -> None:
    (problem,) = deployed(tmp_path, {"stages": {"thinker": {"memory_fraction": 0.5}}}).problems
    assert "depends on the model; name one" in problem


def test_the_machine_says_what_the_file_does_not(tmp_path: Path) -> None:
    tree = {"dtype": "bfloat16", "stages": {"thinker": {"memory_fraction": 0.5}}}
    large = deployed(tmp_path, tree, full_size(), Machine(gpus=(180 * GIB,), host=GIB))
    assert large.placement.memory == {"cuda:0": 180 * GIB}
    assert large.problems == ()
    cpu = deployed(tmp_path, tree, full_size(), Machine(host=GIB))
    assert any("cpu (1.0 GiB) leaves KV for 0 tokens" in problem for problem in cpu.problems)


@pytest.mark.parametrize(
    ("device", "key"), [({"kind": "H200"}, "kind"), ({"kind": "H200", "memory_gib": 90}, "memory_gib")]
)
def test_more_memory_than_there_is(tmp_path: Path, device: dict[str, Any], key: str) -> None:
    """Of a GPU that is here; of one elsewhere the file is believed."""
    tree = {"dtype": "bfloat16", "devices": {"a": {"device": "cuda:0", **device}}}
    small = deployed(tmp_path, tree, full_size(), Machine(gpus=(80 * GIB,)))
    assert any(
        f"devices.a.{key}: " in problem and "cuda:0 of this machine has 80.0" in problem
        for problem in small.problems
    )
    assert deployed(tmp_path, tree, full_size(), Machine(gpus=(141 * GIB,))).problems == ()
    assert deployed(tmp_path, tree, full_size(), Machine()).problems == ()


def test_the_file_and_the_engine_name_the_same() -> None:
    assert set(WrittenEdge.model_fields["connector"].annotation.__args__[0].__args__) == set(CONNECTORS)  # pyright: ignore
    assert set(StageSizes.model_fields) < set(EngineOptions.__struct_fields__)
    assert Deployment().limits.session.model_dump() == {
        name: getattr(Limits(), name) for name in Limits.__dataclass_fields__
    }
    assert Deployment().readers.model_dump() == asdict(ReaderRates())
    assert Deployment().limits.max_context_tokens == EngineOptions().max_context_tokens


def test_a_codec_runs_in_fp32(tmp_path: Path) -> None:
    found = deployed(tmp_path, {"dtype": "float16"}, full_size(), Machine(host=200 * GIB))
    assert found.memory["code2wav"]["weights"] == full_size().parameters["code2wav"] * 4
    assert set(parts(full_size(), "encoders", "float16", _load())) == {"weights", "work space"}


def _load():
    from antiphon.assembly.footprint import UnitSizes

    return UnitSizes(max_rows=4, kv_tokens=0, step_tokens=64, chunk=4, image_pixels=1_000_000)


def test_how_long_a_conversation_gets() -> None:
    """Of a workload's people; what is spoken is said again in the talker, without its replies."""
    rates = rates_of(GRAPH, full_size().shape)
    talkers, readers = session_size(named("interactive"), rates), session_size(named("readers"), rates)
    assert talkers == session_size(named("interactive"), rates)
    assert 300 < talkers.mean < talkers.p90
    assert talkers.speaking > readers.speaking
    with pytest.raises(ConfigError, match="has no people"):
        session_size(named("agents").model_copy(update={"people": {}}), rates)


def test_what_a_model_makes_of_sound_and_pictures(tmp_path: Path) -> None:
    """As its own prompt and vocoder do; where nobody knows the model, Qwen3-Omni's."""
    third = rates_of(GRAPH, full_size().shape)
    second = rates_of(find_graph("qwen2_5_omni"), find_shape("qwen2.5-omni-7b"))
    assert third == deployed(tmp_path, {}).rates == Rates(qwen3_audio_tokens(100), 32 * 32, 12.5)
    assert second == Rates(qwen25_audio_tokens(200) / 2, 28 * 28, 50.0)
    writes = ModelShape("x", {"thinker": full_size().shape.stages["thinker"]})
    assert rates_of(find_graph("text"), writes).frames_per_s == 0
    sizes = [session_size(named("interactive"), rates) for rates in (third, second)]
    assert sizes[1].speaking > 2 * sizes[0].speaking
    assert sizes[1].mean > sizes[0].mean
