"""Folds a log into rows. A log that was cut short folds too: what is missing stays None."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.playback import Playback
from antiphon.metrics.log import (
    AudioDelta,
    ClientSampled,
    ErrorSeen,
    Event,
    Interrupted,
    ResponseEnded,
    ResponseStarted,
    RunEnded,
    RunStarted,
    ServerSampled,
    SessionEnded,
    SessionQueued,
    SessionRefused,
    SessionStarted,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from antiphon.metrics.rows import ResponseRow, Run, SessionRow, TurnRow

PARTED = ("lost", "failed")
"""Ends of a session after which nobody listens to what is left of its replies."""

TIE_S = 1e-6
"""Playback that ends this shortly after its listener has left was heard to its end."""


def fold(events: Iterable[Event]) -> Run:
    """The rows of a log, in the order in which things began.

    A delta or end of a response that was never announced opens a row for the session's latest turn.
    """
    folding = _Folding()
    first_s: float | None = None
    last_s = 0.0
    for event in events:
        first_s = event.t_s if first_s is None else first_s
        last_s = event.t_s
        folding.take(event)
    return folding.run(first_s or 0.0, last_s)


@dataclass(slots=True)
class _Session:
    started: SessionStarted
    refused: SessionRefused | None = None
    ended: SessionEnded | None = None
    began: dict[int, TurnStarted] = field(default_factory=dict[int, TurnStarted])
    closed: dict[int, TurnEnded] = field(default_factory=dict[int, TurnEnded])
    speaking: _Response | None = None
    """The response that began last."""

    @property
    def latest_turn(self) -> int:
        return max((*self.began, *self.closed), default=0)

    def turn(self, turn: int) -> TurnRow:
        began, closed = self.began.get(turn), self.closed.get(turn)
        return TurnRow(
            turn=turn,
            modality=began.modality if began else None,
            started_s=began.t_s if began else None,
            ended_s=closed.t_s if closed else None,
            speech_end_s=closed.speech_end_s if closed else None,
            manual=closed.manual if closed else True,
            audio_s=closed.audio_s if closed else 0.0,
        )

    def row(self) -> SessionRow:
        return SessionRow(
            session=self.started.session,
            kind=self.started.kind,
            tier=self.started.tier,
            arrival_s=self.started.arrival_s,
            waited_s=self.started.waited_s,
            started_s=self.started.t_s,
            ended_s=self.ended.t_s if self.ended else None,
            reason=self.ended.reason if self.ended else None,
            refused=self.refused.code if self.refused else None,
            reading_tokens_per_s=self.started.reading_tokens_per_s,
            turns=tuple(self.turn(turn) for turn in sorted({*self.began, *self.closed})),
        )


@dataclass(slots=True)
class _Response:
    session: _Session
    response: str
    turn: int
    started_s: float
    wants: str | None = None
    text: list[TextDelta] = field(default_factory=list[TextDelta])
    audio: list[AudioDelta] = field(default_factory=list[AudioDelta])
    playback: Playback = field(default_factory=Playback)
    gaps: list[float] = field(default_factory=list[float])
    interrupted: Interrupted | None = None
    ended: ResponseEnded | None = None
    error: str | None = None

    def hear(self, event: AudioDelta) -> None:
        self.audio.append(event)
        gap_s = self.playback.add(event.audio_s, event.t_s)
        if gap_s:
            self.gaps.append(gap_s)

    def interrupt(self, event: Interrupted) -> None:
        self.interrupted = event
        if event.kind == "barge_in":
            self.playback.stop(event.t_s)

    @property
    def received_s(self) -> float:
        return float(sum(event.audio_s for event in self.audio))

    @property
    def barged_in(self) -> Interrupted | None:
        return self.interrupted if self.interrupted and self.interrupted.kind == "barge_in" else None

    def heard_s(self, last_s: float) -> float:
        """What the listener said to have heard at the barge-in, else what was audible while they were
        there."""
        if self.barged_in is not None:
            return min(self.barged_in.heard_s, self.received_s)
        end_s = max(last_s, self.playback.dry_at) if self.played_through(last_s) else last_s
        return self.playback.played_s(end_s)

    def played_through(self, last_s: float) -> bool:
        return self.playback.dry_at <= last_s + TIE_S

    def settled(self, last_s: float) -> bool:
        if self.barged_in is not None:
            return True
        if self.session.ended is not None and self.session.ended.reason in PARTED:
            return True
        return self.ended is not None and self.played_through(last_s)

    def row(self, last_s: float) -> ResponseRow:
        session, turn, ended = self.session.started, self.session.turn(self.turn), self.ended
        last_s = self.session.ended.t_s if self.session.ended else last_s
        wants = "speech" if self.wants == "speech" or (self.wants is None and self.audio) else "text"
        return ResponseRow(
            session=session.session,
            kind=session.kind,
            tier=session.tier,
            reading_tokens_per_s=session.reading_tokens_per_s,
            turn=self.turn,
            response=self.response,
            wants=wants,
            manual=turn.manual,
            turn_ended_s=turn.ended_s,
            speech_end_s=turn.speech_end_s,
            started_s=self.started_s,
            ended_s=ended.t_s if ended else None,
            status=ended.status if ended else None,
            reason=ended.reason if ended else "",
            text_at_s=np.array([event.t_s for event in self.text], np.float64),
            text_chars=np.array([event.chars for event in self.text], np.int64),
            audio_at_s=np.array([event.t_s for event in self.audio], np.float64),
            audio_s=np.array([event.audio_s for event in self.audio], np.float64),
            gaps=tuple(self.gaps),
            heard_s=self.heard_s(last_s),
            settled=self.settled(last_s),
            interrupted_by=self.interrupted.kind if self.interrupted else None,
            interrupted_at_s=self.interrupted.t_s if self.interrupted else None,
            input_tokens=ended.input_tokens if ended else None,
            cached_tokens=ended.cached_tokens if ended else None,
            output_text_tokens=ended.output_text_tokens if ended else None,
            output_audio_tokens=ended.output_audio_tokens if ended else None,
            error=self.error,
        )


class _Folding:
    """Everything seen so far of one log."""

    def __init__(self) -> None:
        self._started: RunStarted | None = None
        self._ended: RunEnded | None = None
        self._sessions: dict[str, _Session] = {}
        self._queued: dict[str, float] = {}
        """When each session came that has no place yet."""
        self._responses: dict[tuple[str, str], _Response] = {}
        self._samples: list[ServerSampled] = []
        self._client_samples: list[ClientSampled] = []
        self._errors: list[ErrorSeen] = []

    def take(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._started = event
            case RunEnded():
                self._ended = event
            case ServerSampled():
                self._samples.append(event)
            case ClientSampled():
                self._client_samples.append(event)
            case ResponseStarted() | TextDelta() | AudioDelta() | Interrupted() | ResponseEnded():
                self._take_of_response(self._response(event), event)
            case ErrorSeen():
                if not event.is_late_cancel:
                    self._take_error(event)
            case SessionQueued():
                self._queued[event.session] = event.t_s
            case _:
                self._take_of_session(self._session(event.session, event.t_s), event)

    def _take_of_session(self, session: _Session, event: Event) -> None:
        match event:
            case SessionStarted():
                session.started = event
                self._queued.pop(event.session, None)
            case SessionRefused():
                session.refused = event
            case SessionEnded():
                session.ended = event
            case TurnStarted():
                session.began[event.turn] = event
            case TurnEnded():
                session.closed[event.turn] = event
            case _:  # acks and notices carry no figure
                pass

    def _take_of_response(
        self,
        response: _Response,
        event: ResponseStarted | TextDelta | AudioDelta | Interrupted | ResponseEnded,
    ) -> None:
        match event:
            case ResponseStarted():
                response.turn, response.wants = event.turn, event.wants
            case TextDelta():
                response.text.append(event)
            case AudioDelta():
                response.hear(event)
            case Interrupted():
                response.interrupt(event)
            case _:
                response.ended = event

    def _take_error(self, event: ErrorSeen) -> None:
        self._errors.append(event)
        speaking = self._session(event.session, event.t_s).speaking
        if speaking is not None and speaking.ended is None and speaking.error is None:
            speaking.error = f"{event.code}: {event.message}"

    def _session(self, name: str, t_s: float) -> _Session:
        if name not in self._sessions:
            self._sessions[name] = _Session(SessionStarted(t_s=t_s, session=name, kind="person"))
        return self._sessions[name]

    def _response(
        self, event: ResponseStarted | TextDelta | AudioDelta | Interrupted | ResponseEnded
    ) -> _Response:
        key = (event.session, event.response)
        if key not in self._responses:
            session = self._session(event.session, event.t_s)
            session.speaking = _Response(session, event.response, session.latest_turn, event.t_s)
            self._responses[key] = session.speaking
        return self._responses[key]

    def run(self, first_s: float, last_s: float) -> Run:
        return Run(
            started=self._started,
            ended=self._ended,
            responses=tuple(response.row(last_s) for response in self._responses.values()),
            sessions=tuple(session.row() for session in self._sessions.values()),
            samples=tuple(self._samples),
            client_samples=tuple(self._client_samples),
            errors=tuple(self._errors),
            queued_s=tuple(last_s - came_s for came_s in self._queued.values()),
            span_s=last_s - first_s,
            last_s=last_s,
        )
