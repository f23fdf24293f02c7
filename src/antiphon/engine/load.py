"""From a checkpoint to executors that are ready to run: device, dtype, memory check, weights, runners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from antiphon.checkpoint.dummy import DummyCheckpoint
from antiphon.checkpoint.files import Checkpoint, check_memory, open_checkpoint, open_directory
from antiphon.checkpoint.parts import check_whole
from antiphon.core.config import ArConfig, EngineOptions, NodeConfig, Unit
from antiphon.core.errors import CheckpointError, ConfigError
from antiphon.core.graph import StageGraph, StageKind
from antiphon.core.model_info import ModelInfo
from antiphon.core.ports import Executor, GuideCompiler, KvMover, PayloadMover, Processes, Prompter, Wakeup
from antiphon.engine.ar import ArExecutor
from antiphon.engine.choices import read_node, suit
from antiphon.engine.codec import CodecExecutor, ReadingExecutor, WindowExecutor
from antiphon.engine.copies import KvCopies, lane_maker
from antiphon.engine.cross import CrossPages
from antiphon.engine.derived import derived, ready
from antiphon.engine.device import available_bytes, pick_depth, pick_device
from antiphon.engine.encoders import EncoderExecutor
from antiphon.engine.family import DecoderModel, Family, FollowerModel, family_of
from antiphon.engine.features import FeatureStore
from antiphon.engine.graphs import FrameGraphs
from antiphon.engine.guides import Guides
from antiphon.engine.heap import give_back
from antiphon.engine.lanes import Lane, LanedExecutor, LanedPayloads, Launcher, StreamLane
from antiphon.engine.leader import Followers, LeadingModel, check_place
from antiphon.engine.payloads import InlinePayloads
from antiphon.engine.placing import check_kv, check_places, check_tiers, num_weights
from antiphon.engine.rehearsal import Progress, Rehearsing, rehearse
from antiphon.engine.speech import SpeechRunner
from antiphon.engine.text import TextRunner
from antiphon.graphs import find_graph
from antiphon.latency.shapes import DecoderShape
from antiphon.nn.backends import BACKENDS, pick_backend
from antiphon.nn.cpu import keeps_quantised, told_of_kernels
from antiphon.nn.graphs import Capture, cuda_capture
from antiphon.nn.shard import Shard
from antiphon.nn.stage_source import StageSource

log = logging.getLogger(__name__)

COMPILING = "compiling kernels for this CPU, kept for the next time"


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model: one executor per unit, and what a driver needs beside them.

    wakeup     rings when a step ends; None where steps run when they are submitted
    processes  those that units have for their own; None where all are in this one
    guides     for what texts have to match; None where it is compiled when a text begins
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
    processes: Processes | None = None
    guides: GuideCompiler | None = None

    @property
    def depth(self) -> int:
        """Steps that may be in flight when the next is planned."""
        return max(executor.depth for executor in self.executors.values())


@dataclass(frozen=True, slots=True)
class LoadedUnits:
    """Units of one process. At depth 1 executors run in the lane; payloads are to be moved in it as well.
    guides: None where none of them writes text."""

    executors: dict[str, Executor]
    payloads: InlinePayloads
    mover: KvCopies
    device: torch.device
    lane: Lane | None
    guides: Guides | None


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint that has been understood and not yet loaded.

    options with the sizes that were derived; why: from what, and those that are usual
    places  devices by the names that units have for them; `device` is where all others are
    """

    checkpoint: Checkpoint
    graph: StageGraph
    family: Family
    config: Any
    node: NodeConfig
    device: torch.device
    dtype: torch.dtype
    attention: str
    options: EngineOptions
    why: dict[str, str]
    places: dict[str, torch.device] = field(default_factory=dict[str, torch.device])

    def device_of(self, unit: Unit) -> torch.device:
        return self.places.get(unit.device, self.device)

    def keeps_blocks(self, device: torch.device) -> bool:
        """Whether quantised weights are in memory as they are in their file."""
        return _keeps_blocks(device, self.dtype)

    @property
    def place(self) -> tuple[torch.device, torch.dtype]:
        return self.device, self.dtype


def _keeps_blocks(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cpu" and dtype is torch.float32 and keeps_quantised()


def load_engine(opened: Opened, options: EngineOptions, name: str, progress: Progress) -> Engine:
    """Load all of it into this process. Raises CheckpointError or ConfigError before serving begins."""
    check_room(opened)
    if options.tensor_parallel == 1:
        capture = cuda_capture(opened.device) if options.graphs == "on" else None
        return build_engine(opened, options, name, Loader(opened, progress, capture=capture))
    check_place(options, opened.device.type)
    followers = Followers(opened.checkpoint.source, options)
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
    places = {name: pick_device(wanted) for name, wanted in options.places.items()}
    dtype, attention = suit(options, device, places.values())
    if options.threads:
        torch.set_num_threads(options.threads)
    exact(dtype)
    find = open_directory if options.load_format == "dummy" else open_checkpoint
    checkpoint = find(source, progress=lambda text: progress(text, 0, 0), takes_media=takes_media)
    graph = find_graph(checkpoint.config["model_type"])
    family = family_of(graph)
    config = family.read_config(checkpoint.config)
    read = partial(read_node, graph, family, config, checkpoint.generation)
    shape, free = family.read_shape(config, ""), available_bytes(device)
    node = read(options)
    # Files say it at once; layouts import every stage's module, which only its own process needs.
    weights = checkpoint.bytes_held(dtype, keeps_blocks=_keeps_blocks(device, dtype))
    if not checkpoint.tensors:
        stages = [*node.encoder, *node.ar, *node.codec]
        weights = num_weights(family, config, stages) * dtype.itemsize
    options, why = derived(options, graph, shape, (device, dtype), (free, weights))
    for size, reason in why.items():
        log.info("%s %s", size, reason)
    made_for, asked = checkpoint.context, options.max_context_tokens
    if made_for is not None and asked > made_for:
        log.warning(
            "max_context_tokens is %s, and this model was made for %s: beyond them it may write nonsense",
            *(asked, made_for),
        )
    node = read(options)
    if device.type == "cpu":
        node = ready(node, graph, shape, dtype, free)
    node = msgspec.structs.replace(node, call_ids=family.call_ids(checkpoint.writer))
    if options.load_format == "dummy":
        shapes = tensor_shapes(graph, node, family, config)
        checkpoint = DummyCheckpoint.of(checkpoint, shapes, (device, dtype), options.dummy_seed)
    return Opened(checkpoint, graph, family, config, node, device, dtype, attention, options, why, places)


def check_room(opened: Opened) -> None:
    """Raises CheckpointError or ConfigError for what the devices cannot hold, or cannot do."""
    types = {device.type for device in (opened.device, *opened.places.values())}
    if opened.options.link_gb_s is not None and "cuda" in types:
        raise ConfigError("link_gb_s holds back copies on a CPU only; take it out, or serve with device cpu")
    if opened.places:
        check_places(opened, available_bytes)
        check_tiers(opened)
    else:
        free, keeps_blocks = available_bytes(opened.device), opened.keeps_blocks(opened.device)
        check_memory(opened.checkpoint, opened.dtype, free, keeps_blocks=keeps_blocks)
    check_kv(opened, available_bytes)


def takes_media(path: Path, config: Mapping[str, Any]) -> bool:
    """Raises CheckpointError for a model of which there is no graph."""
    check_whole(path, config)
    try:
        return find_graph(config.get("model_type", "")).takes_media
    except ConfigError as error:
        architectures = ", ".join(config.get("architectures") or ["none"])
        raise CheckpointError(f"{path / 'config.json'}: {error} (architectures: {architectures})") from None


def build_engine(opened: Opened, options: EngineOptions, name: str, loader: Loader) -> Engine:
    """Load every stage that the checkpoint has."""
    placed = opened.node.placed
    executors, payloads, mover, guides = build_executors(opened, loader, placed)
    if loader.rehearses:
        rehearse(_runners(executors, opened.node), loader.progress)
    prompter = load_prompter(opened, options)
    info = model_info(opened, options, name, prompter)
    node = with_calls(opened.node, prompter)
    engine = Engine(executors, payloads, mover, prompter, node, info, guides=guides)
    return engine if pick_depth(options.depth, opened.device) == 0 else in_lane(engine, opened.device)


def load_units(opened: Opened, options: EngineOptions, process: str, progress: Progress) -> LoadedUnits:
    """Load the units that live in this process, with the lane of their device at depth 1."""
    units = tuple(unit for unit in opened.node.placed if unit.process == process)
    if units:
        opened = replace(opened, device=opened.device_of(units[0]))
    if opened.device.type == "cuda":
        torch.cuda.set_device(opened.device)
    capture = cuda_capture(opened.device) if options.graphs == "on" else None
    loader = Loader(opened, progress, capture=capture)
    executors, payloads, mover, guides = build_executors(opened, loader, units)
    if loader.rehearses:
        rehearse(_runners(executors, opened.node), loader.progress)
    if pick_depth(options.depth, opened.device) == 0:
        return LoadedUnits(executors, payloads, mover, opened.device, None, guides)
    lane = lane_of(opened.device)
    return LoadedUnits(laned(executors, lane), payloads, mover, opened.device, lane, guides)


def load_prompter(opened: Opened, options: EngineOptions) -> Prompter:
    checkpoint = opened.checkpoint
    return opened.family.load_prompter(checkpoint.path, checkpoint.config, options.max_context_tokens - 1)


def with_calls(node: NodeConfig, prompter: Prompter) -> NodeConfig:
    """With the tokens by which bare calls are told, as the chat template has them."""
    return msgspec.structs.replace(node, json_call_ids=prompter.json_call_ids, blank_ids=prompter.blank_ids)


def model_info(opened: Opened, options: EngineOptions, name: str, prompter: Prompter) -> ModelInfo:
    sampling = {
        name: config.sampling for name, config in opened.node.ar.items() if name != opened.graph.transcriber
    }
    writer = opened.family.read_shape(opened.config, name).stages[next(iter(sampling))]
    return ModelInfo(
        name=name,
        path=str(opened.checkpoint.writer),
        family=opened.checkpoint.config["model_type"],
        voices=opened.family.voices(opened.config, opened.checkpoint.path),
        max_context_tokens=options.max_context_tokens,
        device=str(opened.device),
        dtype=str(opened.dtype).removeprefix("torch."),
        sampling=sampling,
        max_recording_s=opened.family.max_recording_s(opened.config),
        transcriber_path=str(opened.checkpoint.parts.get(opened.graph.transcriber or "", "")),
        languages=opened.family.languages(opened.config),
        reads_ahead=opened.graph.transcriber is not None,
        vocab_size=writer.vocab if isinstance(writer, DecoderShape) else 0,
        inputs=("audio",) * opened.graph.takes_media + ("image",) * opened.graph.sees,
        takes_tools=prompter.takes_tools,
        json_calls=bool(prompter.json_call_ids),
        latin_only=opened.family.latin_only(opened.config),
    )


def _runners(executors: Mapping[str, Executor], node: NodeConfig) -> dict[str, tuple[Rehearsing, int]]:
    """The decoders' step runners by unit, each with the most rows that it will have."""
    stages = {unit.name: unit.stage for unit in node.placed}
    return {
        name: (cast("Rehearsing", executor.runner), node.ar[stages[name]].max_rows)
        for name, executor in executors.items()
        if isinstance(executor, ArExecutor)
    }


def exact(dtype: torch.dtype) -> None:
    """fp32 means fp32 on CUDA: without this, cuDNN rounds what convolutions multiply to 10 bits (TF32).

    Unverified: has not run on an accelerator.
    """
    if dtype is torch.float32:
        torch.backends.cudnn.allow_tf32 = False


def in_lane(engine: Engine, device: torch.device) -> Engine:
    """The engine with one step in flight while the next is decided."""
    lane = lane_of(device)
    executors = laned(engine.executors, lane)
    return replace(engine, executors=executors, payloads=LanedPayloads(engine.payloads, lane), wakeup=lane)


def lane_of(device: torch.device) -> Lane:
    return StreamLane() if device.type == "cuda" else Lane()


def laned(executors: dict[str, Executor], lane: Lane) -> dict[str, Executor]:
    return {name: LanedExecutor(cast("Launcher", inner), lane) for name, inner in executors.items()}


def load_followers(
    source: str, options: EngineOptions, shard: Shard
) -> tuple[dict[str, FollowerModel], torch.dtype]:
    """A rank's part of every paged decoder that is divided, by stage; for ranks other than 0."""
    opened = open_source(source, options, lambda what, done, total: None)
    models: dict[str, FollowerModel] = {}
    for name in filter(options.is_divided, opened.node.ar):
        model = opened.family.load_follower(name, opened.checkpoint.read, opened.config, opened.place, shard)
        model.use_backend(BACKENDS[opened.attention])
        models[name] = model
    return models, opened.dtype


def build_executors(
    opened: Opened, loaders: Loader, units: tuple[Unit, ...]
) -> tuple[dict[str, Executor], InlinePayloads, KvCopies, Guides | None]:
    """An executor of each of these units, in their order, what moves payloads and KV, and the guides of those
    that write text, if any does. Decoders of one stage on one device share its weights."""
    graph, node, features = opened.graph, opened.node, FeatureStore()
    guides: Guides | None = None
    executors: dict[str, Executor] = {}
    sources: dict[str, TextRunner] = {}
    targets: dict[str, SpeechRunner] = {}
    for unit in units:
        stage, loader = graph.stage(unit.stage), loaders.on(unit)
        if stage.kind is StageKind.ENCODER:
            executors[unit.name] = EncoderExecutor(loader.stage(stage.name), features)
        elif stage.kind is StageKind.CODEC:
            windowed = ReadingExecutor if stage.reads else WindowExecutor
            kind = windowed if stage.windowed else CodecExecutor
            executors[unit.name] = kind(loader.stage(stage.name), loader.device)
        elif stage.conditioned:
            targets[unit.name] = SpeechRunner(loader.talker(stage.name), node.ar[stage.name])
            executors[unit.name] = ArExecutor(targets[unit.name])
        else:
            model, config = loader.decoder(stage.name), node.ar[stage.name]
            cross = CrossPages(model, config.max_rows, config.block_size) if stage.transcribes else None
            if guides is None and not stage.transcribes:
                guides = loader.guides(model.vocab_size, config)
            own = None if stage.transcribes else guides
            sources[unit.name] = TextRunner(model, config, features, cross, own)
            executors[unit.name] = ArExecutor(sources[unit.name])
    pools = {name: runner.pool for name, runner in (sources | targets).items()}
    payloads = InlinePayloads(sources, targets, features)
    mover = KvCopies(pools, lane_maker(loaders.device), opened.options.link_gb_s)
    return executors, payloads, mover, guides


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
        self.progress = progress
        self._opened = opened
        self._followers = followers
        self._capture = capture
        self._decoders: dict[str, Any] = {}
        self._elsewhere: dict[torch.device, Loader] = {}

    def on(self, unit: Unit) -> Loader:
        """Loads what this unit needs to the device on which it is."""
        opened, device = self._opened, self._opened.device_of(unit)
        if device == opened.device:
            return self
        if device not in self._elsewhere:
            is_alike = device.type == opened.device.type
            attention = pick_backend(opened.attention if is_alike else "auto", device, opened.dtype)
            there = replace(opened, device=device, attention=attention)
            capture = None if self._capture is None else cuda_capture(device)
            self._elsewhere[device] = Loader(there, self.progress, self._followers, capture)
        return self._elsewhere[device]

    @property
    def rehearses(self) -> bool:
        """Whether first steps would wait: for a capture, or for what libraries compile and choose on CUDA."""
        return self._capture is not None or self.device.type == "cuda"

    def stage(self, name: str) -> Any:
        """One stage's model."""

        def progress(done: int, total: int) -> None:
            self.progress(f"loading {name}", done, total)

        opened = self._opened
        names = opened.family.tensor_names(name, opened.config)
        tensors = opened.checkpoint.read(names, progress=progress)
        shard = None if self._followers is None else self._followers.shard_of(name)
        with self._told_of_kernels():
            source = StageSource(name, tensors, opened.config)
            made = opened.family.load_stage(source, opened.place, opened.checkpoint.path, shard)
        give_back()  # what it was read through, or stages would add that up
        return made

    def decoder(self, name: str) -> Any:
        """A paged decoder, with an attention of its own, on all ranks if there are several. Loaded once."""
        if name not in self._decoders:
            self._decoders[name] = self._decoder(name)
        return self._decoders[name]

    def _decoder(self, name: str) -> Any:
        model: DecoderModel = self.stage(name)
        with self._told_of_kernels():
            model.use_backend(BACKENDS[self._opened.attention], self._capture)
        if self._followers is None or self._followers.shard_of(name) is None:
            return model
        return LeadingModel(model, name, self._followers)

    def _told_of_kernels(self) -> AbstractContextManager[None]:
        return told_of_kernels(lambda done: self.progress(COMPILING, done, 0))

    def guides(self, vocab: int, config: ArConfig) -> Guides:
        """Of the stage that writes text."""
        return Guides(self._opened.checkpoint.writer, vocab, config.stop_ids)

    def talker(self, name: str) -> Any:
        """A paged decoder that speaks."""
        model = self.decoder(name)
        return model if self._capture is None else FrameGraphs(model, self._capture)
