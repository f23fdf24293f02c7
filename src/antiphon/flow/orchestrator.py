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
)
from antiphon.core.graph import StageGraph
from antiphon.core.plans import (
    Order,
    Output,
    RenderPrompt,
    ResponseEnded,
)
from antiphon.flow.outbox import Outbox
from antiphon.flow.retention import shortened
from antiphon.flow.routes import Routes
from antiphon.flow.stages import Stages
from antiphon.flow.turn import Session, Turn, gone
from antiphon.stage.codec import Heard
from antiphon.stage.requests import Progress

CONTEXT_LENGTH = "context_length_exceeded"


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
                self._prompt_ready(fact)
            case PromptFailed():
                self._prompt_failed(fact)
            case StepDone() | StepFailed():
                self._stepped(fact)
            case SpeechStarted() | SpeechEnded() | PlaybackReported():
                pass  # advice: what a turn says does not depend on it
            case CopyDone() | CopyFailed():
                pass  # a turn does not ask where its KV lies

    def drain(self) -> tuple[tuple[Order, ...], tuple[Output, ...]]:
        """Orders and outputs since the last call."""
        self._want_lacking()
        surplus = self._stages.encode.surplus()
        if surplus is not None:
            self._outbox.orders.append(surplus)
        return self._outbox.drain()

    def check_integrity(self) -> None:
        """Sessions, turns and stages agree; raises AssertionError otherwise."""
        turns = [turn for session in self._sessions.values() for turn in session.turns.values()]
        assert {turn.request: turn for turn in turns} == self._turns, "a turn is lost or doubled"
        pins = Counter(part.key for turn in turns for part in turn.pinned)
        assert self._stages.encode.pins == pins, "media are pinned for nobody, or needed and not pinned"
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
        speaks = spec.speech and self._stages.speaker is not None
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

    def _prompt_ready(self, fact: PromptReady) -> None:
        turn = self._turns.get(fact.request)
        if turn is None:
            return
        share = turn.spec.retention if turn.is_shortened else None
        excess = self._stages.excess(fact.prompts, 1.0 if share is None else share)
        if excess is not None and self._shorten(turn):
            return
        if excess is not None and (excess := self._stages.excess(fact.prompts, 1.0)) is not None:
            self._end(turn, "failed", CONTEXT_LENGTH, excess)
            return
        turn.prompts, turn.forced = fact.prompts, fact.forced
        if fact.reply is not None:
            self._routes.say(turn, fact.reply)
            return
        turn.entry = turn.entry_request(self._stages.entry)
        self._want(turn, self._stages.entry.lacks(turn.entry))

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
        """Have these media encoded, and go on once they are."""
        new = {part.key: part for part in turn.media if part.key in keys}
        for part in turn.pinned:
            new.pop(part.key, None)
        self._stages.encode.want(tuple(new.values()))
        turn.pinned += tuple(new.values())
        turn.waits_for_media = True
        self._start_if_ready(turn)

    def _want_lacking(self) -> None:
        """Whose turn it is may have lost, while it waited, KV that was to spare it some media."""
        waiting = self._stages.entry.next_waiting
        if waiting is not None and (keys := self._stages.entry.lacks(waiting)):
            self._want(self._turns[waiting.request], keys)

    def _start_if_ready(self, turn: Turn) -> None:
        if not self._stages.encode.holds(turn.pinned):
            return
        turn.waits_for_media = False
        entry = self._stages.entry
        assert turn.entry is not None
        turn.entry.media = frozenset(part.key for part in turn.pinned)
        if entry.name not in turn.open_stages:
            turn.open_stages.add(entry.name)
            entry.submit(turn.entry)

    # -- steps ---------------------------------------------------------------------------------------

    def _stepped(self, fact: StageFact) -> None:
        name = fact.stage
        if name == self._stages.encode.name:
            self._encoded(fact)
            return
        scheduler = self._stages.ar.get(name) or self._stages.codec[name]
        named = scheduler.named_by(fact.step)
        if name in self._stages.ar:
            for progress in self._stages.ar[name].observe(fact):
                self._progress(name, progress)
        else:
            for heard in self._stages.codec[name].observe(fact):
                self._heard(name, heard)
        if isinstance(fact, StepFailed):
            # the step's own record as well: a request that an executor forgot to name must not hang
            for request in dict.fromkeys((*named, *fact.requests.tolist())):
                self._fail(request, "stage_failed", f"The {name} stage failed: {fact.message}")

    def _encoded(self, fact: StageFact) -> None:
        changed = self._stages.encode.observe(fact)
        for turn in [t for t in self._turns.values() if t.waits_for_media]:
            if isinstance(fact, StepFailed) and any(part.key in changed for part in turn.pinned):
                self._end(turn, "failed", "stage_failed", f"The input could not be encoded: {fact.message}")
            else:
                self._start_if_ready(turn)

    def _progress(self, stage: str, progress: Progress) -> None:
        turn = self._turns[progress.request]
        if stage == self._stages.entry.name:
            if progress.end is not None:
                self._unpin(turn)
            self._routes.text(turn, progress)
        else:
            self._routes.frame(turn, stage, progress)
        if progress.end is not None:
            turn.open_stages.discard(stage)
            self._complete_if_over(turn)

    def _heard(self, stage: str, heard: Heard) -> None:
        turn = self._turns[heard.request]
        self._routes.heard(turn, heard)
        if heard.ended:
            turn.open_stages.discard(stage)
            self._complete_if_over(turn)

    # -- ends ----------------------------------------------------------------------------------------

    def _complete_if_over(self, turn: Turn) -> None:
        if turn.open_stages:
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
        usage = turn.usage(self._stages.entry.name)
        self._outbox.outputs.append(
            ResponseEnded(turn.session, turn.spec.response, turn.epoch, status, reason, message, usage)
        )

    def _leave_stages(self, turn: Turn) -> None:
        self._unpin(turn)
        for stage in self._stages.abort(turn.request):
            self._routes.drop_payload(turn, stage)

    def _unpin(self, turn: Turn) -> None:
        self._stages.encode.unpin(turn.pinned)
        turn.pinned = ()
