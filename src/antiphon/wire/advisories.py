"""Advisories of one session: a client says that its next turn is coming, and is told what is done about it.

One is on its way to the engine at a time, and one every MIN_GAP_S; more are refused, so that a flood of them
costs what one costs. Nothing is kept of those that were refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from antiphon.core.counted import counted
from antiphon.core.errors import Throttled
from antiphon.core.facts import LIKELY, ResponseRequested, TurnAdvised
from antiphon.core.plans import AdvisoryAnswered, StagePrepared, TurnAnswer
from antiphon.wire.client_events import Advise, Confidence, ExpectedS, Prepare, Strict
from antiphon.wire.effects import Payload

MIN_GAP_S = 0.5
ADVISED = "antiphon.advised"

Action = Literal["none", "in_place", "bring", "on_request", "pending", "throttled"]
TurnAction = Literal["begun", "running", "done", "busy", "nothing", "unlikely"]

TURN: dict[TurnAnswer | TurnAction, str] = {
    "": "",
    "begun": "What there is of the turn is encoded and prefilled from now on, in blocks that hold nothing,"
    " until anybody wants a reply.",
    "running": "What there was of the turn is being encoded and prefilled already.",
    "done": "What there is of the turn was encoded and prefilled already.",
    "busy": "Nothing of the turn is encoded or prefilled ahead: the server is making replies, or prepares"
    " another session's turn.",
    "nothing": "Nothing of the turn is there to be encoded or prefilled: no item was added since the last"
    " reply.",
    "unlikely": f"Nothing of the turn is encoded or prefilled ahead: its confidence is below {LIKELY:g}.",
}
"""In words, what is done about a turn ahead of its reply."""


class AdvisoryRequest(Strict, frozen=True, kw_only=True):
    """POST /v1/advisories.

    expected_arrival  seconds from now until the turn is complete, 0 to 3600
    confidence        that it comes, 0 to 1
    """

    session_id: Annotated[str, Meta(min_length=1, max_length=200)]
    prepare: Prepare = "history"
    expected_arrival: ExpectedS | None = None
    confidence: Confidence | None = None


class StageAdvised(msgspec.Struct, frozen=True):
    """What a decoder unit has of the session's KV, in blocks, and what is done there."""

    unit: str
    device_blocks: int
    host_blocks: int
    action: Action


class AdvisoryAnswer(msgspec.Struct, frozen=True):
    """What is done about an advisory, and why.

    none        no KV of the session is kept
    in_place    all that is kept is on the device
    bring       some is on the host only, and is brought back as far as links and room allow
    on_request  some is on the host only, and comes once a request waits for it
    pending     the engine has the advisory and has not answered yet
    throttled   the engine was not told of it

    turn  what is done about the turn ahead of its reply (`core.plans.TurnAnswer`; unlikely: nothing, since
          the client's confidence is too low); None: it was not asked for, or the engine has not answered
    """

    session_id: str
    prepare: Prepare
    action: Action
    why: str
    stages: tuple[StageAdvised, ...] = ()
    turn: TurnAction | None = None

    def payload(self) -> Payload:
        """As `antiphon.advised` shows it."""
        return {"type": ADVISED, **msgspec.to_builtins(self)}


@dataclass(slots=True)
class Advisories:
    """Owner of when the session's last advisory went to the engine, and how it came."""

    session: str
    _next_at: float = -inf
    _came_as: Literal["event", "request"] | None = None
    """The one that is not answered; None: there is none."""

    def check(self, now: float) -> None:
        """Raises Throttled if it is too early for another."""
        if self._came_as is not None:
            raise Throttled("An advisory of this session is not answered yet.", MIN_GAP_S)
        if now < self._next_at:
            message = f"A session has one advisory every {MIN_GAP_S:g} s."
            raise Throttled(message, self._next_at - now)

    def advise(
        self, asked: Advise | AdvisoryRequest, now: float, reply: ResponseRequested | None = None
    ) -> TurnAdvised:
        """The fact for the engine; `reply` as it would be asked for now. Raises Throttled."""
        self.check(now)
        self._next_at = now + MIN_GAP_S
        self._came_as = "event" if isinstance(asked, Advise) else "request"
        expected_s = nan if asked.expected_arrival is None else asked.expected_arrival
        confidence = 1.0 if asked.confidence is None else asked.confidence
        return TurnAdvised(self.session, asked.prepare, expected_s, confidence, reply)

    def refused(self, asked: Advise, error: Throttled) -> Payload:
        """What an event is told that came too soon."""
        answer = AdvisoryAnswer(self.session, asked.prepare, "throttled", str(error))
        return {**answer.payload(), "retry_after_s": round(error.retry_after_s, 3)}

    def answered(self, answer: AdvisoryAnswered) -> Payload | None:
        """For an advisory that came as an event, what its client is told."""
        came_as, self._came_as = self._came_as, None
        return told(answer).payload() if came_as == "event" else None


def told(answer: AdvisoryAnswered) -> AdvisoryAnswer:
    """The engine's answer as clients read it."""
    stages = tuple(
        StageAdvised(stage.unit, stage.device, stage.host, _action(stage, answer.is_likely))
        for stage in answer.stages
    )
    actions = {stage.action for stage in stages}
    action: Action = "none"
    for one in ("bring", "on_request", "in_place"):
        if one in actions:
            action = one
            break
    is_passed_over = answer.prepare == "turn" and not answer.is_likely
    turn = "unlikely" if is_passed_over else answer.turn
    why = " ".join(filter(None, (_why(action, answer), TURN[turn])))
    return AdvisoryAnswer(answer.session, answer.prepare, action, why, stages, turn or None)


def pending(session: str, prepare: Prepare, waited_s: float) -> AdvisoryAnswer:
    """The engine is busy: it will read the advisory after the step that it is in."""
    why = f"The engine has the advisory and has not answered it within {waited_s:g} s."
    return AdvisoryAnswer(session, prepare, "pending", why)


def _action(stage: StagePrepared, is_likely: bool) -> Action:
    if not stage.lacking:
        return "in_place"
    return "bring" if stage.brings and is_likely else "on_request"


def _why(action: Action, answer: AdvisoryAnswered) -> str:
    stages = answer.stages
    if action == "none":
        return "No KV of this session is kept."
    if action == "in_place":
        return f"All KV that is kept of this session is on the device ({_counts(stages)})."
    where = f"Some KV of this session is on the host only ({_counts(stages)})"
    if action == "bring":
        told = "; ".join(f"{stage.unit}: {stage.why}" for stage in stages if stage.why)
        will = "it is brought back before a request waits for it, as far as links and room allow"
        return f"{where}; {will} ({told})." if told else f"{where}; {will}."
    if not answer.is_likely:
        return (
            f"{where}; with a confidence below {LIKELY:g} nothing is brought before a request waits for it."
        )
    return f"{where}; this preset brings KV back only when a request waits for it."


def _counts(stages: tuple[StagePrepared, ...]) -> str:
    return ", ".join(
        f"{stage.unit}: {counted(stage.device, 'block')} on the device"
        + (f" and {stage.lacking} to bring" if stage.lacking else "")
        for stage in stages
    )
