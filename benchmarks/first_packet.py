"""Where the time to the first packet goes, stage by stage.

    python benchmarks/first_packet.py checkpoints/demo --sessions 1 4

Sessions speak for `--heard` seconds, hear the whole reply (of some seconds) in real time, wait a moment and
speak again, against an engine in this process. The record of what was decided gives the marks. A phase lasts
from one mark to the next, so the phases of a turn add up to its time to first packet (TTFP): from the request
for the reply, which comes with the audio, to the first audio out of the engine. Within a phase `idle` is the
part in which no step ran that this turn was in: others were served, or something was decided or rendered.

    prompt    rendering, and audio features       to PromptReady
    encoders  the audio to embeddings             to the thinker's first step with this turn
    thinker   prefill, the first text token       to the talker's first step with this turn
    talker    prefill, frames of the first chunk  to the vocoder's first step with this turn
    vocoder   the first chunk to samples          to the first audio
    wire      PCM16, base64: apart, after TTFP

Milliseconds; the network, voice activity detection and sockets are not in it.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from antiphon import Omni
from antiphon.bench import provenance
from antiphon.core import rng
from antiphon.core.conversation import AudioPart, Item
from antiphon.core.facts import Fact, ItemAdded, PromptReady, ResponseRequested, SessionOpened, StepDone
from antiphon.core.plans import (
    ArStep,
    AudioOut,
    CodecStep,
    Decision,
    EncodeStep,
    Output,
    RenderPrompt,
    ResponseEnded,
    Step,
)
from antiphon.core.sampling import Sampling
from antiphon.runtime.driver import Driver
from antiphon.wire.audio import framed, pcm16

RATE_IN, RATE_OUT = 16_000, 24_000
PHASES = "prompt", "encoders", "thinker", "talker", "vocoder"
PAUSE_S = 0.3, 1.0
LONGEST = {"thinker": 16, "talker": 32}
"""Tokens of a reply."""


@dataclass(slots=True)
class Turn:
    """Marks of one reply, in seconds of the driver's clock, and the steps it was in."""

    asked_s: float
    marks: dict[str, float] = field(default_factory=dict[str, float])
    steps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def mark(self, phase: str, now: float) -> None:
        """The end of a phase; only the first one counts."""
        self.marks.setdefault(phase, now)

    def phases(self) -> dict[str, tuple[float, float]]:
        """Per phase its milliseconds, and of those the idle ones."""
        start, found = self.asked_s, {}
        for phase in PHASES:
            end = self.marks[phase]
            busy = sum(max(0.0, min(b, end) - max(a, start)) for a, b in self.steps)
            found[phase] = (end - start) * 1e3, (end - start - busy) * 1e3
            start = end
        return found


class Marks:
    """Reads the marks off what is decided. Implements `runtime.driver.DecisionRecorder`."""

    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self._by_request: dict[int, Turn] = {}
        self._by_media: dict[int, Turn] = {}
        self._rows: dict[tuple[str, int], int] = {}
        self._running: dict[int, tuple[float, list[Turn]]] = {}
        self._ended_s = 0.0

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None:
        for fact in facts:
            self._fact(fact, now)
        for order in decision.orders:
            if isinstance(order, RenderPrompt):
                self._by_request[order.request] = self.turns[order.items[-1].id]
            elif isinstance(order, Step):
                self._begin(order, now)
        for output in decision.outputs:
            if isinstance(output, AudioOut):
                self.turns[output.response].mark("vocoder", now)

    def _fact(self, fact: Fact, now: float) -> None:
        match fact:
            case ItemAdded():
                turn = self.turns[fact.item.id] = Turn(now)
                self._by_media |= {part.key: turn for part in fact.item.parts if isinstance(part, AudioPart)}
            case PromptReady():
                self._by_request[fact.request].mark("prompt", now)
            case StepDone():
                begun, turns = self._running.pop(fact.step)
                for turn in turns:
                    turn.steps.append((max(begun, self._ended_s), now))
                self._ended_s = now

    def _begin(self, step: Step, now: float) -> None:
        """Steps that a turn is in; the first of a stage ends the phase before it."""
        ends = {"thinker": "encoders", "talker": "thinker", "code2wav": "talker"}
        turns = self._turns_of(step)
        self._running[step.step] = now, turns
        for turn in turns:
            if step.stage in ends:
                turn.mark(ends[step.stage], now)

    def _turns_of(self, step: Step) -> list[Turn]:
        match step:
            case ArStep():
                self._rows |= {(step.stage, join.row): join.request for join in step.joins}
                return [self._by_request[self._rows[step.stage, row]] for row in step.rows.tolist()]
            case CodecStep():
                return [self._by_request[request] for request in step.requests.tolist()]
            case EncodeStep():
                return [self._by_media[part.key] for part in step.media]


class Person:
    """One session: whose turn it is, and when it speaks next."""

    def __init__(self, name: str, heard_s: float, sampling: dict[str, Sampling]) -> None:
        self.name, self._heard_s, self._sampling = name, heard_s, sampling
        self._random = rng.stream(0, "first packet", name)
        self._count = 0
        self._playing_until_s = 0.0
        self.due_s: float | None = None

    def rest(self, now: float) -> None:
        """Until the reply is over and a moment has passed."""
        self.due_s = max(now, self._playing_until_s) + self._random.uniform(*PAUSE_S)

    def hear(self, output: Output, now: float) -> None:
        match output:
            case AudioOut():
                seconds = len(output.audio) / 4 / RATE_OUT
                self._playing_until_s = max(now, self._playing_until_s) + seconds
            case ResponseEnded():
                assert output.status != "failed", output.message
                self.rest(now)

    def speak(self) -> list[Fact]:
        self._count += 1
        self.due_s = None
        name = f"{self.name}-{self._count}"
        noise = self._random.standard_normal(int(self._heard_s * RATE_IN)) * 0.1
        said = Item(name, "user", (AudioPart.of(noise.astype(np.float32).tobytes()),))
        return [
            ItemAdded(self.name, said),
            ResponseRequested(self.name, name, f"reply-{name}", max_tokens=16),
        ]


def measure(omni: Omni, num_sessions: int, seconds: float, heard_s: float) -> list[Turn]:
    """Turns of so many sessions over so many seconds; the first of each session is left out."""
    names = [f"s{num_sessions}-{i}" for i in range(num_sessions)]
    ar = omni.engine.node.ar
    sampling = {
        stage: msgspec.structs.replace(ar[stage].sampling, max_tokens=n) for stage, n in LONGEST.items()
    }
    people = {name: Person(name, heard_s, sampling) for name in names}
    marks = Marks()
    clock = time.monotonic

    def hear(outputs: tuple[Output, ...]) -> None:
        for output in outputs:
            people[output.session].hear(output, clock())

    driver = Driver(omni.engine, hear, clock, marks)
    driver.advance([SessionOpened(name) for name in people])
    begun_s = clock()
    for person in people.values():
        person.rest(begun_s)
    while True:
        now = clock()
        speaking = now < begun_s + seconds
        due = [p for p in people.values() if p.due_s is not None and p.due_s <= now] if speaking else []
        more = driver.advance([fact for person in due for fact in person.speak()])
        resting = [person.due_s for person in people.values() if person.due_s is not None]
        if not speaking and len(resting) == len(people):
            break
        if not more:
            driver.wait(max(0.0, min([*resting, now + 0.1]) - clock()))
    return [turn for name, turn in marks.turns.items() if not name.endswith("-1")]


def wire_ms() -> float:
    """A first packet of two frames as the wire sends it, median."""
    audio = np.zeros(2 * 1920, np.float32).tobytes()
    times: list[float] = []
    for _ in range(200):
        begun_s = time.perf_counter()
        framed(pcm16(audio))
        times.append(time.perf_counter() - begun_s)
    return float(np.median(times)) * 1e3


def table(turns: list[Turn]) -> dict[str, Any]:
    """Medians (and the worst tenth) of TTFP, of each phase, and of its idle part."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for turn in turns:
        for phase, pair in turn.phases().items():
            spans[phase].append(pair)
    ttfp = [(turn.marks["vocoder"] - turn.asked_s) * 1e3 for turn in turns]
    return {
        "turns": len(turns),
        "ttfp": percentiles(ttfp),
        "phases": {phase: percentiles([whole for whole, _ in pairs]) for phase, pairs in spans.items()},
        "idle": {phase: percentiles([idle for _, idle in pairs]) for phase, pairs in spans.items()},
    }


def percentiles(values: list[float]) -> dict[str, float]:
    return {name: round(float(np.percentile(values, p)), 2) for name, p in (("p50", 50), ("p90", 90))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=60.0, help="of every number of sessions")
    parser.add_argument("--heard", type=float, default=1.5, help="seconds of audio of a user's turn")
    parser.add_argument("--preset", default="baseline")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    omni = Omni(arguments.checkpoint, arguments.preset, dtype="float32", threads=arguments.threads)
    result = {
        "checkpoint": arguments.checkpoint.name,
        "preset": arguments.preset,
        "threads": arguments.threads,
        "heard_s": arguments.heard,
        "unit": "ms",
        "wire": round(wire_ms(), 3),
        "sessions": {
            str(count): table(measure(omni, count, arguments.seconds, arguments.heard))
            for count in arguments.sessions
        },
    }
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
