"""Measures the stages of a loaded engine: what their steps take, from the order to the report.

All cases are measured in turns, so that a busy machine disturbs all alike; a case counts by its lower
quartile, since what disturbs a step makes it longer and hardly ever shorter. Afterwards every row is given up
and every medium dropped.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, cast

import numpy as np

from antiphon.core.conversation import ImagePart, Item, TextPart
from antiphon.core.errors import StageFailed
from antiphon.core.facts import Fact, PromptFailed, StepDone, StepFailed
from antiphon.core.graph import Stage, StageGraph, StageKind
from antiphon.core.plans import ArStep, DropMedia, DropPayload, EncodeStep, Handoff, RenderPrompt, Step
from antiphon.core.ports import Executor
from antiphon.core.rng import stream
from antiphon.engine.ar import ArExecutor
from antiphon.engine.kv_pool import KvPool
from antiphon.engine.lanes import LanedExecutor
from antiphon.engine.load import Engine, Progress
from antiphon.latency.features import TOKEN_PIXELS, Features, features_of
from antiphon.latency.fit import dense_threshold, fit_ar, fit_codec, fit_encoder, fit_speech, residuals
from antiphon.latency.ladder import interpolate
from antiphon.latency.models import StageModel
from antiphon.latency.profile import Reading, StageProfile
from antiphon.runtime.synthetic_speech import TEXTS, SpeechMix, SpeechSynthesis, drawn_speaking, speaking
from antiphon.runtime.synthetic_steps import (
    REASON,
    ArMix,
    ArSynthesis,
    Chunk,
    CodecMix,
    CodecSynthesis,
    Senses,
    chunking,
    decoding,
    doublings,
    drawing,
    drawn_decoding,
    drawn_media,
    drawn_mix,
    media_alone,
    most_tokens,
    recording,
)

FLAT_SHARE = 0.1
"""Algorithm 1 counts as flat what rises by less than this share of the longest step."""

FEW_TOKENS = (1, 2, 4, 8, 16, 32)
"""Always knots: decode steps have so many."""

QUARTILE = 25

LEAST_SHARE = 0.1
"""This share of the time stays: a thread's wait is counted when it ends, and may have begun before."""

LARGE_PICTURE = 1024
"""Pixels a side."""

SPOKEN_S = 3.0
"""A turn's speech, which a transcriber is measured with."""


class Stopwatch:
    """Seconds that work takes, without those in which other processes had the cores.

    Linux says how long each thread stood in the queue of the scheduler (/proc/PID/task/TID/schedstat). What
    the thread that waited longest stood there is taken off; elsewhere nothing is. It knows the threads that
    there are when it is made; those that come later count as never waiting.
    """

    def __init__(self) -> None:
        self._files = _open_all()
        for file in self._files:
            weakref.finalize(self, os.close, file)
        self._queued = [0] * len(self._files)
        self._began = 0.0

    def start(self) -> None:
        self._queued = self._read()
        self._began = time.perf_counter()

    def stop(self) -> float:
        """Seconds since `start`."""
        seconds = time.perf_counter() - self._began
        waited = [after - before for before, after in zip(self._queued, self._read(), strict=True)]
        return max(seconds - max(waited, default=0) / 1e9, LEAST_SHARE * seconds)

    def _read(self) -> list[int]:
        """Nanoseconds in the queue, per thread; none of a thread that has ended."""
        return [_queued_ns(file) for file in self._files]


def _open_all() -> list[int]:
    files: list[int] = []
    with contextlib.suppress(OSError):
        for task in sorted(Path("/proc/self/task").iterdir()):
            with contextlib.suppress(OSError):
                files.append(os.open(task / "schedstat", os.O_RDONLY))
    return files


def _queued_ns(file: int) -> int:
    try:
        return int(os.pread(file, 128, 0).split()[1])
    except (OSError, IndexError):
        return 0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: rounds over all cases of a stage, the steps drawn to fit and to hold out."""

    rounds: int = 8
    fitted_steps: int = 40
    held_out_steps: int = 40
    seed: int = 0


@dataclass(slots=True)
class Case:
    """A step that is measured: `prepare` gives what runs before it unmeasured, `make` the step. `said` tells
    its features where the step itself does not."""

    prepare: Callable[[], list[Any]]
    make: Callable[[], Step]
    held_out: bool = False
    features: Features | None = None
    said: Callable[[], Features] | None = None
    seconds: list[float] = field(default_factory=list[float])

    @property
    def sample(self) -> tuple[Any, float]:
        assert self.features is not None, "a case has run"
        return self.features, float(np.percentile(self.seconds, QUARTILE))


Finish = Callable[[], StageProfile]
"""Fits what has been measured, and leaves the stage as it was."""


class StageBench:
    """One stage of an engine, and the steps that it has been measured with."""

    def __init__(
        self, engine: Engine, graph: StageGraph, stage: Stage, effort: Effort, progress: Progress
    ) -> None:
        self.engine, self.stage, self.effort = engine, stage, effort
        self._graph = graph
        self._shown_by = next(
            (edge for edge in graph.edges if edge.target == stage.name and edge.streams), None
        )
        self._progress = progress
        self.reading: Reading | None = None
        """Of a codec that reads text, how it does: known once it is planned."""
        self._watch = Stopwatch()
        self._most_tokens: int | None = None
        self._medium: DropMedia | None = None
        """What drops the recording that is transcribed."""
        self.cases: list[Case] = []

    def plan(self) -> Finish:
        """Decide what is measured; what it returns is to be called once that is done."""
        if self.stage.kind is StageKind.AR:
            return self._decoder()
        if self.stage.kind is StageKind.CODEC:
            return self._reader() if self.stage.reads else self._codec()
        return self._encoders()

    def seconds(self, case: Case) -> float:
        """One measurement."""
        for step in case.prepare():
            self._show(step)
            timed(self.engine, step, self._watch)
        step = case.make()
        self._show(step)
        case.features = features_of(step, self._most_tokens or inf) if case.said is None else case.said()
        return timed(self.engine, step, self._watch)

    def _show(self, step: Step) -> None:
        """Where every token is shown with its state, prompts come with those of a row of the stage before."""
        if self._shown_by is None or not isinstance(step, ArStep):
            return
        source, name, group = self._shown_by.source, self.stage.name, self._shown_by.prompt_group
        assert group is not None, "what streams lies in a group"
        for join in step.joins:
            self.engine.payloads.drop_payload(DropPayload(name, join.request))
            shown = np.arange(len(join.prompt.token_ids) - 1)
            self.engine.payloads.handoff(Handoff(source, name, group, 0, join.request, shown))

    def _decoder(self) -> Finish:
        name = self.stage.name
        craft = ArSynthesis(
            self.stage,
            self.engine.node.ar[name],
            self._stream("ids"),
            self.engine.info.max_context_tokens,
            self._heard(),
        )

        def case(mix: ArMix, held_out: bool = False) -> Case:
            return Case(lambda: craft.prepare(mix), lambda: craft.step(mix), held_out)

        def measure(tokens: int) -> float:
            return self._once(case(ArMix(chunks=(Chunk(0, tokens),))))

        for mix in (ArMix(chunks=(Chunk(0, most_tokens(craft)),)), *drawing(craft)):
            self._once(case(mix))  # what is compiled or captured at the first step of its size
        most = most_tokens(craft)
        self._progress(f"{name}: Algorithm 1", 0, 0)
        flat_s = dense_threshold(measure, most, FLAT_SHARE)
        dense = interpolate(measure, 1, most, flat_s).thinned(flat_s / 2)
        knots = tuple(sorted({*dense.at, *(n for n in FEW_TOKENS if n < most)}))
        self.cases = [case(mix) for mix in (*drawing(craft), *chunking(craft, knots))]
        for split, count in self._splits():
            rng = self._stream(split)
            self.cases += [case(drawn_mix(craft, rng), split == "held out") for _ in range(count)]
        return lambda: self._fitted_decoder(craft, knots)

    def _heard(self) -> int | None:
        """The key of a recording that is encoded now, for a stage that writes down what is said in one."""
        if not self.stage.transcribes:
            return None
        encoder = next(edge.source for edge in self._graph.edges if edge.target == self.stage.name)
        part = recording(self._stream("recording"), min(SPOKEN_S, self._senses.longest_s))
        timed(self.engine, EncodeStep(encoder, 0, (part,), REASON), self._watch)
        self._medium = DropMedia(encoder, (part.key,))
        return part.key

    @property
    def _senses(self) -> Senses:
        return Senses(self.engine.info.max_recording_s, self._graph.sees)

    def _fitted_decoder(self, craft: ArSynthesis, knots: tuple[int, ...]) -> StageProfile:
        step_s = float(np.median([timed(self.engine, craft.empty(), self._watch) for _ in range(20)]))
        left = craft.leave()
        timed(self.engine, left, self._watch)
        for row in left.leaves.tolist() if self._shown_by is not None else []:
            self.engine.payloads.drop_payload(DropPayload(self.stage.name, row))
        if self._medium is not None:
            self.engine.payloads.drop_media(self._medium)
        pool = pool_of(self.engine, self.stage.name)
        model = fit_ar(
            self._samples(held_out=False),
            layers=pool.num_layers,
            dense_at=knots,
            draws_at=doublings(craft.config.max_rows),
            has_frame=craft.config.width > 1,
            step_s=step_s,
        )
        return self._judged(model, {group: block_bytes(pool, group) for group in pool.groups})

    def _codec(self) -> Finish:
        edge = next(edge for edge in self._graph.edges if edge.target == self.stage.name)
        craft = CodecSynthesis(self.stage, self.engine.node.ar[edge.source].width, self._stream("codes"))
        rows = self.engine.node.codec[self.stage.name].max_rows

        def case(mix: CodecMix, held_out: bool = False) -> Case:
            return Case(lambda: craft.prepare(mix), lambda: craft.step(mix), held_out)

        self.cases = [case(mix) for mix in decoding(rows, edge.chunk)]
        for split, count in self._splits():
            rng, chunks = self._stream(split), (edge.first_chunk, edge.chunk)
            drawn = [drawn_decoding(rows, chunks, rng) for _ in range(count)]
            self.cases += [case(mix, split == "held out") for mix in drawn]
        return lambda: self._judged(fit_codec(self._samples(held_out=False)))

    def _reader(self) -> Finish:
        name, rng = self.stage.name, self._stream("speech")
        self._progress(f"{name}: a rehearsal", 0, 0)
        replies = [spoken_tokens(self.engine, text) for text in TEXTS]
        rows = self.engine.node.codec[name].max_rows
        craft = SpeechSynthesis(name, rows, replies, lambda step: done(self.engine, step))
        self.reading = craft.reading

        def case(mix: SpeechMix, held_out: bool = False) -> Case:
            return Case(
                lambda: craft.prepare(mix), lambda: craft.step(mix), held_out, said=lambda: craft.said
            )

        self.cases = [case(mix) for mix in speaking(craft, rng)]
        for split, count in self._splits():
            drawn = [drawn_speaking(craft, self._stream(split)) for _ in range(count)]
            self.cases += [case(mix, split == "held out") for mix in drawn]

        def finish() -> StageProfile:
            timed(self.engine, craft.leave(), self._watch)
            return self._judged(fit_speech(self._samples(held_out=False)))

        return finish

    def _encoders(self) -> Finish:
        name, config = self.stage.name, self.engine.node.encoder[self.stage.name]

        def case(media: tuple[Any, ...], held_out: bool = False) -> Case:
            return Case(list, lambda: EncodeStep(name, 0, media, REASON), held_out)

        senses = self._senses
        self.cases = [case(media) for media in media_alone(self._stream("media"), senses)]
        for split, count in self._splits():
            rng = self._stream(split)
            self.cases += [case(drawn_media(config, rng, senses), split == "held out") for _ in range(count)]
        self._most_tokens = most_picture_tokens(self.engine) if senses.sees else None
        return self._fitted_encoders

    def _fitted_encoders(self) -> StageProfile:
        for one in self.cases:
            step = cast("EncodeStep", one.make())
            self.engine.payloads.drop_media(DropMedia(step.stage, tuple(part.key for part in step.media)))
        return self._judged(fit_encoder(self._samples(held_out=False), self._most_tokens))

    def _judged(self, model: StageModel, blocks: dict[str, int] | None = None) -> StageProfile:
        """The fitted model with its errors on the steps that were held out."""
        ask: Callable[[Any], float] = model.seconds
        pairs = [(ask(features), seconds) for features, seconds in self._samples(held_out=True)]
        return StageProfile(model, blocks or {}, residuals=residuals(pairs))

    def _samples(self, held_out: bool) -> list[tuple[Any, float]]:
        return [case.sample for case in self.cases if case.held_out == held_out]

    def _splits(self) -> tuple[tuple[str, int], ...]:
        return ("fitted", self.effort.fitted_steps), ("held out", self.effort.held_out_steps)

    def _once(self, case: Case) -> float:
        """The fastest of a few measurements in a row, the first for nothing."""
        return min([self.seconds(case) for _ in range(4)][1:])

    def _stream(self, what: str) -> np.random.Generator:
        return stream(self.effort.seed, "profile", self.stage.name, what)


@dataclass(frozen=True, slots=True)
class Measured:
    """Stages by name, and how one of them reads text aloud, if one does."""

    stages: dict[str, StageProfile]
    reading: Reading | None


def measure_stages(engine: Engine, graph: StageGraph, effort: Effort, progress: Progress) -> Measured:
    """Every stage that the engine has. Raises StageFailed where a step fails."""
    stages = [stage for stage in graph.stages if stage.name in engine.executors]
    benches = [StageBench(engine, graph, stage, effort, progress) for stage in stages]
    finishes = [bench.plan() for bench in benches]
    in_turns(benches, effort, progress)
    found = {stage.name: finish() for stage, finish in zip(stages, finishes, strict=True)}
    return Measured(found, next((bench.reading for bench in benches if bench.reading is not None), None))


def in_turns(benches: list[StageBench], effort: Effort, progress: Progress) -> None:
    """Measure all cases of all stages, each round in another order: stages take turns as when people are
    served, and find the caches as others left them. The first round is for nothing."""
    every = [(bench, case) for bench in benches for case in bench.cases]
    order = stream(effort.seed, "profile", "order")
    with no_collection():
        for turn in range(effort.rounds + 1):
            progress(f"{len(every)} steps in turns", turn, effort.rounds + 1)
            for i in order.permutation(len(every)).tolist():
                bench, case = every[i]
                seconds = bench.seconds(case)
                if turn:
                    case.seconds.append(seconds)


def timed(engine: Engine, step: Step, watch: Stopwatch) -> float:
    """Seconds from the order of a step to its report. Raises StageFailed."""
    executor = engine.executors[step.stage]
    watch.start()
    executor.submit(step)
    facts = reported(engine, executor)
    seconds = watch.stop()
    check(facts)
    return seconds


def done(engine: Engine, step: Step) -> StepDone:
    """Carries a step out. Raises StageFailed."""
    engine.executors[step.stage].submit(step)
    facts = reported(engine, engine.executors[step.stage])
    check(facts)
    assert isinstance(facts[0], StepDone), "a step was reported"
    return facts[0]


def reported(engine: Engine, executor: Executor) -> list[Fact]:
    """What an executor reports of its step, as soon as it does."""
    facts = executor.poll()
    while not facts:
        assert engine.wakeup is not None, "a step that runs when it is submitted is reported then"
        select.select([engine.wakeup], [], [], 1.0)
        engine.wakeup.clear()
        facts = executor.poll()
    return facts


def spoken_tokens(engine: Engine, text: str) -> list[int]:
    """Of a text, as the stage that writes would write it. Raises StageFailed."""
    asked = RenderPrompt(0, (Item("i", "user", (TextPart("Speak."),)),), speech=True, say=text)
    answer = engine.prompter.render(asked)
    if isinstance(answer, PromptFailed) or answer.reply is None:
        raise StageFailed("prompter", (), "a text made to be measured has no tokens")
    return answer.reply.tolist()


def check(facts: list[Fact]) -> None:
    for fact in facts:
        if isinstance(fact, StepFailed):
            raise StageFailed(fact.stage, (), f"a step made to be measured failed: {fact.message}")


def most_picture_tokens(engine: Engine) -> int | None:
    """To how many tokens the engine makes a large picture smaller; None if it doesn't, or sees none."""
    width = height = LARGE_PICTURE
    large = ImagePart.of(bytes(3 * width * height), width, height)
    asked = RenderPrompt(0, (Item("i", "user", (large,)),), speech=False)
    answer = engine.prompter.render(asked)
    if isinstance(answer, PromptFailed):
        return None
    most = max((span.length for prompt in answer.prompts.values() for span in prompt.spans), default=0)
    return most if 0 < most < width * height // TOKEN_PIXELS else None


def pool_of(engine: Engine, stage: str) -> KvPool:
    executor: Any = engine.executors[stage]
    inner = executor.inner if isinstance(executor, LanedExecutor) else executor
    assert isinstance(inner, ArExecutor), "a decoder's stage"
    return cast("Any", inner.runner).pool


def block_bytes(pool: KvPool, group: str) -> int:
    """Bytes of one block of a KV group, all its layers."""
    return sum(tensor[0].nbytes for layer in pool.device[group] for tensor in layer)


class no_collection:
    """Python's garbage collector rests."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
