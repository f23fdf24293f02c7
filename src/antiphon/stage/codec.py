"""The step scheduler of a codec stage: frames in, waveform out, chunk by chunk."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.config import CodecConfig
from antiphon.core.facts import Ints, StageFact, StepDone
from antiphon.core.graph import Edge
from antiphon.core.plans import CodecStep, ints
from antiphon.kv.blocks import BlockPool


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
    taken: int = 0
    """Frames in steps so far."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Samples that a reported step brought a request; `ended` after the last."""

    request: int
    samples: int
    audio: bytes
    ended: bool
    frames: int
    """Taken up so far."""


class CodecScheduler:
    """Gathers frames into the edge's chunks: the first one small, so that sound starts early.

    A windowed codec holds sound back until it is told the end, so every stream of it ends with a step.
    """

    def __init__(self, name: str, config: CodecConfig, edge: Edge, *, windowed: bool = False) -> None:
        self.name = name
        self.edge = edge
        self._windowed = windowed
        self._row_pool = BlockPool(config.max_rows)
        self._streams: OrderedDict[int, _Stream] = OrderedDict()
        self._flights: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    def push(self, request: int, frame: Ints, voice: str | None = None) -> None:
        """One more frame, int64 [codebooks]. The first opens the stream."""
        self._streams.setdefault(request, _Stream(request, voice)).frames.append(frame)

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

    def abort(self, request: int) -> None:
        """Drop the stream, and the frames that were not decoded."""
        stream = self._streams.get(request)
        if stream is not None:
            self._retire(stream)

    @property
    def requests(self) -> frozenset[int]:
        """Whose streams are open."""
        return frozenset(self._streams)

    @property
    def num_requests(self) -> int:
        return len(self._streams)

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    @property
    def has_work(self) -> bool:
        return any(self._due(stream) or self._owes_end(stream) for stream in self._streams.values())

    def plan(self, step: int, now: float) -> CodecStep | None:
        """Every stream with a whole chunk (or the rest of a closed one) that has or can get a row."""
        joins: list[int] = []
        taken: list[tuple[_Stream, list[Ints]]] = []
        for stream in self._streams.values():
            due = self._due(stream)
            if not (due or self._owes_end(stream)) or not self._seat(stream, joins):
                continue
            stream.in_flight += 1
            stream.taken += due
            stream.ended = stream.closed and due == len(stream.frames)
            taken.append((stream, [stream.frames.popleft() for _ in range(due)]))
        if not taken:
            return None
        self._flights[step] = tuple(stream.request for stream, _ in taken)
        return CodecStep(
            stage=self.name,
            step=step,
            joins=ints(joins),
            rows=ints([stream.row or 0 for stream, _ in taken]),
            requests=ints([stream.request for stream, _ in taken]),
            counts=ints([len(frames) for _, frames in taken]),
            frames=np.array([frame for _, frames in taken for frame in frames], np.int64),
            reason="whole chunks",
            ends=ints([int(stream.ended) for stream, _ in taken]),
            voices=tuple(stream.voice for stream, _ in taken),
        )

    def is_flying(self, step: int) -> bool:
        """Is its report still to come?"""
        return step in self._flights

    def named_by(self, step: int) -> tuple[int, ...]:
        """Requests of a step in flight."""
        return self._flights[step]

    def observe(self, fact: StageFact) -> list[Heard]:
        """Fold a reported step in; streams that were aborted meanwhile bring nothing."""
        requests = self._flights.pop(fact.step)
        for request in requests:
            if request in self._streams:
                self._streams[request].in_flight -= 1
        heard: list[Heard] = []
        if isinstance(fact, StepDone):
            for request, samples, audio in zip(
                fact.requests.tolist(), fact.samples.tolist(), fact.audio, strict=True
            ):
                heard += self._decoded(request, samples, audio)
        self._row_pool.settle(fact.step)
        return heard

    def _decoded(self, request: int, samples: int, audio: bytes) -> list[Heard]:
        stream = self._streams.get(request)
        if stream is None:
            return []
        ended = stream.closed and not stream.frames and not stream.in_flight and not self._owes_end(stream)
        if ended:
            self._retire(stream)
        return [Heard(request, samples, audio, ended, stream.taken)]

    def _due(self, stream: _Stream) -> int:
        """Frames to decode now: a chunk, the rest of a closed stream, or none."""
        chunk = self.edge.first_chunk if stream.row is None else self.edge.chunk
        if len(stream.frames) >= chunk:
            return chunk
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
            self._row_pool.release([stream.row], next(reversed(self._flights)) if self._flights else None)

    def check_integrity(self) -> None:
        """Rows and streams agree; raises AssertionError otherwise."""
        if not self._flights:
            assert not self._row_pool.num_pending_free, "limbo outlives the steps in flight"
        self._row_pool.check_integrity([s.row for s in self._streams.values() if s.row is not None])
