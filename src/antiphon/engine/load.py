"""From a checkpoint to executors that are ready to run: device, dtype, memory check, weights, runners."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from antiphon.checkpoint.dummy import DummyCheckpoint
from antiphon.checkpoint.files import Checkpoint, check_memory, open_checkpoint, open_directory
from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph, StageKind
from antiphon.core.model_info import ModelInfo
from antiphon.core.ports import Executor, KvMover, PayloadMover, Prompter, Wakeup
from antiphon.engine.ar import ArExecutor
from antiphon.engine.codec import CodecExecutor
from antiphon.engine.copies import KvCopies, pick_lane
from antiphon.engine.encoders import EncoderExecutor
from antiphon.engine.family import DecoderModel, Family, FollowerModel
from antiphon.engine.features import FeatureStore
from antiphon.engine.graphs import FrameGraphs
from antiphon.engine.lanes import Lane, LanedExecutor, LanedPayloads, Launcher, StreamLane
from antiphon.engine.leader import Followers, LeadingModel, check_place
from antiphon.engine.payloads import InlinePayloads
from antiphon.engine.speech import SpeechRunner
from antiphon.engine.text import TextRunner
from antiphon.graphs import find_graph
from antiphon.nn.backends import BACKENDS, pick_backend
from antiphon.nn.graphs import Capture, cuda_capture
from antiphon.nn.shard import Shard

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total); units are bytes where weights are read."""

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model: one executor per stage, and what a driver needs beside them.

    wakeup  rings when a step ends; None where steps run when they are submitted
    """

    executors: dict[str, Executor]
    payloads: PayloadMover
    mover: KvMover
    prompter: Prompter
    node: NodeConfig
    info: ModelInfo
    wakeup: Wakeup | None = None
    check: Callable[[], None] = lambda: None
    """Raises EngineLost once the engine cannot go on."""

    @property
    def depth(self) -> int:
        """Steps that may be in flight when the next is planned."""
        return max(executor.depth for executor in self.executors.values())


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint that has been understood and not yet loaded."""

    checkpoint: Checkpoint
    graph: StageGraph
    family: Family
    config: Any
    node: NodeConfig
    device: torch.device
    dtype: torch.dtype
    attention: str

    @property
    def place(self) -> tuple[torch.device, torch.dtype]:
        return self.device, self.dtype


def load_engine(source: str, options: EngineOptions, name: str, progress: Progress) -> Engine:
    """Load a checkpoint directory or hub id. Raises CheckpointError or ConfigError before serving begins."""
    opened = open_source(source, options, progress)
    check_memory(opened.checkpoint, opened.dtype, available_bytes(opened.device))
    if options.tensor_parallel == 1:
        capture = cuda_capture(opened.device) if options.graphs == "on" else None
        return build_engine(opened, options, name, Loader(opened, progress, capture=capture))
    check_place(options, opened.device.type)
    opened.family.check_ranks(opened.config, options.tensor_parallel)
    followers = Followers(str(opened.checkpoint.path), options)
    try:
        engine = build_engine(opened, options, name, Loader(opened, progress, followers))
        followers.meet()
    except BaseException:
        followers.stop()
        raise
    return replace(engine, check=followers.check)


def open_source(source: str, options: EngineOptions, progress: Progress) -> Opened:
    """Find and check everything that needs no weights. Raises CheckpointError or ConfigError."""
    device = pick_device(options.device)
    dtype = pick_dtype(options.dtype, device)
    attention = pick_backend(options.attention, device, dtype)
    if options.graphs == "on" and device.type != "cuda":
        raise ConfigError(f"--cuda-graphs needs CUDA, and the device is {device}")
    if options.threads:
        torch.set_num_threads(options.threads)
    find = open_directory if options.load_format == "dummy" else open_checkpoint
    checkpoint = find(source, progress=lambda text: progress(text, 0, 0))
    graph = find_graph(checkpoint.config["model_type"])
    family: Family = cast("Family", import_module(graph.module))
    config = family.read_config(checkpoint.config)
    node = family.read_geometry(config, checkpoint.generation, options)
    node = msgspec.structs.replace(node, call_ids=family.call_ids(checkpoint.path))
    if options.load_format == "dummy":
        shapes = tensor_shapes(graph, node, family, config)
        checkpoint = DummyCheckpoint.of(checkpoint, shapes, (device, dtype), options.dummy_seed)
    return Opened(checkpoint, graph, family, config, node, device, dtype, attention)


def build_engine(opened: Opened, options: EngineOptions, name: str, loader: Loader) -> Engine:
    """Load every stage that the checkpoint has."""
    executors, payloads, mover = build_executors(opened.graph, opened.node, loader)
    checkpoint, family = opened.checkpoint, opened.family
    prompter = family.load_prompter(checkpoint.path, checkpoint.config, options.max_context_tokens - 1)
    info = ModelInfo(
        name=name,
        path=str(checkpoint.path),
        family=opened.graph.family,
        voices=family.voices(opened.config),
        max_context_tokens=options.max_context_tokens,
        device=str(opened.device),
        dtype=str(opened.dtype).removeprefix("torch."),
        sampling={name: config.sampling for name, config in opened.node.ar.items()},
    )
    engine = Engine(executors, payloads, mover, prompter, opened.node, info)
    return engine if pick_depth(options.depth, opened.device) == 0 else in_lane(engine, opened.device)


def in_lane(engine: Engine, device: torch.device) -> Engine:
    """The engine with one step in flight while the next is decided."""
    lane = StreamLane() if device.type == "cuda" else Lane()
    executors: dict[str, Executor] = {
        name: LanedExecutor(cast("Launcher", inner), lane) for name, inner in engine.executors.items()
    }
    return replace(engine, executors=executors, payloads=LanedPayloads(engine.payloads, lane), wakeup=lane)


def load_followers(
    source: str, options: EngineOptions, shard: Shard
) -> tuple[dict[str, FollowerModel], torch.dtype]:
    """A rank's part of every paged decoder, by stage; for ranks other than 0."""
    opened = open_source(source, options, lambda what, done, total: None)
    models: dict[str, FollowerModel] = {}
    for name in opened.node.ar:
        model = opened.family.load_follower(name, opened.checkpoint.read, opened.config, opened.place, shard)
        model.use_attention(BACKENDS[opened.attention].create())
        models[name] = model
    return models, opened.dtype


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
            targets[name] = SpeechRunner(loader.speaker(name), node.ar[name])
            executors[name] = ArExecutor(targets[name])
        elif name in node.ar:
            sources[name] = TextRunner(loader.decoder(name), node.ar[name], features)
            executors[name] = ArExecutor(sources[name])
    pools = {name: runner.pool for name, runner in (sources | targets).items()}
    return executors, InlinePayloads(sources, targets, features), KvCopies(pools, pick_lane(loader.device))


def tensor_shapes(
    graph: StageGraph, node: NodeConfig, family: Family, config: Any
) -> dict[str, tuple[int, ...]]:
    """The tensors of a whole checkpoint: those that any of its stages needs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for stage in graph.stages:
        if stage.kind is StageKind.ENCODER or stage.name in node.codec or stage.name in node.ar:
            shapes |= family.tensor_shapes(stage.name, config)
    return shapes


class Loader:
    """Streams each stage's tensors from disk to the device and says how far it is."""

    def __init__(
        self,
        opened: Opened,
        progress: Progress,
        followers: Followers | None = None,
        capture: Capture | None = None,
    ) -> None:
        """capture: how decode steps and codec frames are captured; None runs them as they are."""
        self.device = opened.device
        self._opened = opened
        self._progress = progress
        self._followers = followers
        self._capture = capture

    def stage(self, name: str) -> Any:
        """One stage's model."""

        def progress(done: int, total: int) -> None:
            self._progress(f"loading {name}", done, total)

        opened = self._opened
        names = opened.family.tensor_names(name, opened.config)
        tensors = opened.checkpoint.read(names, progress=progress)
        shard = None if self._followers is None else self._followers.shard
        return opened.family.load_stage(
            name, tensors, opened.config, opened.place, opened.checkpoint.path, shard
        )

    def decoder(self, name: str) -> Any:
        """A paged decoder, with an attention of its own, on all ranks if there are several."""
        model: DecoderModel = self.stage(name)
        model.use_attention(BACKENDS[self._opened.attention].create())
        if self._capture is not None:
            model.use_graphs(self._capture)
        return model if self._followers is None else LeadingModel(model, name, self._followers)

    def speaker(self, name: str) -> Any:
        """A paged decoder that speaks."""
        model = self.decoder(name)
        return model if self._capture is None else FrameGraphs(model, self._capture)


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


def pick_depth(depth: int | None, device: torch.device) -> int:
    """Steps in flight while the next is decided: 1 on CUDA, 0 on a CPU, unless chosen."""
    if depth is not None:
        return depth
    return 1 if device.type == "cuda" else 0


def available_bytes(device: torch.device) -> int:
    """Memory that is free now on the device; on a CPU, what the page cache holds counts as free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
