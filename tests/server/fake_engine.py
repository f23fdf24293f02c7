"""An engine in this process that answers from a script. Tokens are code points; audio is a tone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from antiphon.core.facts import (
    ItemAdded,
    PersonFact,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    TurnAdvised,
)
from antiphon.core.logprobs import PAIR
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import (
    AdvisoryAnswered,
    AudioOut,
    Output,
    ResponseEnded,
    StagePrepared,
    TokensOut,
    Usage,
    ints,
)
from antiphon.core.sampling import Sampling
from antiphon.core.snapshot import Snapshot
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ

SAMPLING = {"thinker": Sampling(temperature=0.7, top_k=40), "talker": Sampling(temperature=0.9)}
INFO = ModelInfo("test-omni", "/nowhere", "fake", ("ethan", "chelsie"), 4096, "cpu", "float32", SAMPLING)
STATS = {"antiphon_sessions": 3.0, 'antiphon_steps_total{stage="thinker"}': 8.0}
USAGE = Usage(7, 13, 0, 4, 5, 6)
COUNTED = Usage(9, 0, 0, 4)
"""With a reply's first tokens."""


class CharDetokeniser:
    """Token ids are code points."""

    def push(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))

    def flush(self) -> str:
        return ""

    def spelled(self, token_id: int) -> bytes:
        return chr(token_id).encode()


@dataclass
class Script:
    """What the engine answers to every request. `gate` holds each answer after its first piece."""

    text: str = "Hello there."
    audio_s: float = 0.4
    chunk_s: float = 0.2
    status: str = "completed"
    reason: str = ""
    message: str = ""
    retry_s: float | None = None
    pace_s: float = 0.0
    gate: asyncio.Event | None = None


@dataclass
class FakeEngine:
    """Implements runtime.engine_client.EngineClient; `facts` is all that it was told."""

    script: Script = field(default_factory=Script)
    info: ModelInfo = INFO
    alive: bool = True
    comes_back: bool = False
    stats: dict[str, float] = field(default_factory=lambda: dict(STATS))
    lost: dict[str, str] = field(default_factory=dict)
    stuck: str = ""
    facts: list[PersonFact] = field(default_factory=list)
    sinks: dict[str, Callable[[Output], None]] = field(default_factory=dict)
    viewer: Callable[[Snapshot], None] | None = None
    prepared: tuple[StagePrepared, ...] | None = ()
    """What advisories are answered with; None: they are not."""
    _open: dict[str, tuple[str, asyncio.Task[None]]] = field(default_factory=dict)

    def attach(self, session: str, sink: Callable[[Output], None]) -> None:
        self.sinks[session] = sink

    def detach(self, session: str) -> None:
        del self.sinks[session]

    def send(self, fact: PersonFact) -> None:
        self.facts.append(fact)
        match fact:
            case ResponseRequested():
                task = asyncio.get_running_loop().create_task(self._answer(fact, self.script))
                self._open[fact.response] = (fact.session, task)
            case ResponseCancelled() if fact.response in self._open:
                self._end(fact.response, "cancelled", fact.reason)
            case TurnAdvised() if self.prepared is not None:
                answer = AdvisoryAnswered(fact.session, fact.prepare, self.prepared)
                asyncio.get_running_loop().call_soon(self._put, answer)
            case SessionClosed():
                for response in [key for key, (session, _) in self._open.items() if session == fact.session]:
                    self._open.pop(response)[1].cancel()
            case _:
                pass

    def watch(self, viewer: Callable[[Snapshot], None] | None) -> None:
        self.viewer = viewer

    def die(self) -> None:
        self.alive = False
        for response in list(self._open):
            self._end(response, "failed", "engine_dead", "the engine stopped")

    def of(self, kind: type) -> list:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def added(self) -> list[ItemAdded]:
        return self.of(ItemAdded)

    def _end(
        self, response: str, status: str, reason: str, message: str = "", retry_s: float | None = None
    ) -> None:
        session, task = self._open.pop(response)
        task.cancel()
        self._put(ResponseEnded(session, response, status, reason, message, USAGE, retry_s))

    def _put(self, output: Output) -> None:
        if output.session in self.sinks:
            self.sinks[output.session](output)

    async def _answer(self, asked: ResponseRequested, script: Script) -> None:
        pieces: list[Output] = [
            self._tokens(asked, word, None if at else COUNTED) for at, word in enumerate(words(script.text))
        ]
        if asked.speech:
            audio = [self._tone(asked, at, script.chunk_s) for at in frange(script.audio_s, script.chunk_s)]
            pieces = [piece for pair in zip_longest(pieces, audio) for piece in pair if piece is not None]
        for index, piece in enumerate(pieces):
            self._put(piece)
            await asyncio.sleep(script.pace_s)
            if index == 0 and script.gate is not None:
                await script.gate.wait()
        self._end(asked.response, script.status, script.reason, script.message, script.retry_s)

    def _tokens(self, asked: ResponseRequested, text: str, usage: Usage | None) -> TokensOut:
        column = ints(list(map(ord, text))).reshape(-1, 1)
        logprobs, counts = _told(asked, text, usage), usage if asked.tells_counts else None
        return TokensOut(asked.session, asked.response, "thinker", column, counts, logprobs)

    def _tone(self, asked: ResponseRequested, at_s: float, length_s: float) -> AudioOut:
        times = at_s + np.arange(round(length_s * WIRE_SAMPLE_RATE_HZ)) / WIRE_SAMPLE_RATE_HZ
        return AudioOut(
            asked.session,
            asked.response,
            (0.2 * np.sin(2 * np.pi * 330 * times)).astype("<f4").tobytes(),
        )


def _told(asked: ResponseRequested, text: str, usage: Usage | None) -> bytes:
    """Of every token -0.5, and -1, -2, ... of the letters a, b, ...; of the first of a prompt nothing."""
    sampling = asked.sampling.get("thinker", Sampling())
    if sampling.logprobs is None:
        return b""
    prompt = "p" * COUNTED.input_text_tokens if sampling.prompt_logprobs and usage else ""
    others = [(97 + at, -1.0 - at) for at in range(sampling.logprobs)]
    pairs = np.array([[(ord(char), -0.5), *others] for char in prompt + text], PAIR)
    if prompt:
        pairs["logprob"][0] = np.nan
    return pairs.tobytes()


def words(text: str) -> list[str]:
    """Text in pieces of a word each, spaces kept in front."""
    parts = text.split(" ")
    return [part if index == 0 else f" {part}" for index, part in enumerate(parts) if part or index]


def frange(end: float, step: float) -> list[float]:
    return [index * step for index in range(round(end / step))]
