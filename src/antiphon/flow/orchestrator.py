"""The orchestrator: folds facts into sessions, preparation and reply routes, and says which responses end.

Facts come in one by one; what follows is collected as orders and outputs and drained by the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from antiphon.core.facts import (
    CopyDone,
    CopyFailed,
    Fact,
    ItemAdded,
    ItemCut,
    ItemRemoved,
    MediaArrived,
    OutputHeld,
    OutputReleased,
    PayloadArrived,
    PlaybackReported,
    PolicySuspended,
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
    TurnAdvised,
    TurnDropped,
    TurnForeseen,
    UnitLost,
    UnitReady,
    WordsWanted,
)
from antiphon.core.graph import StageGraph
from antiphon.core.plans import GUIDE_FAILED, Order, ResponseOutput, TurnAnswer, WordsHeard
from antiphon.flow.advance import Advance, PreparedTokens
from antiphon.flow.moves import Moves
from antiphon.flow.outbox import Outbox
from antiphon.flow.preparation import CONTEXT_LENGTH, STAGE_LOST, Preparation
from antiphon.flow.reply_route import CallIds, ReplyRoute
from antiphon.flow.response import ResponseState, SpeechPhase
from antiphon.flow.sessions import Sessions
from antiphon.flow.stages import Stages
from antiphon.flow.transcripts import Transcripts
from antiphon.flow.words import Words
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor
from antiphon.stage.ar import ArScheduler
from antiphon.stage.codec import Heard
from antiphon.stage.encode import EncodeScheduler
from antiphon.stage.requests import RequestProgress


class Orchestrator:
    """Says what each fact means for the responses. `Sessions` owns those; the stages' schedulers own their
    requests and KV."""

    def __init__(
        self,
        graph: StageGraph,
        stages: Stages,
        people: tuple[Monitor, Frontier],
        end_inputs: dict[str, int],
        call_ids: CallIds = CallIds(),
        transcript_prompt: tuple[int, ...] = (),
    ) -> None:
        monitor, frontier = people
        self._stages = stages
        self._outbox = Outbox()
        self._sessions = Sessions(stages, self._outbox, monitor)
        self._moves = Moves(stages)
        written: dict[int, tuple[int, ...]] = {}
        self._preparation = Preparation(stages, self._sessions, self._moves, self._outbox, written)
        self._transcripts = Transcripts(stages, self._sessions, self._preparation, written, transcript_prompt)
        self._advance = Advance(stages, self._sessions, self._transcripts)
        self._words = Words(self._sessions, self._transcripts, self._outbox, frontier)
        self._route = ReplyRoute(graph, stages, end_inputs, call_ids, self._sessions, self._outbox, frontier)

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def responses(self) -> Mapping[int, ResponseState]:
        """Open responses by request, to be read only."""
        return self._sessions.responses

    @property
    def requests(self) -> Mapping[int, ResponseState]:
        """Open responses, and what no client asked for, by request, to be read only."""
        return self._sessions.by_request

    @property
    def prepared(self) -> Mapping[str, PreparedTokens]:
        """Tokens of turns that were read ahead, by the unit that read them."""
        return self._advance.prepared

    @property
    def is_sending_media(self) -> bool:
        """Are encoder outputs on their way to another process?"""
        return self._preparation.media.are_under_way

    def advise(self, fact: TurnAdvised, now: float) -> TurnAnswer:
        """An advisory: what there is of the turn may be read ahead."""
        return self._advance.advise(fact, now)

    def observe(self, fact: Fact, now: float) -> None:
        """Fold one fact in. Facts about sessions that are gone are dropped."""
        match fact:
            case StepDone() | StepFailed():
                self._stepped(fact, now)
            case SessionOpened():
                self._sessions.open(fact.session)
            case SessionClosed():
                self._advance.forget(fact.session)
                self._words.forget(fact.session)
                self._transcripts.forget(fact.session)
                self._sessions.close(fact.session, fact.keeps_kv)
            case ItemAdded():
                self._sessions.edit(fact)
            case ItemRemoved() | ItemCut():
                self._advance.stop_of(fact.session)
                self._sessions.edit(fact)
            case ResponseRequested():
                self._advance.stop()
                response = self._sessions.begin(fact)
                if response is not None:
                    self._advance.begun(response)
                    self._transcripts.render(response, now)
            case ResponseCancelled():
                self._sessions.cancel(fact.session, fact.response, fact.reason, fact.keep_tokens)
            case PromptReady():
                self._prompt_ready(fact, now)
            case PromptFailed():
                self._prompt_failed(fact)
            case UnitLost() | UnitReady() | PayloadArrived() | MediaArrived():
                self._unit(fact)
            case SpeechEnded():
                self._words.forget(fact.session)
            case SpeechStarted():
                self._transcripts.forget(fact.session)
            case WordsWanted():
                self._words.want(fact)
            case TurnForeseen():
                self._advance.foresee(fact, now)
            case TurnDropped():
                self._advance.drop(fact)
            case CopyDone() | CopyFailed():
                self._stages.ar[fact.stage].copied(fact)
            case PolicySuspended() | TurnAdvised():
                pass  # the node's, which hands advice to `advise` and answers it
            case PlaybackReported() | OutputHeld() | OutputReleased():
                pass  # what a turn says does not depend on it

    @property
    def words(self) -> Words:
        """What is written down to show words so far, and when there is time for it; to be read only."""
        return self._words

    def heard(self) -> tuple[WordsHeard, ...]:
        """What people have said so far, since the last call."""
        return self._outbox.drain_words()

    def drain(self, now: float) -> tuple[tuple[Order, ...], tuple[ResponseOutput, ...]]:
        """Orders and outputs since the last call."""
        self._moves.settle()
        self._advance.settle()
        self._transcripts.settle(now)
        self._words.settle(now)
        self._preparation.want_lacking()
        self._preparation.drop_surplus()
        return self._outbox.drain()

    def check_integrity(self) -> None:
        """Sessions, responses and stages agree; raises AssertionError otherwise."""
        self._sessions.check_integrity()
        self._preparation.check_integrity()
        for scheduler in (*self._stages.ar.values(), *self._stages.codec.values()):
            known = self._sessions.by_request.keys()
            assert scheduler.requests <= known, "a stage works for a response that is over"

    # -- prompts -------------------------------------------------------------------------------------

    def _prompt_ready(self, fact: PromptReady, now: float) -> None:
        response = self._sessions.by_request.get(fact.request)
        if response is None:
            return
        if response.transcribes is not None:
            self._transcripts.prompted(response, fact, now)
            return
        if not self._preparation.rendered(response, fact, now):
            return
        if fact.reply is None:
            self._preparation.queue(response, now)
        else:
            self._route.say(response, fact.reply, now)
            if response.voice is SpeechPhase.LOST:
                self._end_as_mute(response)
            elif not response.open_units:
                self._sessions.end(response, "completed", "")

    def _prompt_failed(self, fact: PromptFailed) -> None:
        response = self._sessions.by_request.get(fact.request)
        is_too_long = response is not None and fact.code == CONTEXT_LENGTH
        if response is None or (is_too_long and self._preparation.shorten(response, fact.over)):
            return
        self._sessions.end(response, "failed", fact.code, fact.message)

    # -- steps ---------------------------------------------------------------------------------------

    def _stepped(self, fact: StageFact, now: float) -> None:
        """A report of a unit that was lost meanwhile counts for nothing."""
        name = fact.stage
        scheduler = self._stages.find(name)
        if not scheduler.is_flying(fact.step):
            return
        if isinstance(scheduler, EncodeScheduler):
            self._preparation.encoded(name, fact)
            return
        # the step's own record as well: a request that an executor forgot to name must not hang
        named = scheduler.named_by(fact.step) if isinstance(fact, StepFailed) else ()
        retried: frozenset[int] = frozenset()
        if isinstance(scheduler, ArScheduler):
            if isinstance(fact, StepFailed):
                retried = scheduler.retry(fact)
            self._progressed(name, scheduler.observe(fact), now)
            for request, why in fact.refused if isinstance(fact, StepDone) else ():
                if not self._has_left(request, name):
                    self._sessions.fail(request, GUIDE_FAILED, f"The text cannot follow its guide: {why}")
        else:
            for heard in scheduler.observe(fact):
                self._heard(name, heard)
        if isinstance(fact, StepFailed):
            stage = self._stages.stage_of(name)
            for request in dict.fromkeys((*named, *fact.requests.tolist())):
                if request not in retried and not self._has_left(request, name):
                    self._sessions.fail(request, "stage_failed", f"The {stage} stage failed: {fact.message}")

    def _has_left(self, request: int, unit: str) -> bool:
        """Is it written elsewhere meanwhile, and needs nothing of what failed?"""
        response = self.responses.get(request)
        return response is not None and response.path is not None and response.path.reader == unit

    def _progressed(self, unit: str, brought: Iterable[RequestProgress], now: float) -> None:
        """What a step brought, request by request."""
        responses, stages = self.responses, self._stages
        if stages.stage_of(unit) == stages.transcriber_stage:
            self._transcribed(brought)
            return
        is_entry, hands_on, lost = stages.is_entry(unit), stages.hands_on(unit), SpeechPhase.LOST
        ahead = self._advance.request
        for progress in brought:
            if progress.request == ahead:
                self._advance.finish()
                continue
            response = responses[progress.request]
            if is_entry:
                if progress.end is not None:
                    self._sessions.unpin(response)
                self._route.text(response, progress, now)
            else:
                self._route.frame(response, progress)
            if response.voice is lost:
                self._end_as_mute(response)
            elif progress.end is not None:
                self._done(response, unit)
            elif hands_on:
                self._moves.hand_on(response, now)

    def _transcribed(self, brought: Iterable[RequestProgress]) -> None:
        """What a step of the transcriber brought."""
        for progress in brought:
            if not self._transcripts.progressed(progress):
                self._sessions.end(self._sessions.by_request[progress.request], "completed", "")

    def _heard(self, unit: str, heard: Heard) -> None:
        response = self.responses[heard.request]
        self._route.heard(response, heard)
        if heard.ended:
            self._done(response, unit)

    def _done(self, response: ResponseState, unit: str) -> None:
        """The unit owes it nothing more. The response is over with the last one."""
        response.open_units.discard(unit)
        if response.open_units:
            return
        if response.is_cut:
            self._sessions.end(response, "incomplete", "max_output_tokens")
        else:
            self._sessions.end(response, "completed", "")

    def _end_as_mute(self, response: ResponseState) -> None:
        stage = self._stages.talker_stage or ", ".join(map(self._stages.stage_of, self._stages.codec))
        message = f"The {stage} stage is starting again"
        self._sessions.end(response, "failed", STAGE_LOST, message)

    # -- units ---------------------------------------------------------------------------------------

    def _unit(self, fact: UnitLost | UnitReady | PayloadArrived | MediaArrived) -> None:
        match fact:
            case UnitLost():
                self._lose(fact)
                self._stages.reopen()
            case UnitReady():
                self._stages.regain(fact.unit)
                self._stages.reopen()
            case PayloadArrived():
                response = self.responses.get(fact.request)
                if response is not None:
                    self._route.arrived(response)
            case MediaArrived():
                self._preparation.arrived(fact.unit, fact.keys)

    def _lose(self, fact: UnitLost) -> None:
        """Responses to which it owed something end; all others go on."""
        stage = self._stages.stage_of(fact.unit)
        self._stages.lost.add(fact.unit)
        for response in [one for one in self._sessions.by_request.values() if self._needs(one, fact.unit)]:
            message = f"The {stage} stage was lost: {fact.message}"
            self._sessions.end(response, "failed", STAGE_LOST, message)
        self._moves.lose(fact.unit)
        self._stages.lose(fact.unit)
        self._preparation.lose(fact.unit)

    def _needs(self, response: ResponseState, unit: str) -> bool:
        """Does it still wait for something that is there, or on its way from there?"""
        talker = self._stages.ar.get(response.path.talker) if response.path is not None else None
        is_coming = bool(response.on_the_way)
        is_coming |= talker is not None and talker.waits_for_payload(response.request)
        return response.needs(unit) or (is_coming and response.payload_source == unit)
