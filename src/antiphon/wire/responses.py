"""The responses of a session: asked for, paused, interrupted, and each ended exactly once."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.core.facts import (
    ItemCut,
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    ResponseCancelled,
    ResponseRequested,
)
from antiphon.core.ids import IdSource
from antiphon.core.plans import AudioOut, ResponseEnded, ResponseOutput, TokensOut, Usage
from antiphon.core.sampling import Guide
from antiphon.wire.audio import encoder_for
from antiphon.wire.client_events import PlaybackAck, TruncateItem
from antiphon.wire.config import Scope, SessionConfig
from antiphon.wire.content import ItemReader
from antiphon.wire.conversation import Conversation
from antiphon.wire.effects import Payload, Step
from antiphon.wire.errors import shown
from antiphon.wire.guides import Guided, guide_of
from antiphon.wire.limits import Limits, check
from antiphon.wire.ports import DetokeniserFactory, Media
from antiphon.wire.reply import OpenReply
from antiphon.wire.response import ResponseSpec
from antiphon.wire.response_params import AskedResponse
from antiphon.wire.sampling_overrides import Wishes, sampling_of
from antiphon.wire.spoken import Speeches, Spoken

HOLD_S = 2.0
"""A doubtful voice is resolved by the audio that follows. Where none does, the reply goes on after this."""


@dataclass(slots=True)
class Shared:
    """What the parts of one session have in common. `config` is replaced by updates; the rest stays."""

    session: str
    conversation_id: str
    ids: IdSource
    scope: Scope
    limits: Limits
    reader: ItemReader
    config: SessionConfig
    conversation: Conversation = field(default_factory=Conversation)


class Responses:
    """Owner of the open replies, and of how far all replies were heard."""

    def __init__(self, shared: Shared, detokenisers: DetokeniserFactory, media: Media) -> None:
        self._shared, self._detokenisers, self._media = shared, detokenisers, media
        self._open: dict[str, OpenReply] = {}
        self._speeches = Speeches()
        self._last: Spoken | None = None
        self._held_until: float | None = None
        self.done_at: float | None = None
        """When the conversation's last response ended; None while one runs and before the first."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def active(self) -> OpenReply | None:
        """The conversation's own response; out-of-band ones run beside it."""
        return next((reply for reply in self._open.values() if reply.is_remembered), None)

    @property
    def num_cut(self) -> int:
        """Spoken replies that were interrupted or truncated."""
        return self._speeches.num_cut

    @property
    def unheard_s(self) -> float:
        """Seconds of sound that were sent of them and never heard."""
        return self._speeches.unheard_s

    @property
    def item_ids(self) -> set[str]:
        """Ids kept for replies that are not over."""
        return {reply.spec.item_id for reply in self._open.values()}

    @property
    def heard_until(self) -> float | None:
        """When the last reply ends for the ear: its response is done and its audio played."""
        if self.done_at is None:
            return None
        return self.done_at if self._last is None else max(self.done_at, self._last.playback.dry_at)

    @property
    def held_until(self) -> float | None:
        """When a paused reply goes on for want of audio that would resolve the doubt."""
        return self._held_until

    def is_heard(self, now: float) -> bool:
        """A voice would interrupt a reply: one that is playing, or held back."""
        return self._held_until is not None or bool(self._speeches.audible(now))

    def check_free(self, asked: AskedResponse) -> None:
        """Raise where one more response may not begin."""
        if asked.remember and self.active is not None:
            raise ProtocolError(
                f"Conversation already has an active response in progress: {self.active.spec.id}."
                " Wait until the response is finished before creating a new one.",
                code="conversation_already_has_active_response",
            )
        check("max_open_responses", self._shared.limits.max_open_responses, len(self._open) + 1)

    def create(self, asked: AskedResponse) -> list[Step]:
        """Begin a response, which `check_free` allowed."""
        spec = ResponseSpec(
            self._shared.ids.new("resp"),
            self._shared.ids.new("item"),
            asked.config,
            self._shared.conversation_id if asked.remember else None,
            asked.metadata,
        )
        encoder = encoder_for(spec.config.output_format, self._media)
        shared = self._shared
        reply = OpenReply(
            spec,
            self._detokenisers(),
            shared.conversation,
            encoder,
            shared.ids.new,
            shared.scope.info.json_calls,
        )
        self._open[spec.id] = reply
        self._speeches.add(reply.spoken)
        if asked.remember:
            self.done_at = None
        request = self._request(spec, asked)
        sampling = sampling_of(Wishes(guide=self._guide(request)), shared.scope.info, spec.id)
        return [msgspec.structs.replace(request, sampling=sampling), reply.created()]

    def expected(self, asked: AskedResponse) -> ResponseRequested:
        """As `create` would ask the engine, without beginning anything."""
        return self._request(ResponseSpec("", "", asked.config, None, None), asked)

    def deliver(self, output: ResponseOutput, now: float) -> list[Step]:
        """An engine's output. Those of responses that are over are dropped."""
        reply = self._open.get(output.response)
        if reply is None:
            return []
        if reply.held is not None:
            reply.held.append(output)
            return []
        match output:
            case TokensOut():
                return [*reply.text(output.tokens[:, 0].tolist())] if is_text(output) else []
            case AudioOut():
                return [*reply.audio(output, now)]
            case ResponseEnded():
                return self._ended(reply, output, now)

    def cancel(self, response_id: str | None, now: float) -> list[Step]:
        """The client wants no more of a response."""
        reply = self.active if response_id is None else self._open.get(response_id)
        if reply is None or reply.is_cancelling:
            raise ProtocolError(
                "Cancellation failed: no active response found.",
                code="response_cancel_not_active",
                param=None if response_id is None else "response_id",
            )
        return self._cancel(reply, "client_cancelled", now)

    def interrupt(self, now: float) -> list[Step]:
        """The person speaks over the reply: what runs is cancelled, what is only still playing is cut."""
        reply = self.active
        if reply is not None and not reply.is_cancelling:
            return self._cancel(reply, "turn_detected", now)
        steps: list[Step] = []
        for spoken in self._speeches.audible(now):
            if spoken.response not in self._open and not spoken.is_truncated:
                self._speeches.interrupt(spoken, now)
                steps += self._cut(spoken)
        return steps

    def hold(self, now: float) -> list[Step]:
        """Keep back what the active reply says, until `release` or an interruption."""
        reply = self.active
        if reply is None or reply.is_cancelling or reply.held is not None:
            return []
        reply.held = []
        self._held_until = now + HOLD_S
        return [OutputHeld(self._shared.session, reply.spec.id)]

    def release(self, now: float) -> list[Step]:
        """Send what was held back, in order."""
        self._held_until = None
        reply = self.active
        if reply is None or reply.held is None:
            return []
        outputs, reply.held = reply.held, None
        released = OutputReleased(self._shared.session, reply.spec.id)
        return [released, *(step for output in outputs for step in self.deliver(output, now))]

    def truncate(self, event: TruncateItem, now: float) -> list[Step]:
        """The client's word on how far a reply was heard, whether it is over or not."""
        item = self._shared.conversation.get(event.item_id, "item_truncate_invalid_item_id")
        spoken = self._speeches.find(item.id, None)
        if spoken is None or not spoken.speech:
            raise ProtocolError("Only an assistant's spoken reply can be truncated.", param="item_id")
        if event.content_index != 0:
            raise ProtocolError(
                f"The item has one content part; content_index is 0, got {shown(event.content_index)}.",
                param="content_index",
            )
        if event.audio_end_ms < 0:
            raise ProtocolError("audio_end_ms is at least 0.", param="audio_end_ms")
        end_ms = self._speeches.truncate(spoken, event.audio_end_ms, now)
        truncated: Payload = {
            "type": "conversation.item.truncated",
            "item_id": item.id,
            "content_index": 0,
            "audio_end_ms": end_ms,
        }
        return [*self._cut(spoken), truncated]

    def acked(self, event: PlaybackAck, now: float) -> list[Step]:
        """The client's playback progress. Ignored, since a report may come late: what names no reply that
        plays, and what is overtaken."""
        played_ms = event.played_ms
        is_number = isinstance(played_ms, int | float) and not isinstance(played_ms, bool)
        if not is_number or not played_ms >= 0:
            raise ProtocolError(
                f"played_ms is a number of milliseconds, 0 or more; got {shown(played_ms)}.",
                param="played_ms",
            )
        if not isinstance(event.item_id, str) and not isinstance(event.response_id, str):
            raise ProtocolError("playback.ack names an item_id or a response_id.", param="item_id")
        spoken = self._speeches.find(event.item_id, event.response_id)
        if spoken is None or not spoken.speech:
            return []
        # bounded before it is divided: an integer in JSON may be larger than any float
        played_s = min(played_ms, 1000.0 * spoken.playback.audio_s) / 1000.0
        told_s = spoken.acked(played_s, now)
        return [] if told_s is None else [PlaybackReported(self._shared.session, spoken.response, told_s)]

    def forget(self, item_id: str) -> None:
        """The item left the conversation."""
        self._speeches.forget(item_id)

    def abandon(self, reason: str, message: str, now: float) -> list[Step]:
        """End every open response as failed: the server cannot wait for them any longer."""
        steps: list[Step] = []
        self._held_until = None
        for reply in list(self._open.values()):
            reply.held = None
            end = ResponseEnded(self._shared.session, reply.spec.id, "failed", reason, message, Usage())
            cancelled = ResponseCancelled(self._shared.session, reply.spec.id, reason)
            steps += [cancelled, *self.deliver(end, now)]
        return steps

    def drop(self, now: float) -> None:
        """The client is gone: of replies that have not ended, it hears no more."""
        for reply in self._open.values():
            self._speeches.interrupt(reply.spoken, now)
        self._open.clear()
        self._held_until = None

    def _guide(self, request: ResponseRequested) -> Guide | None:
        """Of a call that is asked for. Where its schema cannot be followed, the call goes without."""
        try:
            asked = guide_of(
                Guided(),
                self._shared.limits,
                request.tools,
                request.tool_choice,
                json_calls=self._shared.scope.info.json_calls,
            )
        except (ProtocolError, LimitExceeded):
            return None
        return None if asked is None else asked.guide

    def _request(self, spec: ResponseSpec, asked: AskedResponse) -> ResponseRequested:
        return ResponseRequested(
            session=self._shared.session,
            response=spec.id,
            item_id=spec.item_id,
            speech=spec.config.speech,
            instructions=spec.config.instructions,
            voice=self._shared.scope.speaker(spec.config),
            max_tokens=spec.config.max_output_tokens,
            remember=asked.remember,
            items=None if asked.items is None else tuple(item.record for item in asked.items),
            tools=tuple(tool.schema() for tool in spec.config.tools),
            tool_choice=spec.config.tool_choice,
            retention=spec.config.truncation.retention,
            answers_silence=asked.answers_silence,
            rate=None if spec.config.speech else self._shared.scope.readers.of(None, is_streamed=True),
        )

    def _cancel(self, reply: OpenReply, reason: str, now: float) -> list[Step]:
        """Tell the engine, and end the reply here if only this end was held back."""
        reply.cancelled_by = reason
        keep = self._speeches.interrupt(reply.spoken, now)
        steps: list[Step] = [ResponseCancelled(self._shared.session, reply.spec.id, reason, keep)]
        held, reply.held = reply.held or [], None
        if reply.is_remembered:
            self._held_until = None
        return steps + [step for output in held for step in self.deliver(output, now)]

    def _ended(self, reply: OpenReply, end: ResponseEnded, now: float) -> list[Step]:
        del self._open[reply.spec.id]
        events = reply.ended(end)
        spoken = reply.spoken
        is_whole = end.status in ("completed", "incomplete")
        if is_whole and not reply.is_cancelling:
            self._speeches.completed(spoken)
        if not reply.is_remembered or spoken.item_id not in self._shared.conversation:
            self._speeches.forget(spoken.item_id)
        if reply.is_remembered:
            self._last, self.done_at = spoken, now
        if reply.is_cancelling and end.status != "cancelled":
            # the engine was done before it heard of the cancel, so its record holds all of the reply
            return [*self._cut(spoken), *events]
        return [*events]

    def _cut(self, spoken: Spoken) -> list[Step]:
        """The engine's record and the item that clients see, cut alike."""
        if spoken.cut is None:
            return []
        if spoken.item_id in self._shared.conversation:
            item = self._shared.conversation.get(spoken.item_id, "")
            for part in item.content:
                part["transcript"] = spoken.shown
        return [ItemCut(self._shared.session, spoken.item_id, spoken.cut.num_tokens)]


def is_text(output: TokensOut) -> bool:
    """Codec frames have one column a codebook; text has one."""
    return output.tokens.shape[1] == 1
