"""Sessions and their open responses: each begins once and has exactly one end."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.core.conversation import Item, Media, TextPart, TokensPart, media_of
from antiphon.core.facts import ItemAdded, ItemCut, ItemRemoved, ResponseRequested
from antiphon.core.plans import DropPayload, ResponseEnded, Usage
from antiphon.flow.outbox import Outbox
from antiphon.flow.record import Record
from antiphon.flow.response import ResponseState, SpeechPhase
from antiphon.flow.stages import Stages
from antiphon.interaction.frontier import NOWHERE
from antiphon.interaction.monitor import Monitor


class Session:
    """A conversation: its record, and the responses that are not over, by their wire ids."""

    def __init__(self) -> None:
        self.record = Record()
        self.responses: dict[str, ResponseState] = {}


class Sessions:
    """Owner of sessions, their records, and which responses are open."""

    def __init__(self, stages: Stages, outbox: Outbox, monitor: Monitor) -> None:
        self._stages = stages
        self._monitor = monitor
        self._outbox = outbox
        self._sessions: dict[str, Session] = {}
        self._responses: dict[int, ResponseState] = {}
        self._by_request: dict[int, ResponseState] = {}
        self._last_request = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def responses(self) -> Mapping[int, ResponseState]:
        """Open responses by request."""
        return self._responses

    @property
    def by_request(self) -> Mapping[int, ResponseState]:
        """All that has a request: open responses, and what no client asked for."""
        return self._by_request

    def is_open(self, session: str) -> bool:
        return session in self._sessions

    def record(self, session: str) -> Record:
        """Of a session that is open."""
        return self._sessions[session].record

    # -- sessions ------------------------------------------------------------------------------------

    def open(self, session: str) -> None:
        self._sessions.setdefault(session, Session())

    def close(self, session: str, keeps_kv: bool = False) -> None:
        """Open responses end as cancelled, and everything of the session is freed; its KV stays as cache if
        it is to be kept."""
        known = self._sessions.get(session)
        if known is None:
            return
        for response in list(known.responses.values()):
            self.end(response, "cancelled", "session_closed")
        del self._sessions[session]
        self._stages.forget(session, keeps_kv)

    def edit(self, fact: ItemAdded | ItemRemoved | ItemCut) -> None:
        """Change the record; dropped for a session that is gone."""
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

    # -- responses -----------------------------------------------------------------------------------

    def begin(self, spec: ResponseRequested) -> ResponseState | None:
        """A new response, its input read off the record. None for one that is open already, and, with its end
        sent, if the session is gone."""
        session = self._sessions.get(spec.session)
        if session is None:
            message = "The session does not exist (any more)"
            end = ResponseEnded(spec.session, spec.response, "failed", "session_gone", message, Usage())
            self._outbox.outputs.append(end)
            return None
        if spec.response in session.responses:
            return None
        is_spoken = spec.speech and self._stages.has_voice
        voice = SpeechPhase.PENDING if is_spoken else SpeechPhase.SILENT
        slot = self._monitor.slot(spec.session, spec.response) or NOWHERE
        response = self._new(session, spec, _items(session, spec), slot, voice)
        session.responses[spec.response] = self._responses[response.request] = response
        return response

    def ahead(self, spec: ResponseRequested) -> tuple[Item, ...]:
        """What a reply would be asked to now; empty if nothing was said since the last one, or the session is
        gone."""
        session = self._sessions.get(spec.session)
        said = session.record.items if session is not None else ()
        is_new = session is not None and bool(said) and said[-1].role != "assistant"
        return _items(session, spec) if session is not None and is_new else ()

    def foreseen(self, spec: ResponseRequested, item: Item) -> tuple[Item, ...]:
        """What a reply would be asked to if `item` were added now; empty if the session is gone."""
        session = self._sessions.get(spec.session)
        return () if session is None else (*_items(session, spec), item)

    def begin_ahead(self, spec: ResponseRequested, items: tuple[Item, ...]) -> ResponseState:
        """What reads these items of an open session, and is ended by `end` without a word of it."""
        response = self._new(self._sessions[spec.session], spec, items, NOWHERE, SpeechPhase.SILENT)
        response.is_ahead = True
        return response

    def begin_transcript(self, spec: ResponseRequested, media: Media, slot: int) -> ResponseState:
        """What writes down a recording, in the place of a response of an open session, and is ended by `end`
        without a word of it."""
        response = self._new(self._sessions[spec.session], spec, (), slot, SpeechPhase.SILENT)
        response.media, response.transcribes = (media,), media
        return response

    def _new(
        self,
        session: Session,
        spec: ResponseRequested,
        items: tuple[Item, ...],
        slot: int,
        voice: SpeechPhase,
    ) -> ResponseState:
        self._last_request += 1
        last_id, media = session.record.last_id, media_of(items)
        response = ResponseState(self._last_request, spec, items, slot, last_id, media, voice)
        self._by_request[response.request] = response
        return response

    def cancel(self, session: str, response: str, reason: str, keep_tokens: int | None) -> None:
        """End an open response; so many of its tokens enter the record (None: all)."""
        known = self._sessions.get(session)
        found = known.responses.get(response) if known else None
        if known is None or found is None:
            return
        if keep_tokens is not None:
            known.record.cut(found.spec.item_id, keep_tokens)
        self.end(found, "cancelled", reason)

    def fail(self, request: int, code: str, message: str) -> None:
        """End a response as failed, if it is open."""
        response = self._by_request.get(request)
        if response is not None:
            self.end(response, "failed", code, message)

    def end(
        self,
        response: ResponseState,
        status: str,
        reason: str,
        message: str = "",
        retry_s: float | None = None,
    ) -> None:
        """Whatever the response still had in the stages is taken out; its one terminal event follows, if a
        client asked for it."""
        self.unpin(response)
        for unit in self._stages.abort(response.request):
            self.drop_payload(response, unit)
        del self._by_request[response.request]
        if response.is_internal:
            response.failure = reason, message, retry_s
            return
        del self._responses[response.request]
        session = self._sessions[response.session]
        del session.responses[response.spec.response]
        if response.spec.remember and response.reply:
            reply = TokensPart(tuple(response.reply))
            session.record.add(Item(response.spec.item_id, "assistant", (reply,)), response.after)
        usage = response.usage(self._stages.entry_stage)
        self._outbox.outputs.append(
            ResponseEnded(response.session, response.spec.response, status, reason, message, usage, retry_s)
        )

    def unpin(self, response: ResponseState) -> None:
        """It reads its media no more."""
        if response.path is not None:
            self._stages.encoders[response.path.encode].unpin(response.pinned, response.request)
        response.pinned = ()

    def drop_payload(self, response: ResponseState, unit: str) -> None:
        """The unit needs what was handed over to it no more."""
        if unit not in self._stages.lost and len(response.prompts[self._stages.stage_of(unit)].gather):
            self._outbox.orders.append(DropPayload(unit, response.request))

    def check_integrity(self) -> None:
        """Raises AssertionError if a response is lost or doubled."""
        found = [one for session in self._sessions.values() for one in session.responses.values()]
        assert {one.request: one for one in found} == self._responses, "a response is lost or doubled"
        asked = {request: one for request, one in self._by_request.items() if not one.is_internal}
        assert asked == self._responses, "a response is open and has no request, or the other way round"


def _items(session: Session, spec: ResponseRequested) -> tuple[Item, ...]:
    """What a reply is asked to: instructions before the record, or before what replaces it."""
    items = session.record.items if spec.items is None else session.record.resolved(spec.items)
    if not spec.instructions:
        return items
    return (Item(id="", role="system", parts=(TextPart(spec.instructions),)), *items)
