"""A response from its request to its place in the queue of the stage that writes it: prompt, context limit,
media."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import ceil, isnan

from antiphon.core.conversation import AudioPart, TranscriptOptions, media_of
from antiphon.core.facts import PromptReady, StageFact, StepFailed
from antiphon.core.plans import RenderPrompt
from antiphon.flow.media import MediaRoutes
from antiphon.flow.moves import Moves
from antiphon.flow.outbox import Outbox
from antiphon.flow.record import shortened
from antiphon.flow.response import Phase, ResponseState
from antiphon.flow.sessions import Sessions
from antiphon.flow.stages import Stages
from antiphon.policy.base import Refuse

CONTEXT_LENGTH = "context_length_exceeded"
STAGE_LOST = "stage_lost"
"""A unit of the pipeline is gone, and starts again: a client that asks again may be served."""

OVERLOADED = "server_overloaded"


class Preparation:
    """Owner of which encoder outputs are where (`MediaRoutes`); the encoders own their queues and caches."""

    def __init__(
        self,
        stages: Stages,
        sessions: Sessions,
        moves: Moves,
        outbox: Outbox,
        transcripts: Mapping[int, tuple[int, ...]],
    ) -> None:
        """transcripts: by `AudioPart.transcript_key`; what a prompt shows is there before it is rendered."""
        self._transcripts = transcripts
        self._stages = stages
        self._sessions = sessions
        self._moves = moves
        self._outbox = outbox
        self.media = MediaRoutes(stages)

    # -- prompts -------------------------------------------------------------------------------------

    def render(self, response: ResponseState) -> None:
        """Order its prompt."""
        spec = response.spec
        speaks = spec.speech and self._stages.has_voice
        keys = [part.transcript_key for part in self.recordings(response)]
        written = {key: self._transcripts[key] for key in keys}
        order = RenderPrompt(
            response.request,
            response.items,
            speaks,
            response.tools,
            spec.tool_choice,
            spec.say,
            written,
            raw=spec.raw,
            guide=drawn.guide if (drawn := spec.sampling.get(self._stages.entry_stage)) else None,
            template=spec.template,
        )
        self._outbox.orders.append(order)

    def render_transcript(self, running: ResponseState, options: TranscriptOptions) -> None:
        """Order what a transcript begins with."""
        self._outbox.orders.append(RenderPrompt(running.request, (), False, options=options))

    def rendered(self, response: ResponseState, fact: PromptReady, now: float) -> bool:
        """Its prompt is there: choose its units, and check that it fits. False where that has ended it, or it
        is rendered anew."""
        path = response.path = self._stages.begin(response.session, now, response.spec.remember)
        if path is None:
            message = f"The {self._stages.entry_stage} stage is starting again"
            self._sessions.end(response, "failed", STAGE_LOST, message)
            return False
        share = response.spec.retention if response.is_shortened else None
        excess = self._stages.excess(path, fact.prompts, 1.0 if share is None else share)
        if excess is not None and self.shorten(response, excess.over):
            return False
        if excess is not None and (excess := self._stages.excess(path, fact.prompts, 1.0)) is not None:
            self._sessions.end(response, "failed", CONTEXT_LENGTH, str(excess))
            return False
        response.prompts, response.forced = fact.prompts, fact.forced
        return True

    def shorten(self, response: ResponseState, over: float) -> bool:
        """Leave the oldest messages of a prompt behind that is `over` times too long, and render anew; False
        where the client wants none left behind, or none may be. The record's next prompts go on without
        them, so that they begin with the same tokens; what is read ahead leaves the record as it is, since
        its turn may not come."""
        kept = None if response.spec.retention is None else shortened(response.items, over)
        if kept is None:
            return False
        if response.spec.items is None and not response.is_ahead:
            gone = {item.id for item in response.items} - {item.id for item in kept}
            self._sessions.record(response.session).leave_behind(gone)
        response.items, response.media, response.is_shortened = kept, media_of(kept), True
        self.render(response)
        return True

    def recordings(self, response: ResponseState) -> tuple[AudioPart, ...]:
        """Recordings that its prompt shows in writing."""
        if self._stages.transcriber_stage is None:
            return ()
        return tuple(part for part in response.media if isinstance(part, AudioPart))

    # -- media ---------------------------------------------------------------------------------------

    def queue(self, response: ResponseState, now: float, is_taken: bool = False) -> None:
        """Submit the request that writes its text, once the media that it lacks are encoded; or end it, if
        the stage takes no more, unless what it is part of was taken. What reads ahead takes only room that
        nobody's past has to leave for."""
        entry = self._stages.ar[response.route.entry]
        response.entry = response.entry_request(entry)
        if response.is_ahead and not entry.has_spare(response.entry):
            self._sessions.end(response, "cancelled", "no_room")
            return
        refused = None if response.is_ahead or is_taken else entry.admit(response.entry, now)
        if refused is not None:
            self._sessions.end(response, "failed", OVERLOADED, _said(refused), refused.retry_s)
            return
        self._moves.limit(response)
        self._want(response, entry.lacks(response.entry))

    def want_lacking(self) -> None:
        """The cached prefix of a waiting request may have been evicted: encode the media it covered."""
        for entry in self._stages.ar.values():
            for request, keys in entry.waiting.lacking().items():
                self._want(self._sessions.by_request[request], keys)

    def encoded(self, unit: str, fact: StageFact) -> None:
        """An encoder's step was reported. Responses whose media failed end."""
        changed = self._stages.encoders[unit].observe(fact)
        for response in self._encoding():
            if isinstance(fact, StepFailed) and any(part.key in changed for part in response.pinned):
                message = f"The input could not be encoded: {fact.message}"
                self._sessions.end(response, "failed", "stage_failed", message)
            else:
                self._submit_if_ready(response)

    def arrived(self, unit: str, keys: tuple[int, ...]) -> None:
        """Encoder outputs reached the process of a unit."""
        self.media.arrived(unit, keys)
        for response in self._encoding():
            self._submit_if_ready(response)

    def lose(self, unit: str) -> None:
        """The unit is gone, with the encoder outputs that it made or was sent."""
        self._outbox.orders += self.media.lose(unit)

    def drop_surplus(self) -> None:
        """Drop encoder outputs beyond the caches' sizes."""
        for name, encoder in self._stages.encoders.items():
            if surplus := encoder.surplus():
                self._outbox.orders += self.media.drop(name, surplus)

    def _want(self, response: ResponseState, keys: frozenset[int]) -> None:
        """Have these media encoded, and go on once they are. A response that has none pinned did not need its
        encoder so far, and may find it gone."""
        path = response.route
        if path.encode in self._stages.lost:
            encode = self._stages.encoder_of(path.entry)
            if encode is None:
                self._sessions.end(response, "failed", STAGE_LOST, "The encoders are starting again")
                return
            path.encode = encode
        new = {part.key: part for part in response.media if part.key in keys}
        for part in response.pinned:
            new.pop(part.key, None)
        encoder = self._stages.encoders[path.encode]
        encoder.want(tuple(new.values()), response.request, response.slot, response.tier)
        response.pinned += tuple(new.values())
        response.phase = Phase.ENCODING
        self._submit_if_ready(response)

    def _submit_if_ready(self, response: ResponseState) -> None:
        path = response.route
        if not self._stages.encoders[path.encode].holds(response.pinned):
            return
        order = self.media.bring(path, response.pinned)
        if order is not None:
            self._outbox.orders.append(order)
        if not self.media.has_arrived(path, response.pinned):
            return
        response.phase = Phase.ANSWERING
        entry = self._stages.ar[path.entry]
        entry.got_media(response.writing, frozenset(part.key for part in response.pinned))
        if entry.name not in response.open_units:
            response.open_units.add(entry.name)
            entry.submit(response.writing)

    def _encoding(self) -> list[ResponseState]:
        return [one for one in self._sessions.by_request.values() if one.phase is Phase.ENCODING]

    def check_integrity(self) -> None:
        """Raises AssertionError unless media are pinned for exactly the responses that need them."""
        responses = self._sessions.by_request.values()
        for name, encoder in self._stages.encoders.items():
            here = [one for one in responses if one.path is not None and one.path.encode == name]
            pins = Counter(part.key for response in here for part in response.pinned)
            assert encoder.pins == pins, "media are pinned for no response, or needed and not pinned"


def _said(refused: Refuse) -> str:
    """To the client of a response that is not taken."""
    wait = "" if isnan(refused.predicted_s) else f" The reply would begin in {refused.predicted_s:.1f} s."
    return f"No room now: {refused.reason}.{wait} Try again in {ceil(refused.retry_s)} s."
