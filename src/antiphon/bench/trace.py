"""What a record file (`antiphon serve --record`) tells of a run: steps, responses, KV residency."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from antiphon.assembly.node import Node
from antiphon.assembly.preset import replayable
from antiphon.core.errors import ConfigError
from antiphon.core.facts import ResponseRequested, StepDone, StepFailed
from antiphon.core.plans import ArStep, CodecStep, EncodeStep, ResponseEnded, Step
from antiphon.metrics.names import Metric
from antiphon.runtime.codec import encode
from antiphon.runtime.record import Entry, read_record, without_media

StepWork = Literal["prefill", "prefill + decode", "decode", "codec", "encode"]


@dataclass(frozen=True, slots=True)
class StepBar:
    """One step of a stage. Seconds from the record's first entry.

    rows    requests (streams, media) in it
    tokens  computed: of prompts and replies; codec frames; media
    """

    stage: str
    step: int
    start_s: float
    end_s: float
    work: StepWork
    reason: str
    rows: int
    tokens: int
    is_failed: bool = False


@dataclass(frozen=True, slots=True)
class ResponseSpan:
    """A response, from when it was asked for to its terminal event."""

    session: str
    response: str
    start_s: float
    end_s: float
    status: str


@dataclass(frozen=True, slots=True)
class Trace:
    """All steps and responses that ended within the record, in the order in which they ended."""

    stages: tuple[str, ...]
    steps: tuple[StepBar, ...]
    responses: tuple[ResponseSpan, ...]


@dataclass(frozen=True, slots=True)
class KvSample:
    """Blocks of a stage at a moment: used by running responses, idle (kept for a next turn), free."""

    t_s: float
    stage: str
    used: int
    idle: int
    free: int


def read_trace(path: Path) -> Trace:
    """Steps and responses of a record. Raises ConfigError for a file that is none, or is empty.

    A step begins when it is decided or when the step before has ended, whichever is later, and ends with the
    decision that hears of it.
    """
    _, entries = read_record(path)
    reader = _Reader()
    for entry in entries:
        reader.fold(entry)
    if not reader.steps:
        raise ConfigError(f"{path}: no step has ended in this record; talk to the server while it records")
    stages = tuple(dict.fromkeys(step.stage for step in sorted(reader.steps, key=lambda step: step.step)))
    return Trace(stages, tuple(reader.steps), tuple(reader.responses))


def read_residency(path: Path, preset: str = "") -> list[KvSample]:
    """KV blocks of every stage, whenever they change: a node decides again on the recorded facts and its
    ledgers are read. `preset`: as `replay` takes it. Raises ConfigError if it decides otherwise than the
    record says."""
    header, entries = read_record(path)
    node = Node(replayable(header.node, preset), header.depth)
    samples: list[KvSample] = []
    last: dict[str, tuple[int, int, int]] = {}
    origin_s: float | None = None
    for index, entry in enumerate(entries):
        origin_s = entry.now if origin_s is None else origin_s
        decision = without_media(node.decide(entry.facts, entry.now))
        if encode(decision) != encode(entry.decision):
            raise ConfigError(
                f"{path}: entry {index} is decided otherwise by this version, so its KV ledgers are not "
                "those of the run; use the version that wrote it, or the log of a run with server samples"
            )
        for stage, blocks in _blocks(node.stats()).items():
            if last.get(stage) != blocks:
                last[stage] = blocks
                samples.append(KvSample(entry.now - origin_s, stage, *blocks))
    if not samples:
        raise ConfigError(f"{path}: the record is empty")
    return samples


def kv_samples(t_s: float, values: dict[str, float]) -> list[KvSample]:
    """KV by stage, from a server's counters (`metrics.log.ServerSampled.values`)."""
    return [KvSample(t_s, stage, *blocks) for stage, blocks in _blocks(values).items()]


def _blocks(values: dict[str, float]) -> dict[str, tuple[int, int, int]]:
    """Used, idle and free blocks by stage; idle ones count as held, not as used."""
    found: dict[str, tuple[int, int, int]] = {}
    begin = f'{Metric.KV_BLOCKS}{{stage="'
    for name, total in values.items():
        if name.startswith(begin):
            stage = name.removeprefix(begin).removesuffix('"}')
            free = int(values.get(Metric.KV_BLOCKS_FREE.of(stage), 0))
            idle = int(values.get(Metric.KV_BLOCKS_IDLE.of(stage), 0))
            found[stage] = (int(total) - free - idle, idle, free)
    return found


class _Reader:
    """Folds a record's entries."""

    def __init__(self) -> None:
        self.steps: list[StepBar] = []
        self.responses: list[ResponseSpan] = []
        self._origin_s: float | None = None
        self._ended_s = 0.0
        self._running: dict[int, tuple[float, Step]] = {}
        self._asked: dict[tuple[str, str], float] = {}

    def fold(self, entry: Entry) -> None:
        if self._origin_s is None:
            self._origin_s = entry.now
        now = entry.now - self._origin_s
        for fact in entry.facts:
            if isinstance(fact, StepDone | StepFailed):
                self._end(fact, now)
            elif isinstance(fact, ResponseRequested):
                self._asked[fact.session, fact.response] = now
        for order in entry.decision.orders:
            if isinstance(order, Step):
                self._running[order.step] = (now, order)
        for output in entry.decision.outputs:
            if isinstance(output, ResponseEnded):
                start_s = self._asked.pop((output.session, output.response), now)
                span = ResponseSpan(output.session, output.response, start_s, now, output.status)
                self.responses.append(span)

    def _end(self, fact: StepDone | StepFailed, now: float) -> None:
        if fact.step not in self._running:
            return
        ordered_s, step = self._running.pop(fact.step)
        work, rows, tokens = _work(step)
        start_s = max(ordered_s, self._ended_s)
        is_failed = isinstance(fact, StepFailed)
        self.steps.append(
            StepBar(fact.stage, fact.step, start_s, now, work, step.reason, rows, tokens, is_failed)
        )
        self._ended_s = now


def _work(step: Step) -> tuple[StepWork, int, int]:
    """What a step does, for how many rows, over how many tokens (frames, media)."""
    match step:
        case ArStep():
            num_long = int((step.counts > 1).sum())
            work: StepWork = "decode" if not num_long else "prefill + decode"
            if num_long == len(step.rows):
                work = "prefill"
            return work, len(step.rows), int(step.counts.sum())
        case CodecStep():
            return "codec", len(step.rows), int(step.counts.sum())
        case EncodeStep():
            return "encode", len(step.media), len(step.media)
