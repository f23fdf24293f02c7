"""What an operator chose for single stages reaches the checkpoint's node, and what cannot be is refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from antiphon.core.config import EngineOptions, Unit
from antiphon.core.errors import CheckpointError, ConfigError
from antiphon.core.stage_options import EdgeOptions, SamplingDefaults, StageOptions
from antiphon.engine.load import Opened, check_room, load_engine, open_source
from antiphon.engine.placing import check_kv, check_places, check_tiers

APART = (
    Unit("encoders", "encoders", "a"),
    Unit("thinker", "thinker", "a"),
    Unit("talker", "talker", "b"),
    Unit("code2wav", "code2wav", "b"),
)


def opened(checkpoint: Path, **options: object) -> Opened:
    return open_source(str(checkpoint), EngineOptions(device="cpu", **options), lambda *_: None)


def test_each_stage_has_its_own(tiny_checkpoint: Path) -> None:
    stages = {
        "thinker": StageOptions(step_tokens=256, sampling=SamplingDefaults(max_tokens=77)),
        "talker": StageOptions(kv_tokens=16384, block_size=32, host_kv_tokens=640),
        "code2wav": StageOptions(max_rows=3),
    }
    edges = (EdgeOptions("talker", "code2wav", chunk=6),)
    node = opened(tiny_checkpoint, stages=stages, edges=edges).node
    assert (node.ar["thinker"].step_tokens, node.ar["thinker"].sampling.max_tokens) == (256, 77)
    talker = node.ar["talker"]
    assert (talker.num_blocks, talker.block_size, talker.host_blocks) == (512, 32, 20)
    assert talker.step_tokens == EngineOptions().of("").step_tokens
    assert node.codec["code2wav"].max_rows == 3
    assert node.edges == edges


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"stages": {"singer": StageOptions()}},
            "'singer' is not a stage of this checkpoint; it has encoders",
        ),
        ({"stages": {"talker": StageOptions(sampling=SamplingDefaults(top_k=-1))}}, "stage talker: top_k"),
        ({"edges": (EdgeOptions("talker", "thinker"),)}, "this model has no talker -> thinker"),
        ({"edges": (EdgeOptions("thinker", "talker", chunk=2),)}, "talker is not"),
        ({"places": {"a": "gpu"}}, "'gpu' is not a device"),
        ({"places": {"a": "cuda:99"}}, "cuda:99 was asked for"),
    ],
)
def test_what_cannot_be(tiny_checkpoint: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        opened(tiny_checkpoint, **options)


def test_every_device_holds_its_stages(tiny_checkpoint: Path) -> None:
    split = opened(tiny_checkpoint, units=APART, places={"b": "cpu:0"})
    asked: list[str] = []
    check_places(split, lambda device: asked.append(str(device)) or 1 << 40)
    assert set(asked) == {"cpu", "cpu:0"}
    with pytest.raises(
        CheckpointError, match=r"cpu:0 has 0\.00 GiB available, and the weights of talker, code"
    ):
        check_places(split, lambda device: (1 << 40) * (device.index is None))


def test_every_device_holds_its_kv(tiny_checkpoint: Path) -> None:
    """As much as the engine takes for it, each replica its own."""
    sized = opened(tiny_checkpoint, kv_tokens=16384, units=(*APART, Unit("other", "talker", "b")))
    options = EngineOptions(device="cpu", kv_tokens=16384)
    engine = load_engine(opened(tiny_checkpoint, kv_tokens=16384), options, "x", lambda *_: None)
    pools = {name: engine.executors[name].runner.pool.device.values() for name in ("thinker", "talker")}
    taken = {
        name: sum(tensor.nbytes for planes in pool for layer in planes for tensor in layer)
        for name, pool in pools.items()
    }
    stages = [sized.family.tensor_shapes(unit.stage, sized.config) for unit in APART]
    tensors = {name: shape for shapes in stages for name, shape in shapes.items()}
    weights = 4 * sum(map(math.prod, tensors.values()))
    needed = weights + taken["thinker"] + 2 * taken["talker"]
    check_kv(sized, lambda _: needed)
    with pytest.raises(
        ConfigError,
        match=r"thinker .* for kv_tokens 16384, talker .*, other .*Have fewer kv_tokens.* max_context_tokens",
    ):
        check_kv(sized, lambda _: needed - 1)


def test_kv_that_no_machine_holds_is_said(tiny_checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"thinker .* GiB for kv_tokens 1000000000000"):
        check_room(opened(tiny_checkpoint, kv_tokens=10**12))


def test_a_slower_link_is_for_cpus(tiny_checkpoint: Path) -> None:
    held = opened(tiny_checkpoint, link_gb_s=1.0)
    check_room(held)
    gpu = torch.device("cuda")
    for place in ({"device": gpu}, {"places": {"gpu": gpu}}):
        with pytest.raises(ConfigError, match=r"link_gb_s holds back copies on a CPU only"):
            check_room(dataclasses.replace(held, **place))


def test_one_process_copies_from_one_device(tiny_checkpoint: Path) -> None:
    tier = {"thinker": StageOptions(host_kv_tokens=1024)}
    check_tiers(opened(tiny_checkpoint, units=APART, stages=tier))
    with pytest.raises(ConfigError, match="stage thinker: host_kv_tokens needs the decoders of a process"):
        check_tiers(opened(tiny_checkpoint, units=APART, stages=tier, places={"b": "cpu:0"}))


def test_one_process_moves_within_one_device(tiny_checkpoint: Path) -> None:
    def split(process: str) -> tuple[Unit, ...]:
        halves = Unit("p", "thinker", "a", role="prefill"), Unit("d", "thinker", "b", process, "decode")
        others = (Unit(unit.name, unit.stage, "a") for unit in APART if unit.stage != "thinker")
        return (*others, *halves)

    check_tiers(opened(tiny_checkpoint, units=split(process="d"), places={"b": "cpu:0"}))
    with pytest.raises(ConfigError, match=r"stage thinker: its role \(prefill\) needs the decoders"):
        check_tiers(opened(tiny_checkpoint, units=split(process=""), places={"b": "cpu:0"}))
