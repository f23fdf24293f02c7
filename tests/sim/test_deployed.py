"""Deployments on simulated hardware: the units, places and sizes that `serve --config` would have."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.assembly.deployment import Deployment
from antiphon.assembly.deployment_file import read_deployment
from antiphon.core.config import NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.latency.finding import find_costs
from antiphon.latency.profile import Profile
from antiphon.latency.shapes import find_shape
from antiphon.metrics.recorder import fold
from antiphon.metrics.summary import figures
from antiphon.sim.deployed import deployed_engine, kinds
from antiphon.sim.model import SimEngine
from antiphon.sim.run import Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named
from sim.runs import started
from sim.test_machine import profiled

H200 = find_costs("h200")
GIB = 2**30


def written(where: Path, text: str) -> Deployment:
    path = where / "mine.yaml"
    path.write_text(text)
    return read_deployment(str(path))


def of(name: str, profile: Profile = H200, **others: object) -> SimEngine:
    return deployed_engine(profile, read_deployment(name), **others)  # type: ignore[arg-type]


def test_one_gpu_has_all_stages_on_it_with_the_sizes_of_the_file() -> None:
    """By hand: 0.75 of 139 GiB less the thinker's weights and work, at 100 KiB a token."""
    engine = of("one-gpu")
    assert {(unit.device, unit.process) for unit in engine.node.placed} == {("", "")}
    thinker, talker = engine.node.ar["thinker"], engine.node.ar["talker"]
    assert (thinker.max_rows, thinker.step_tokens, thinker.max_context_tokens) == (64, 2048, 32_768)
    work = 2048 * (4 * 2048 + (32 + 4) * 256 + 8 * (3 * 768 + 2048)) * 2 + 3 * 64 * 152_064 * 4
    left = 0.75 * 139 * GIB - 2 * 30_532_435_968 - work
    assert thinker.num_blocks == int(left / (16 * 100 * 1024))
    assert talker.max_context_tokens is None
    assert engine.depth == 1
    assert engine.block_bytes["thinker", "kv"] == 16 * 96 * 1024


def test_eight_gpus_have_a_unit_of_each_stage_in_turn() -> None:
    node = of("liveserve-8gpu").node
    assert [(unit.name, unit.device, unit.process) for unit in node.placed if unit.stage == "talker"] == [
        (f"talker.{index}", f"gpu{index + 4}", f"speaker.{index}") for index in range(4)
    ]
    assert len(node.placed) == 16
    assert [edge.chosen for edge in node.edges] == [{"first_chunk": 2, "chunk": 4}]


def test_what_is_given_beside_a_deployment_wins_in_every_stage(tmp_path: Path) -> None:
    deployment = written(tmp_path, "base: one-gpu\nstages: {thinker: {max_rows: 7, kv_tokens: 40000}}")
    sizes = Sizes(max_rows=3, host_kv_tokens=1600, block_size=32, layer_groups=4, depth=0)
    engine = deployed_engine(H200, deployment, "fcfs", sizes)
    assert engine.node.preset == "fcfs"
    assert engine.depth == 0
    for config in engine.node.ar.values():
        assert (config.max_rows, config.host_blocks, config.block_size) == (3, 50, 32)
        assert len(config.layer_groups) == 4
    assert engine.node.codec["code2wav"].max_rows == 3
    assert engine.node.ar["thinker"].num_blocks == 1250, "as the file says, in blocks of 32"
    assert deployed_engine(H200, deployment).node.ar["thinker"].max_rows == 7


def test_a_stage_draws_as_its_file_says(tmp_path: Path) -> None:
    deployment = written(tmp_path, "base: one-gpu\nstages: {thinker: {sampling: {max_tokens: 99}}}")
    assert deployed_engine(H200, deployment).node.ar["thinker"].sampling.max_tokens == 99


def test_memory_is_that_of_the_hardware() -> None:
    """The kinds that a file names are those of the machine that it is for."""
    with pytest.raises(ConfigError, match=r"(?s)this deployment can't be:.*thinker takes 60.3 GiB"):
        of("one-gpu", find_costs("h100"))
    assert kinds(read_deployment("liveserve-8gpu")) == ("H200",)
    assert kinds(read_deployment("demo")) == ()


def test_a_deployment_of_a_text_model(tmp_path: Path) -> None:
    text = "devices: {a: {device: cuda:0}, b: {device: cuda:1}}\nlimits: {max_context_tokens: 8192}\n"
    text += "stages: {thinker: {replicas: 2, prefill: 1, devices: [a, b], process: own, kv_tokens: 60000}}"
    llama = find_costs("4090", find_shape("llama-3-8b"))
    engine = deployed_engine(llama, written(tmp_path, text))
    assert [unit.role for unit in engine.node.placed] == ["prefill", "decode"]
    load = {"closed": {"concurrency": 4, "duration_s": 90.0}}
    outcome = simulate(Setup(changed(named("readers"), {"load": load}), llama, engine=engine), started())
    found = figures(fold(outcome.events))
    assert found["completed_turns"] > 3
    assert 0 < found['utilisation{stage="thinker.0"}'] < found['utilisation{stage="thinker.1"}']
    with pytest.raises(ConfigError, match=r"stages.talker: the model has no such stage"):
        of("one-gpu", llama)


def test_a_measured_engine_is_laid_out_anew() -> None:
    """Its own depth and times; the sizes are the file's. Of other families nobody knows how."""
    profile = replace(profiled(), datasheet=None)
    engine = of("demo", profile)
    assert profile.served is not None
    assert engine.depth == profile.served.depth
    thinker = engine.node.ar["thinker"]
    assert thinker.num_blocks == 16_384 // 16
    assert thinker.stop_ids == profile.served.node.ar["thinker"].stop_ids
    text = replace(profiled(NodeConfig("text", {"thinker": thinker}, {}, {}, {})), datasheet=None)
    with pytest.raises(ConfigError, match="cannot be laid out by a deployment"):
        of("demo", text)
