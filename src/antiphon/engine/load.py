"""From a checkpoint to executors that are ready to run: device, dtype, memory check, weights, runners."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch

from antiphon.checkpoint.files import Checkpoint, check_memory, open_checkpoint
from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph, StageKind
from antiphon.core.model_info import ModelInfo
from antiphon.core.ports import Executor, KvMover, PayloadMover, Prompter
from antiphon.engine.ar import ArExecutor
from antiphon.engine.codec import CodecExecutor
from antiphon.engine.copies import KvCopies, pick_lane
from antiphon.engine.encoders import EncoderExecutor
from antiphon.engine.family import Family
from antiphon.engine.features import FeatureStore
from antiphon.engine.payloads import InlinePayloads
from antiphon.engine.speech import SpeechRunner
from antiphon.engine.text import TextRunner
from antiphon.graphs import find_graph

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total); units are bytes where weights are read."""

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model: one executor per stage, and what a driver needs beside them."""

    executors: dict[str, Executor]
    payloads: PayloadMover
    mover: KvMover
    prompter: Prompter
    node: NodeConfig
    info: ModelInfo

    @property
    def depth(self) -> int:
        """Steps that may be in flight when the next is planned."""
        return max(executor.depth for executor in self.executors.values())


def load_engine(source: str, options: EngineOptions, name: str, progress: Progress) -> Engine:
    """Load a checkpoint directory or hub id. Raises CheckpointError or ConfigError before serving begins."""
    device = pick_device(options.device)
    dtype = pick_dtype(options.dtype, device)
    if options.threads:
        torch.set_num_threads(options.threads)
    checkpoint = open_checkpoint(source, progress=lambda text: progress(text, 0, 0))
    check_memory(checkpoint, dtype, available_bytes(device))
    graph = find_graph(checkpoint.config["model_type"])
    family: Family = cast("Family", import_module(graph.module))
    config = family.read_config(checkpoint.config)
    node = family.read_geometry(config, checkpoint.generation, options)
    loader = Loader(checkpoint, family, config, (device, dtype), progress)
    executors, payloads, mover = build_executors(graph, node, loader)
    prompter = family.load_prompter(checkpoint.path, checkpoint.config, options.max_context_tokens - 1)
    info = ModelInfo(
        name=name,
        path=str(checkpoint.path),
        family=graph.family,
        voices=family.voices(config),
        max_context_tokens=options.max_context_tokens,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
    )
    return Engine(executors, payloads, mover, prompter, node, info)


def build_executors(
    graph: StageGraph, node: NodeConfig, loader: Loader
) -> tuple[dict[str, Executor], PayloadMover, KvMover]:
    """One executor per stage that the checkpoint has, in pipeline order, and what moves payloads and KV."""
    features = FeatureStore()
    executors: dict[str, Executor] = {}
    sources: dict[str, TextRunner] = {}
    targets: dict[str, SpeechRunner] = {}
    for stage in graph.stages:
        name = stage.name
        if stage.kind is StageKind.ENCODER:
            executors[name] = EncoderExecutor(loader.stage(name), features)
        elif stage.kind is StageKind.CODEC and name in node.codec:
            executors[name] = CodecExecutor(loader.stage(name), loader.device)
        elif name in node.ar and stage.conditioned:
            targets[name] = SpeechRunner(loader.stage(name), node.ar[name])
            executors[name] = ArExecutor(targets[name])
        elif name in node.ar:
            sources[name] = TextRunner(loader.stage(name), node.ar[name], features)
            executors[name] = ArExecutor(sources[name])
    pools = {name: runner.pool for name, runner in (sources | targets).items()}
    return executors, InlinePayloads(sources, targets, features), KvCopies(pools, pick_lane(loader.device))


class Loader:
    """Streams each stage's tensors from disk to the device and says how far it is."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        family: Family,
        config: Any,
        place: tuple[torch.device, torch.dtype],
        progress: Progress,
    ) -> None:
        self.device = place[0]
        self._checkpoint = checkpoint
        self._family = family
        self._config = config
        self._place = place
        self._progress = progress

    def stage(self, name: str) -> Any:
        """One stage's model."""

        def progress(done: int, total: int) -> None:
            self._progress(f"loading {name}", done, total)

        tensors = self._checkpoint.read(self._family.tensor_names(name, self._config), progress=progress)
        return self._family.load_stage(name, tensors, self._config, self._place, self._checkpoint.path)


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one. Raises ConfigError for a device that isn't there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name!r} is no device; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"--device {name} was asked for, but this machine (or this torch build) has no CUDA"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name} was asked for; this machine has {torch.cuda.device_count()}")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and float32 on a CPU, where bfloat16 products are slower."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise ConfigError(f"--dtype {name!r} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def available_bytes(device: torch.device) -> int:
    """Memory that is free now on the device; on a CPU, what the page cache holds counts as free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
