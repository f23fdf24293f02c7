"""From a loaded engine to its latency profile: every stage, its links, what deciding costs, CPU attention.

The engine is the profiler's own while it runs: its orders number steps and tickets as they please.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import count
from math import isfinite
from typing import Literal

import msgspec
import numpy as np
import torch

from antiphon.core.config import USUAL_KV_TOKENS, ArConfig, EngineOptions, NodeConfig
from antiphon.core.conversation import Item, TextPart
from antiphon.core.errors import StageFailed
from antiphon.core.facts import Fact, ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.graph import StageGraph
from antiphon.core.plans import CopyBlocks, Output, ResponseEnded, Step
from antiphon.core.ports import Executor
from antiphon.engine.load import Engine, Loader, Progress, build_engine, check_room, load_engine, open_source
from antiphon.latency.fit import fit_attention, fit_link
from antiphon.latency.models import AttentionModel, LinkModel
from antiphon.latency.profile import Profile, Provenance, StageProfile, served
from antiphon.latency.shapes import DecoderShape, ModelShape
from antiphon.nn.attention import PagedBatch
from antiphon.nn.backends import BACKENDS
from antiphon.nn.graphs import cuda_capture
from antiphon.runtime.driver import Driver
from antiphon.runtime.stage_times import QUARTILE, Effort, Stopwatch, block_bytes, measure_stages, pool_of
from antiphon.runtime.synthetic_steps import doublings

HOST_BLOCKS = 256
"""Blocks of the host tier that copies are measured with, where an engine has none of its own."""
WAYS: tuple[Literal["host"], Literal["device"]] = ("host", "device")
COPY_REPEATS = 9

ROWS = (1, 2, 4, 8)
CONTEXTS = (64, 256, 1024, 2048)
BLOCK_SIZE = 16
REPEATS = 7
"""Attention on the CPU is measured with these."""

SESSIONS = 4
REPLY_TOKENS = 48
"""What deciding costs is measured with so many written replies."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is profiled. `served` is its node as an operator asked for it, without tiers for measuring."""

    engine: Engine
    graph: StageGraph
    shape: ModelShape
    served: NodeConfig


def load_subject(source: str, options: EngineOptions, name: str, progress: Progress) -> Subject:
    """An engine with a host tier, if it is one process. Raises CheckpointError or ConfigError."""
    opened = open_source(source, options, progress)
    options = opened.options
    shape = opened.family.read_shape(opened.config, name)
    if options.tensor_parallel > 1:
        return Subject(load_engine(opened, options, name, progress), opened.graph, shape, opened.node)
    served = opened.node
    opened = replace(opened, node=as_measured(opened.node))
    check_room(opened)
    capture = cuda_capture(opened.device) if options.graphs == "on" else None
    engine = build_engine(opened, options, name, Loader(opened, progress, capture=capture))
    return Subject(engine, opened.graph, shape, served)


def as_measured(node: NodeConfig) -> NodeConfig:
    """With a host tier for each decoder, a small one at least, and no more KV than is measured."""
    ar: dict[str, ArConfig] = {}
    for name, config in node.ar.items():
        most = max(USUAL_KV_TOKENS, config.max_context_tokens or 0) // config.block_size
        ar[name] = msgspec.structs.replace(
            config,
            host_blocks=max(config.host_blocks, HOST_BLOCKS),
            num_blocks=min(config.num_blocks, most),
        )
    return msgspec.structs.replace(node, ar=ar)


def profile(
    subject: Subject, provenance: Provenance, progress: Progress, effort: Effort = Effort()
) -> Profile:
    """Raises StageFailed where a step fails."""
    engine = subject.engine
    progress("deciding", 0, 0)
    decide_s = deciding_s(engine)
    measured = measure_stages(engine, subject.graph, effort, progress)
    progress("attention on the CPU", 0, 0)
    hears_s = engine.info.max_recording_s
    return Profile(
        stages={name: with_attention(one, subject.shape, name) for name, one in measured.stages.items()},
        links=measure_links(engine, progress),
        source="measured",
        provenance=provenance,
        decide_s=decide_s,
        served=msgspec.structs.replace(
            served(subject.served, engine.depth, subject.shape),
            reading=measured.reading,
            max_recording_s=hears_s if isfinite(hears_s) else None,
        ),
    )


def with_attention(profile: StageProfile, shape: ModelShape, stage: str) -> StageProfile:
    """A decoder's with what its attention takes on this machine's CPU."""
    decoder = shape.stages.get(stage)
    if not isinstance(decoder, DecoderShape):
        return profile
    return msgspec.structs.replace(profile, cpu_attention=cpu_attention(decoder))


@torch.inference_mode()
def cpu_attention(shape: DecoderShape) -> AttentionModel:
    """What rows cost whose attention is computed beside the device (OmniServe §3.2, eq. 3): of one layer in
    fp32 on this machine's CPU, over rows and contexts, each with the planning of its batch."""
    places = [(rows, context) for rows in ROWS for context in CONTEXTS]
    seconds: dict[tuple[int, int], list[float]] = {place: [] for place in places}
    attend, watch = BACKENDS["cpu"].create(), Stopwatch()
    width = max(CONTEXTS) // BLOCK_SIZE
    pages = torch.randn(2, max(ROWS) * width, BLOCK_SIZE, shape.kv_heads, shape.head_dim)
    tables = np.arange(max(ROWS) * width).reshape(max(ROWS), width)
    for _ in range(REPEATS + 1):
        for rows, context in places:
            q = torch.randn(rows, shape.heads, shape.head_dim)
            watch.start()
            batch = PagedBatch.build([1] * rows, [context - 1] * rows, tables[:rows], BLOCK_SIZE)
            attend(q, pages[0], pages[1], batch)
            seconds[rows, context].append(watch.stop())
    return fit_attention(
        [
            (rows * context, rows, float(np.percentile(taken[1:], QUARTILE)))
            for (rows, context), taken in seconds.items()
        ]
    )


def measure_links(engine: Engine, progress: Progress) -> dict[str, LinkModel]:
    """Copies of blocks between device and host, both ways; empty without a host tier.

    Out of the device's blocks and back into them: nothing on the device changes.
    """
    samples: dict[str, list[tuple[float, float]]] = {}
    tickets = count()
    for stage, config in engine.node.ar.items():
        for group in pool_of(engine, stage).groups if config.host_blocks else ():
            progress(f"{stage}: copies of {group}", 0, 0)
            for num_blocks in doublings(min(config.host_blocks, config.num_blocks)):
                moved = float(num_blocks * block_bytes(pool_of(engine, stage), group))
                for to, seconds in copied(engine, (stage, group), num_blocks, tickets).items():
                    samples.setdefault(to, []).append((moved, seconds))
    return {to: fit_link(mine) for to, mine in samples.items()}


def copied(engine: Engine, where: tuple[str, str], num_blocks: int, tickets: count[int]) -> dict[str, float]:
    """Seconds of a copy of so many blocks of a (stage, group), by where to."""
    blocks = np.arange(num_blocks)
    taken: dict[str, list[float]] = {to: [] for to in WAYS}
    for _ in range(COPY_REPEATS):
        for to in WAYS:
            taken[to].append(_timed(engine, CopyBlocks(*where, to, blocks, blocks, next(tickets))))
    return {to: float(np.percentile(seconds, QUARTILE)) for to, seconds in taken.items()}


def _timed(engine: Engine, order: CopyBlocks) -> float:
    """Seconds from the order of a copy to its report; those in the queue for cores are not told apart."""
    before = time.perf_counter()
    engine.mover.copy(order)
    while not engine.mover.poll():
        time.sleep(0)
    return time.perf_counter() - before


class TimedExecutor:
    """An executor that says how long its steps took to be submitted, and how many were."""

    def __init__(self, inner: Executor) -> None:
        self.depth = inner.depth
        self.seconds: list[float] = []
        self._inner = inner
        self._watch = Stopwatch()

    def submit(self, step: Step) -> None:
        self._watch.start()
        self._inner.submit(step)
        self.seconds.append(self._watch.stop())

    def poll(self) -> list[Fact]:
        return self._inner.poll()


def deciding_s(engine: Engine) -> float:
    """Median seconds of an advance that ordered one step, without the step, while a few people are written
    to. Raises StageFailed if a reply fails."""
    watched = {name: TimedExecutor(executor) for name, executor in engine.executors.items()}
    ended: list[ResponseEnded] = []

    def emit(outputs: tuple[Output, ...]) -> None:
        ended.extend(output for output in outputs if isinstance(output, ResponseEnded))

    driver, watch = Driver(replace(engine, executors={**watched}), emit), Stopwatch()
    names = [f"profile-{i}" for i in range(SESSIONS)]
    facts: list[Fact] = [fact for name in names for fact in _asked(engine, name)]
    taken: list[float] = []
    while len(ended) < len(names):
        before = {name: len(one.seconds) for name, one in watched.items()}
        watch.start()
        more = driver.advance(facts)
        seconds = watch.stop()
        steps = [one for name, executor in watched.items() for one in executor.seconds[before[name] :]]
        if len(steps) == 1 and not facts:
            taken.append(seconds - steps[0])
        facts = []
        if not more:
            driver.wait(1.0)
    driver.advance([SessionClosed(name) for name in names])
    for one in ended:
        if one.status == "failed":
            raise StageFailed("driver", (), f"a reply made to be measured failed: {one.message}")
    return max(float(np.median(taken)), 0.0) if taken else 0.0


def _asked(engine: Engine, name: str) -> list[Fact]:
    """A session that wants a written reply of a fixed length."""
    sampling = {
        stage: msgspec.structs.replace(config.sampling, suppress=config.stop_ids)
        for stage, config in engine.node.ar.items()
    }
    return [
        SessionOpened(name),
        ItemAdded(name, Item("i", "user", (TextPart("Tell me a story."),))),
        ResponseRequested(name, name, "r", speech=False, sampling=sampling, max_tokens=REPLY_TOKENS),
    ]
