"""The orchestrator: begins every session's turns, and gives each exactly one end.

Facts come in one by one; what follows is collected as orders and outputs and drained by the node. How a reply
goes from stage to stage is in `routes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from antiphon.core.conversation import Item, TextPart, TokensPart, media_of
from antiphon.core.facts import (
    CopyDone,
    CopyFailed,
    Fact,
    ItemAdded,
    ItemCut,
    ItemRemoved,
    MediaArrived,
    PayloadArrived,
    PlaybackReported,
    PromptFailed,
    PromptReady,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
    StageFact,
    StepDone,
    StepFailed,
    UnitLost,
    UnitReady,
)
from antiphon.core.graph import StageGraph
from antiphon.core.plans import (
    Order,
    Output,
    RenderPrompt,
    ResponseEnded,
)
from antiphon.flow.media import MediaRoutes
from antiphon.flow.moves import Moves
from antiphon.flow.outbox import Outbox
from antiphon.flow.retention import shortened
from antiphon.flow.routes import Routes
from antiphon.flow.stages import Stages
from antiphon.flow.turn import Session, Turn, gone
from antiphon.stage.ar import ArScheduler
from antiphon.stage.codec import Heard
from antiphon.stage.encode import EncodeScheduler
from antiphon.stage.requests import Progress

CONTEXT_LENGTH = "context_length_exceeded"
STAGE_LOST = "stage_lost"
"""A unit of the pipeline is gone, and starts again: whoever asks again may be served."""


class Orchestrator:
    """Owner of sessions and turns. The stages' schedulers own their requests and KV."""

    def __init__(
        self,
        graph: StageGraph,
        stages: Stages,
        end_inputs: dict[str, int],
        call_ids: tuple[int, ...] = (),
    ) -> None:
        self._stages = stages
        self._outbox = Outbox()
        self._media = MediaRoutes(stages)
        self._moves = Moves(stages)
        self._routes = Routes(graph, stages, end_inputs, call_ids, self._outbox)
        self._sessions: dict[str, Session] = {}
        self._turns: dict[int, Turn] = {}
        self._last_request = 0

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_turns(self) -> int:
        return len(self._turns)

    @property
    def turns(self) -> Mapping[int, Turn]:
        """Open responses by request, to be read only."""
        return self._turns

    def observe(self, fact: Fact, now: float) -> None:
        """Fold one fact in. Facts about sessions that are gone are dropped."""
        match fact:
            case StepDone() | StepFailed():
                self._stepped(fact, now)
            case SessionOpened():
                self._sessions.setdefault(fact.session, Session())
            case SessionClosed():
                self._close(fact.session)
            case ItemAdded() | ItemRemoved() | ItemCut():
                self._edit(fact)
            case ResponseRequested():
                self._open_turn(fact)
            case ResponseCancelled():
                self._cancel(fact)
            case PromptReady():
                self._prompt_ready(fact, now)
            case PromptFailed():
                self._prompt_failed(fact)
            case UnitLost() | UnitReady() | PayloadArrived() | MediaArrived():
                self._unit(fact)
            case SpeechStarted() | SpeechEnded() | PlaybackReported():
                pass  # advice: what a turn says does not depend on it
            case CopyDone() | CopyFailed():
                self._stages.ar[fact.stage].copied(fact, now)

    def drain(self) -> tuple[tuple[Order, ...], tuple[Output, ...]]:
        """Orders and outputs since the last call."""
        self._moves.settle()
        self._want_lacking()
        for name, encoder in self._stages.encoders.items():
            if surplus := encoder.surplus():
                self._outbox.orders += self._media.drop(name, surplus)
        return self._outbox.drain()

    def check_integrity(self) -> None:
        """Sessions, turns and stages agree; raises AssertionError otherwise."""
        turns = [turn for session in self._sessions.values() for turn in session.turns.values()]
        assert {turn.request: turn for turn in turns} == self._turns, "a turn is lost or doubled"
        for name, encoder in self._stages.encoders.items():
            here = [turn for turn in turns if turn.path is not None and turn.path.encode == name]
            pins = Counter(part.key for turn in here for part in turn.pinned)
            assert encoder.pins == pins, "media are pinned for nobody, or needed and not pinned"
        for scheduler in (*self._stages.ar.values(), *self._stages.codec.values()):
            assert scheduler.requests <= self._turns.keys(), "a stage works for a response that is over"

    # -- people --------------------------------------------------------------------------------------

    def _edit(self, fact: ItemAdded | ItemRemoved | ItemCut) -> None:
        session = self._sessions.get(fact.session)
        if session is None:
            return
        match fact:
            case ItemAdded():
                session.record.add(fact.item, fact.after)
            case ItemRemoved():
                session.record.remove(fact.item_id)
            case ItemCut():
                session.record.cut(fact.item_id, fact.num_tokens)

    def _open_turn(self, spec: ResponseRequested) -> None:
        session = self._sessions.get(spec.session)
        if session is None:
            self._outbox.outputs.append(gone(spec))
            return
        if spec.response in session.turns:
            return
        self._last_request += 1
        session.epoch += 1
        items = session.record.items if spec.items is None else session.record.resolved(spec.items)
        if spec.instructions:
            items = (Item(id="", role="system", parts=(TextPart(spec.instructions),)), *items)
        after = session.record.last_id
        turn = Turn(self._last_request, session.epoch, spec, items, after, media_of(items))
        session.turns[spec.response] = turn
        self._turns[turn.request] = turn
        self._render(turn)

    def _render(self, turn: Turn) -> None:
        spec = turn.spec
        speaks = spec.speech and self._stages.speaker_stage is not None
        self._outbox.orders.append(
            RenderPrompt(turn.request, turn.items, speaks, turn.tools, spec.tool_choice, spec.say)
        )

    def _cancel(self, fact: ResponseCancelled) -> None:
        session = self._sessions.get(fact.session)
        turn = session.turns.get(fact.response) if session else None
        if turn is not None:
            assert session is not None
            if fact.keep_tokens is not None:
                session.record.cut(turn.spec.item_id, fact.keep_tokens)
            self._end(turn, "cancelled", fact.reason)

    def _close(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            return
        for turn in list(session.turns.values()):
            self._end(turn, "cancelled", "session_closed")
        del self._sessions[session_id]
        self._stages.forget(session_id)

    # -- a turn's way --------------------------------------------------------------------------------

    def _prompt_ready(self, fact: PromptReady, now: float) -> None:
        turn = self._turns.get(fact.request)
        if turn is None:
            return
        path = turn.path = self._stages.begin(turn.session, now, turn.spec.remember)
        if path is None:
            self._end(turn, "failed", STAGE_LOST, f"The {self._stages.entry_stage} stage is starting again")
            return
        share = turn.spec.retention if turn.is_shortened else None
        excess = self._stages.excess(path, fact.prompts, 1.0 if share is None else share)
        if excess is not None and self._shorten(turn):
            return
        if excess is not None and (excess := self._stages.excess(path, fact.prompts, 1.0)) is not None:
            self._end(turn, "failed", CONTEXT_LENGTH, excess)
            return
        turn.prompts, turn.forced = fact.prompts, fact.forced
        if fact.reply is not None:
            self._routes.say(turn, fact.reply, now)
            self._end_if_mute(turn)
            return
        entry = self._stages.ar[path.entry]
        turn.entry = turn.entry_request(entry)
        self._moves.limit(turn)
        self._want(turn, entry.lacks(turn.entry))

    def _shorten(self, turn: Turn) -> bool:
        """Leave the oldest message behind and render anew; False where the client wants none left behind, or
        none may be. The record's next prompts go on without it, so that they begin with the same tokens."""
        kept = None if turn.spec.retention is None else shortened(turn.items)
        if kept is None:
            return False
        if turn.spec.items is None:
            gone = {item.id for item in turn.items} - {item.id for item in kept}
            self._sessions[turn.session].record.leave_behind(gone)
        turn.items, turn.media, turn.is_shortened = kept, media_of(kept), True
        self._render(turn)
        return True

    def _prompt_failed(self, fact: PromptFailed) -> None:
        turn = self._turns.get(fact.request)
        if turn is not None and fact.code == CONTEXT_LENGTH and self._shorten(turn):
            return
        self._fail(fact.request, fact.code, fact.message)

    def _want(self, turn: Turn, keys: frozenset[int]) -> None:
        """Have these media encoded, and go on once they are. Who has none pinned did not need its encoder so
        far, and may find it gone."""
        assert turn.path is not None
        if turn.path.encode in self._stages.lost:
            encode = self._stages.encoder_of(turn.path.entry)
            if encode is None:
                self._end(turn, "failed", STAGE_LOST, "The encoders are starting again")
                return
            turn.path.encode = encode
        new = {part.key: part for part in turn.media if part.key in keys}
        for part in turn.pinned:
            new.pop(part.key, None)
        self._stages.encoders[turn.path.encode].want(tuple(new.values()))
        turn.pinned += tuple(new.values())
        turn.waits_for_media = True
        self._start_if_ready(turn)

    def _want_lacking(self) -> None:
        """Requests may have lost, while they waited, KV that was to spare them some media."""
        for entry in self._stages.ar.values():
            for request, keys in entry.lacking().items():
                self._want(self._turns[request], keys)

    def _start_if_ready(self, turn: Turn) -> None:
        assert turn.path is not None
        if not self._stages.encoders[turn.path.encode].holds(turn.pinned):
            return
        order = self._media.bring(turn.path, turn.pinned)
        if order is not None:
            self._outbox.orders.append(order)
        if not self._media.has_arrived(turn.path, turn.pinned):
            return
        turn.waits_for_media = False
        entry = self._stages.ar[turn.path.entry]
        assert turn.entry is not None
        turn.entry.media = frozenset(part.key for part in turn.pinned)
        if entry.name not in turn.open_units:
            turn.open_units.add(entry.name)
            entry.submit(turn.entry)

    # -- steps ---------------------------------------------------------------------------------------

    def _stepped(self, fact: StageFact, now: float) -> None:
        """What was reported of a unit that is lost meanwhile counts for nothing."""
        name = fact.stage
        scheduler = self._stages.find(name)
        if not scheduler.is_flying(fact.step):
            return
        if isinstance(scheduler, EncodeScheduler):
            self._encoded(name, fact)
            return
        # the step's own record as well: a request that an executor forgot to name must not hang
        named = scheduler.named_by(fact.step) if isinstance(fact, StepFailed) else ()
        retried: frozenset[int] = frozenset()
        if isinstance(scheduler, ArScheduler):
            if isinstance(fact, StepFailed):
                retried = scheduler.retry(fact)
            for progress in scheduler.observe(fact):
                self._progress(name, progress, now)
        else:
            for heard in scheduler.observe(fact):
                self._heard(name, heard)
        if isinstance(fact, StepFailed):
            stage = self._stages.stage_of(name)
            for request in dict.fromkeys((*named, *fact.requests.tolist())):
                if request not in retried and not self._has_left(request, name):
                    self._fail(request, "stage_failed", f"The {stage} stage failed: {fact.message}")

    def _has_left(self, request: int, unit: str) -> bool:
        """Is it written elsewhere meanwhile, and needs nothing of what failed?"""
        turn = self._turns.get(request)
        return turn is not None and turn.path is not None and turn.path.reader == unit

    def _encoded(self, unit: str, fact: StageFact) -> None:
        changed = self._stages.encoders[unit].observe(fact)
        for turn in self._waiting_for_media():
            if isinstance(fact, StepFailed) and any(part.key in changed for part in turn.pinned):
                self._end(turn, "failed", "stage_failed", f"The input could not be encoded: {fact.message}")
            else:
                self._start_if_ready(turn)

    def _waiting_for_media(self) -> list[Turn]:
        return [turn for turn in self._turns.values() if turn.waits_for_media]

    def _progress(self, unit: str, progress: Progress, now: float) -> None:
        turn = self._turns[progress.request]
        if self._stages.is_entry(unit):
            if progress.end is not None:
                self._unpin(turn)
            self._routes.text(turn, progress, now)
        else:
            self._routes.frame(turn, progress)
        if self._end_if_mute(turn):
            return
        if progress.end is not None:
            turn.open_units.discard(unit)
            self._complete_if_over(turn)
        elif self._stages.is_entry(unit):
            self._moves.hand_on(turn, now)

    def _heard(self, unit: str, heard: Heard) -> None:
        turn = self._turns[heard.request]
        self._routes.heard(turn, heard)
        if heard.ended:
            turn.open_units.discard(unit)
            self._complete_if_over(turn)

    # -- units ---------------------------------------------------------------------------------------

    def _unit(self, fact: UnitLost | UnitReady | PayloadArrived | MediaArrived) -> None:
        match fact:
            case UnitLost():
                self._lose(fact)
            case UnitReady():
                self._stages.regain(fact.unit)
            case PayloadArrived():
                turn = self._turns.get(fact.request)
                if turn is not None:
                    self._routes.arrived(turn)
            case MediaArrived():
                self._media.arrived(fact.unit, fact.keys)
                for turn in self._waiting_for_media():
                    self._start_if_ready(turn)

    def _lose(self, fact: UnitLost) -> None:
        """Whoever it owed something ends; all others go on without noticing."""
        stage = self._stages.stage_of(fact.unit)
        self._stages.lost.add(fact.unit)
        for turn in [turn for turn in self._turns.values() if self._needs(turn, fact.unit)]:
            self._end(turn, "failed", STAGE_LOST, f"The {stage} stage was lost: {fact.message}")
        self._moves.lose(fact.unit)
        self._stages.lose(fact.unit)
        self._outbox.orders += self._media.lose(fact.unit)

    def _needs(self, turn: Turn, unit: str) -> bool:
        """Does the turn still wait for something that is there, or on its way from there?"""
        speaker = self._stages.ar.get(turn.path.speaker) if turn.path is not None else None
        is_coming = bool(turn.on_the_way) or (speaker is not None and speaker.waits_for_payload(turn.request))
        return turn.needs(unit) or (is_coming and turn.payload_source == unit)

    # -- ends ----------------------------------------------------------------------------------------

    def _complete_if_over(self, turn: Turn) -> None:
        if turn.open_units:
            return
        if turn.cut:
            self._end(turn, "incomplete", "max_output_tokens")
        else:
            self._end(turn, "completed", "")

    def _fail(self, request: int, code: str, message: str) -> None:
        turn = self._turns.get(request)
        if turn is not None:
            self._end(turn, "failed", code, message)

    def _end(self, turn: Turn, status: str, reason: str, message: str = "") -> None:
        """The one terminal event. Whatever the response still had in the stages is taken out."""
        self._leave_stages(turn)
        del self._turns[turn.request]
        session = self._sessions[turn.session]
        del session.turns[turn.spec.response]
        if turn.spec.remember and turn.reply:
            reply = TokensPart(tuple(turn.reply))
            session.record.add(Item(turn.spec.item_id, "assistant", (reply,)), turn.after)
        usage = turn.usage(self._stages.entry_stage)
        self._outbox.outputs.append(
            ResponseEnded(turn.session, turn.spec.response, turn.epoch, status, reason, message, usage)
        )

    def _end_if_mute(self, turn: Turn) -> bool:
        if turn.is_mute:
            message = f"The {self._stages.speaker_stage} stage is starting again"
            self._end(turn, "failed", STAGE_LOST, message)
        return turn.is_mute

    def _leave_stages(self, turn: Turn) -> None:
        self._unpin(turn)
        for unit in self._stages.abort(turn.request):
            self._routes.drop_payload(turn, unit)

    def _unpin(self, turn: Turn) -> None:
        if turn.path is not None:
            self._stages.encoders[turn.path.encode].unpin(turn.pinned)
        turn.pinned = ()
