"""The step scheduler of a codec stage: frames in, waveform out, chunk by chunk."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.config import CodecConfig
from antiphon.core.facts import Ints, StageFact, StepDone
from antiphon.core.graph import Edge
from antiphon.core.plans import CodecStep, ints
from antiphon.interaction.frontier import NOWHERE
from antiphon.kv.blocks import BlockPool
from antiphon.policy.base import Budget, Tier
from antiphon.stage.beside import WaitBounds
from antiphon.stage.candidates import Listed, Surroundings
from antiphon.stage.policies import Chooser, StagePolicies, changes, to_run


@dataclass(slots=True)
class _Stream:
    """Frames of one reply that wait for the vocoder."""

    request: int
    voice: str | None = None
    frames: deque[Ints] = field(default_factory=deque[Ints])
    row: int | None = None
    closed: bool = False
    ended: bool = False
    """A step with its end was ordered."""
    in_flight: int = 0
    owes: bool = False
    """Its last step left sound that needs no further frames."""
    over: int = 0
    """Of a codec that reads: tokens that are spoken."""
    taken: int = 0
    """Frames in steps so far."""
    sounded: int = 0
    """Samples so far; of a codec that reads, up to the end of what is spoken."""
    slot: int = NOWHERE
    """Where the frontier knows its response, and its tier."""
    tier: Tier = Tier.LATENCY


@dataclass(frozen=True, slots=True)
class Heard:
    """Samples that a reported step brought a request; `ended` after the last."""

    request: int
    samples: int
    audio: bytes
    ended: bool
    frames: int
    """Taken up so far."""
    words: tuple[tuple[int, int], ...] = ()
    """Tokens of its text that are over, and after how many samples, word by word."""


CodecFlight = tuple[tuple[int, int], ...]
"""Requests of a step in flight, and frames of each."""


class CodecScheduler(Chooser[Listed, CodecFlight]):
    """Gathers frames into the edge's chunks: the first one small, so that sound starts early.

    A windowed codec holds sound back until it is told the end, so every stream of it ends with a step. One
    that reads takes all that there is, and goes on as long as its steps leave sound to be made.
    """

    def __init__(
        self,
        name: str,
        config: CodecConfig,
        edge: Edge,
        policies: StagePolicies,
        *,
        windowed: bool = False,
        reads: bool = False,
        around: Surroundings | None = None,
    ) -> None:
        super().__init__(policies, around)
        self.name = name
        self.edge = edge
        self._windowed = windowed
        self.reads = reads
        self._max_rows = config.max_rows
        self._row_pool = pool = BlockPool(config.max_rows)
        self._around.rows.tell(name, self._around.stage, lambda: pool.in_use)
        self._around.beside.tell(name, self._patience)
        self._streams: OrderedDict[int, _Stream] = OrderedDict()

    @changes
    def open(self, request: int, voice: str | None, slot: int = NOWHERE, tier: Tier = Tier.LATENCY) -> None:
        """A stream begins, if it has not begun."""
        if request not in self._streams:
            self._streams[request] = _Stream(request, voice, slot=slot, tier=tier)

    @changes
    def push(self, request: int, frame: Ints) -> None:
        """One more frame of an open stream, int64 [codebooks]."""
        self._streams[request].frames.append(frame)

    @changes
    def close(self, request: int) -> bool:
        """No more frames will come. True if the stream is over with that (nothing is left to decode)."""
        stream = self._streams.get(request)
        if stream is None:
            return True
        stream.closed = True
        if stream.frames or stream.in_flight or self._windowed:
            return False
        self._retire(stream)
        return True

    @changes
    def abort(self, request: int) -> None:
        """Drop the stream, and the frames that were not decoded."""
        stream = self._streams.get(request)
        if stream is not None:
            self._retire(stream)

    def could_run(self, request: int) -> bool:
        """Has an open stream a chunk to decode?"""
        return self._could_run(self._streams[request])

    @property
    def requests(self) -> frozenset[int]:
        """Whose streams are open."""
        return frozenset(self._streams)

    @property
    def num_requests(self) -> int:
        return len(self._streams)

    @property
    def has_work(self) -> bool:
        return any(self._could_run(stream) for stream in self._streams.values())

    @property
    def budget(self) -> Budget:
        return Budget(self._max_rows * max(self.edge.first_chunk, self.edge.chunk), self._max_rows)

    def _patience(self, now: float) -> WaitBounds:
        """Of those who listen to its streams, or wait for their first sound."""
        streams = self._streams.values()
        slots = np.array([stream.slot for stream in streams], np.intp)
        return self._around.patience(ints([stream.tier for stream in streams]), slots, now)

    def _candidates(self, now: float) -> Listed:
        """Streams: those with a row, and those without."""
        seated = [stream for stream in self._streams.values() if stream.row is not None]
        others = [stream for stream in self._streams.values() if stream.row is None]
        columns = [
            (
                -1 if stream.row is None else stream.row,
                stream.request,
                stream.tier,
                stream.slot,
                self._due(stream),
                self._could_run(stream),
            )
            for stream in (*seated, *others)
        ]
        rows = self._row_pool
        return Listed(
            self.name, self._around, now, len(seated), columns, rows.num_free, rows.num_pending_free
        )

    def _could_run(self, stream: _Stream) -> bool:
        return self._due(stream) > 0 or self._owes_end(stream) or (stream.owes and not stream.in_flight)

    def plan(self, step: int, now: float) -> CodecStep | None:
        """Chosen streams with a whole chunk (or the rest of a closed one) that have or can get a row, as many
        frames of it as they are granted."""
        view, choice = self._taken(now)
        joins: list[int] = []
        taken: list[tuple[_Stream, list[Ints]]] = []
        order, counts = to_run(view, choice)
        granted = {} if counts is None else dict(zip(order.tolist(), counts.tolist(), strict=True))
        for at in order.tolist():
            stream = self._streams[int(view.request[at])]
            due = self._due(stream)  # a stream without a row begins with a first chunk
            due = min(due, granted.get(at, due))
            if not self._seat(stream, joins):
                if choice.stops:
                    break
                continue
            stream.in_flight += 1
            stream.taken += due
            stream.ended = stream.closed and due == len(stream.frames)
            taken.append((stream, [stream.frames.popleft() for _ in range(due)]))
        if not taken:
            return None
        self._flights[step] = tuple((stream.request, len(frames)) for stream, frames in taken)
        return self._ordered(step, joins, taken, choice.reason)

    @changes
    def _ordered(
        self, step: int, joins: list[int], taken: list[tuple[_Stream, list[Ints]]], reason: str
    ) -> CodecStep:
        return CodecStep(
            stage=self.name,
            step=step,
            joins=ints(joins),
            rows=ints([stream.row or 0 for stream, _ in taken]),
            requests=ints([stream.request for stream, _ in taken]),
            counts=ints([len(frames) for _, frames in taken]),
            frames=np.array([frame for _, frames in taken for frame in frames], np.int64),
            reason=reason,
            ends=ints([int(stream.ended) for stream, _ in taken]),
            voices=tuple(stream.voice for stream, _ in taken),
        )

    def named_by(self, step: int) -> tuple[int, ...]:
        """Requests of a step in flight."""
        return tuple(request for request, _ in self._flights[step])

    @changes
    def observe(self, fact: StageFact) -> list[Heard]:
        """Fold a reported step in; streams that were aborted meanwhile bring nothing."""
        flight = self._flights.pop(fact.step)
        for request, num_frames in flight:
            stream = self._streams.get(request)
            if stream is not None:
                stream.in_flight -= 1
                if not self.reads:
                    self._tell(stream, num_frames)
        heard: list[Heard] = []
        if isinstance(fact, StepDone):
            owing = set(fact.owing.tolist())
            words: dict[int, list[tuple[int, int]]] = {}
            for request, tokens, end in fact.words.reshape(-1, 3).tolist():
                words.setdefault(request, []).append((tokens, end))
            if self.reads:
                self._spoken(words)
            elif not self._windowed:
                self._around.frontier.sound(sum(count for _, count in flight), int(fact.samples.sum()))
            for request, samples, audio in zip(
                fact.requests.tolist(), fact.samples.tolist(), fact.audio, strict=True
            ):
                said = tuple(words.get(request, ()))
                heard += self._decoded(request, samples, audio, said, owes=request in owing)
        self._row_pool.settle(fact.step)
        return heard

    def _spoken(self, words: Mapping[int, list[tuple[int, int]]]) -> None:
        """Of a codec that reads: its tokens are taken up when they are spoken, not when they are read. The
        sound of a word that has no end yet counts with that: a reply may be cut, or fail, before it."""
        for request, ended in words.items():
            stream = self._streams.get(request)
            if stream is not None:
                tokens, samples = ended[-1]
                self._tell(stream, tokens - stream.over)
                self._around.frontier.sound(tokens - stream.over, samples - stream.sounded)
                stream.over, stream.sounded = ended[-1]

    def _tell(self, stream: _Stream, num_frames: int) -> None:
        """The frontier hears that so many frames of it were taken up."""
        if self._around.stage is not None:
            self._around.frontier.make(self._around.stage, stream.slot, num_frames)

    def _decoded(
        self, request: int, samples: int, audio: bytes, words: tuple[tuple[int, int], ...], *, owes: bool
    ) -> list[Heard]:
        stream = self._streams.get(request)
        if stream is None:
            return []
        stream.owes = owes
        if self.reads:
            self._around.frontier.fall_short(stream.slot, not owes)
        else:
            stream.sounded += samples
        is_done = not (stream.frames or stream.in_flight or owes or self._owes_end(stream))
        ended = stream.closed and is_done
        if ended:
            if self._windowed and not self.reads:  # until now it held back sound of frames
                self._around.frontier.sound(stream.taken, stream.sounded)
            self._retire(stream)
        taken = stream.over if self.reads else stream.taken
        return [Heard(request, samples, audio, ended, taken, words)]

    def _due(self, stream: _Stream) -> int:
        """Frames to decode now: a chunk, the rest of a closed stream, or none."""
        chunk = self.edge.first_chunk if stream.row is None else self.edge.chunk
        if len(stream.frames) >= chunk:
            return len(stream.frames) if self.reads else chunk
        return len(stream.frames) if stream.closed else 0

    def _owes_end(self, stream: _Stream) -> bool:
        return self._windowed and stream.closed and not stream.ended and not stream.frames

    def _seat(self, stream: _Stream, joins: list[int]) -> bool:
        if stream.row is None:
            if not self._row_pool.num_free:
                return False
            stream.row = self._row_pool.allocate(1)[0]
            joins.append(stream.row)
        return True

    def _retire(self, stream: _Stream) -> None:
        del self._streams[stream.request]
        if stream.row is not None:
            self._row_pool.release([stream.row], self._flights.last)

    def check_integrity(self) -> None:
        """Rows and streams agree; raises AssertionError otherwise."""
        if not self._flights:
            assert not self._row_pool.num_pending_free, "rows stay pending behind the steps in flight"
        self._row_pool.check_integrity([s.row for s in self._streams.values() if s.row is not None])
