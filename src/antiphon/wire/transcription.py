"""Writing down what a person said: a side request that nobody waits for, and the events that come of it."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core.conversation import AudioPart, Item, TextPart
from antiphon.core.facts import ResponseCancelled, ResponseRequested
from antiphon.core.ids import IdSource
from antiphon.core.plans import AudioOut, ResponseEnded, ResponseOutput, TokensOut, Usage
from antiphon.wire.conversation import WireItem
from antiphon.wire.effects import Payload
from antiphon.wire.input_settings import Transcription
from antiphon.wire.ports import Detokeniser, DetokeniserFactory

INSTRUCTION = "Transcribe the audio into text. Write down exactly what is said, and nothing else."


def transcription_request(
    session: str, response: str, audio: AudioPart, asked: Transcription
) -> ResponseRequested:
    """Have the model write down `audio`: best effort, text only, outside the record."""
    parts = [INSTRUCTION]
    if asked.language:
        parts.append(f"The language of the audio is {asked.language}.")
    if asked.prompt:
        parts.append(asked.prompt)
    item = Item(f"{response}_input", "user", (audio, TextPart(" ".join(parts))))
    return ResponseRequested(
        session=session,
        response=response,
        item_id=f"{response}_output",
        speech=False,
        remember=False,
        items=(item,),
        tier="best_effort",
        transcribe=True,
    )


def transcript_usage(usage: Usage) -> Payload:
    """Token counts in the shape of transcriptions."""
    tokens_in = usage.input_text_tokens + usage.input_audio_tokens
    return {
        "type": "tokens",
        "input_tokens": tokens_in,
        "output_tokens": usage.output_text_tokens,
        "total_tokens": tokens_in + usage.output_text_tokens,
        "input_token_details": {
            "text_tokens": usage.input_text_tokens,
            "audio_tokens": usage.input_audio_tokens,
        },
    }


@dataclass(slots=True)
class _Transcript:
    item: WireItem
    detokeniser: Detokeniser
    text: str = ""


class Transcripts:
    """A session's transcriptions under way. They hold up nothing: not a response, not the session's end."""

    def __init__(self, session: str, ids: IdSource, detokenisers: DetokeniserFactory) -> None:
        self._session = session
        self._ids = ids
        self._detokenisers = detokenisers
        self._open: dict[str, _Transcript] = {}

    def __contains__(self, response: str) -> bool:
        return response in self._open

    @property
    def open(self) -> tuple[str, ...]:
        """Side requests that are not over."""
        return tuple(self._open)

    def begin(self, item: WireItem, audio: AudioPart, asked: Transcription) -> ResponseRequested:
        """Have an item's audio, its first content part, written down."""
        response = self._ids.new("transcript")
        self._open[response] = _Transcript(item, self._detokenisers())
        return transcription_request(self._session, response, audio, asked)

    def forget(self, item_id: str) -> list[ResponseCancelled]:
        """The item is gone: nothing more is said of it."""
        mine = [response for response, open_ in self._open.items() if open_.item.id == item_id]
        for response in mine:
            del self._open[response]
        return [ResponseCancelled(self._session, response) for response in mine]

    def abandon(self, reason: str, message: str) -> list[ResponseCancelled | Payload]:
        """End all that are open as failed."""
        steps: list[ResponseCancelled | Payload] = []
        for response in list(self._open):
            end = ResponseEnded(self._session, response, "failed", reason, message, Usage())
            steps += [ResponseCancelled(self._session, response, reason), *self.ended(end)]
        return steps

    def clear(self) -> None:
        self._open.clear()

    def deliver(self, output: ResponseOutput) -> list[Payload]:
        """What the engine writes down."""
        match output:
            case TokensOut():
                return self.tokens(output)
            case ResponseEnded():
                return self.ended(output)
            case AudioOut():  # pragma: no branch
                return []

    def tokens(self, output: TokensOut) -> list[Payload]:
        open_ = self._open[output.response]
        return _delta(open_, open_.detokeniser.push(output.tokens[:, 0].tolist()))

    def ended(self, end: ResponseEnded) -> list[Payload]:
        """What came is complete even where it reached its limit."""
        open_ = self._open.pop(end.response)
        events = _delta(open_, open_.detokeniser.flush())
        if end.status not in ("completed", "incomplete"):
            message = end.message or f"The transcription was {end.status}."
            error = {"type": "server_error", "code": end.reason, "message": message}
            return [*events, _event(open_, "failed", error=error)]
        transcript = open_.text.strip()
        open_.item.content[0]["transcript"] = transcript
        usage = transcript_usage(end.usage)
        return [*events, _event(open_, "completed", transcript=transcript, usage=usage)]


def _delta(open_: _Transcript, text: str) -> list[Payload]:
    open_.text += text
    return [_event(open_, "delta", delta=text)] if text else []


def _event(open_: _Transcript, kind: str, **fields: object) -> Payload:
    return {
        "type": f"conversation.item.input_audio_transcription.{kind}",
        "item_id": open_.item.id,
        "content_index": 0,
        **fields,
    }
