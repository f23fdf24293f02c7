"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Request, Response

from antiphon.core.errors import AntiphonError
from antiphon.core.logprobs import TokenLog
from antiphon.core.plans import ResponseEnded, Usage
from antiphon.server.admission import check_key, check_model
from antiphon.server.bodies import read_body, typed
from antiphon.server.exchange import Exchanges, answered, while_connected
from antiphon.server.http import Admitted, json_answer
from antiphon.server.openapi import answers, json_body
from antiphon.server.serving import Serving
from antiphon.server.sound import sound_file
from antiphon.server.sse import LAST_EVENT, error_event, sse
from antiphon.server.stream_reader import StreamReader
from antiphon.wire.audio import pcm16
from antiphon.wire.chat import ChatRequest
from antiphon.wire.chat_reading import ChatAsked, ChatScope, check_media, read_chat
from antiphon.wire.chat_replies import (
    AudioShown,
    ChatChunk,
    ChatCompletion,
    Choice,
    Heading,
    MessageShown,
    finish_reason,
    summed,
    usage_shown,
)
from antiphon.wire.logprobs import ChatLogprobs, chat_logprobs
from antiphon.wire.media_urls import has_media, remote_urls
from antiphon.wire.reply_stream import (
    ArgumentsPiece,
    CallPiece,
    EndPiece,
    ReplyAccumulator,
    SoundPiece,
    TextPiece,
)

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation in text or in speech",
    openapi_extra=json_body(ChatRequest),
    responses=answers(ChatCompletion, stream=(ChatChunk,)),
)
async def chat_completions(request: Request, serving: Admitted) -> Response:
    body = await read_body(request, serving.settings)
    asked = await typed(body, ChatRequest)
    check_model(asked.model, serving)
    key = check_key(request, serving.settings.api_keys)
    tier = "best_effort" if asked.service_tier == "flex" else "latency"
    serving.check_room(tier, asked.n or 1, key, is_paced=asked.is_paced)
    chat = await while_connected(request, _read(asked, serving, key))
    if chat.guide is not None:
        await while_connected(request, serving.check_guide(chat.guide, key))
    serving.check_room(chat.request.tier, len(chat.requests), key, is_paced=chat.is_paced)
    heading = Heading(
        serving.ids.new("chatcmpl", "-"),
        int(time.time()),
        serving.info.name,
        serving.ids.new("audio") if chat.speech else None,
    )
    replies = Exchanges(serving, chat.requests, key, chat.reading, chat.is_paced, is_live=chat.stream)
    told = {"is_streamed": chat.stream, "is_paced": chat.is_paced}
    answer = _Answer(replies, chat, heading, serving, serving.reader_of(heading.id, chat.requests, **told))
    return await answered(request, replies, answer, stream=chat.stream, stall_s=serving.settings.stall_s)


async def _read(asked: ChatRequest, serving: Serving, key: int | None) -> ChatAsked:
    """Fetching and decoding leave the loop, so that nobody else's audio waits; what has media waits for its
    key's turn."""
    check_media(asked, serving.info)
    fetched = await serving.fetcher.fetch(remote_urls(asked))
    scope = ChatScope(
        serving.info,
        serving.settings.limits,
        serving.files,
        lambda audio_id: serving.replies.recall(audio_id, time.monotonic()),
        fetched,
        serving.settings.readers,
    )
    session, response = serving.ids.new("sess"), serving.ids.new("resp")
    if has_media(asked):
        return await serving.decoding.run(key, read_chat, asked, scope, session, response)
    return await asyncio.to_thread(read_chat, asked, scope, session, response)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the client is told of the replies to one conversation; a spoken one is the only one."""

    replies: Exchanges
    chat: ChatAsked
    heading: Heading
    serving: Serving
    reader: StreamReader | None

    async def whole(self) -> Response:
        said = [ReplyAccumulator() for _ in self.replies.each]
        ends: dict[int, ResponseEnded] = {}
        async for index, piece in self.replies:
            match piece:
                case EndPiece(error=AntiphonError() as error):
                    raise error
                case EndPiece():
                    ends[index] = piece.end
                case _:
                    said[index].add(piece)
        choices = [await self._choice(index, one, ends[index]) for index, one in enumerate(said)]
        usage = summed([ends[index].usage for index in range(len(said))], len(said))
        return json_answer(self.heading.whole(choices, usage))

    async def _choice(self, index: int, said: ReplyAccumulator, end: ResponseEnded) -> Choice:
        message = MessageShown(
            content=said.text if not self.chat.speech and (said.text or not said.calls) else None,
            audio=await self._audio(said.text, bytes(said.sound)),
            tool_calls=said.shown_calls() or msgspec.UNSET,
        )
        return Choice(
            index=index,
            message=message,
            finish_reason=finish_reason(end.status, len(said.calls)),
            logprobs=self._logprobs(index, said.logs),
        )

    async def _audio(self, text: str, samples: bytes) -> AudioShown | None:
        if self.heading.audio_id is None:
            return None
        data = await asyncio.to_thread(sound_file, self.chat.format, samples)
        expires_at = self._keep(self.heading.audio_id)
        return AudioShown(id=self.heading.audio_id, data=data, expires_at=expires_at, transcript=text)

    def _keep(self, audio_id: str) -> int:
        """Keep the reply's exact tokens under its id; until when, in Unix seconds."""
        (spoken,) = self.replies.each
        self.serving.replies.keep(audio_id, spoken.stream.token_ids, time.monotonic())
        return int(time.time() + self.serving.replies.ttl_s)

    def _logprobs(self, index: int, logs: Sequence[TokenLog]) -> ChatLogprobs | None:
        if self.chat.reading.num_top is None:
            return None
        return chat_logprobs(logs, self.replies.each[index].stream.spelled)

    async def events(self) -> AsyncIterator[bytes]:
        heading, each = self.heading, self.replies.each
        for index in range(len(each)):
            yield sse(heading.opening(index))
        counts = [Usage()] * len(each)
        async for index, piece in self.replies:
            match piece:
                case TextPiece():
                    if self.reader is not None:
                        await self.reader.takes(piece.text, piece.num_read)
                    so_far = counts[index].output_text_tokens + piece.num_tokens
                    counts[index] = msgspec.structs.replace(
                        each[index].stream.counts, output_text_tokens=so_far
                    )
                    chunk = heading.text(piece.text, index, self._logprobs(index, piece.logs))
                    if self.chat.counts_all_along:
                        usage = usage_shown(summed(counts, len(each)))
                        chunk = msgspec.structs.replace(chunk, usage=usage)
                    yield sse(chunk)
                case SoundPiece():
                    yield sse(heading.sound(base64.b64encode(pcm16(piece.samples)).decode()))
                case CallPiece():
                    yield sse(heading.call(piece.index, piece.call_id, piece.name, index))
                case ArgumentsPiece():
                    yield sse(heading.arguments(piece.index, piece.delta, index))
                case EndPiece(error=AntiphonError() as error):
                    yield error_event(error)
                    return
                case EndPiece():
                    counts[index] = piece.end.usage
                    if heading.audio_id is not None:
                        yield sse(heading.expiry(self._keep(heading.audio_id)))
                    reason = finish_reason(piece.end.status, each[index].stream.num_calls)
                    yield sse(heading.chunk({}, reason, index=index))
        if self.chat.include_usage:
            yield sse(heading.usage(summed(counts, len(each))))
        yield LAST_EVENT
