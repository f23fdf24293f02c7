"""Writing down what a person said: a side request that nobody waits for, and the events that come of it.

Where the turn is written down while it lasts, deltas come before its end. Nothing takes a delta back, so only
those words are sent that a longer recording is expected to show again (`stable`). The transcript of the whole
turn goes on from there; where it begins otherwise, no further delta is sent, and `completed` is what counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from antiphon.core.conversation import AudioPart, Item, TextPart
from antiphon.core.facts import ResponseCancelled, ResponseRequested
from antiphon.core.ids import IdSource
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import AudioOut, ResponseEnded, ResponseOutput, TokensOut, Usage, WordsHeard
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ
from antiphon.wire.conversation import WireItem
from antiphon.wire.effects import Payload
from antiphon.wire.input_settings import InputTranscription
from antiphon.wire.ports import Detokeniser, DetokeniserFactory

WORD = re.compile(r"\S+")
INSTRUCTION = "Transcribe the audio into text. Write down exactly what is said, and nothing else."


def transcription_request(
    session: str, response: str, audio: tuple[AudioPart, ...], asked: InputTranscription
) -> ResponseRequested:
    """Have the model write down `audio`, the pieces of one recording: best effort, text only, outside the
    record. A transcriber follows the recording's own options, any other model the instruction."""
    parts = [INSTRUCTION]
    if asked.language:
        parts.append(f"The language of the audio is {asked.language}.")
    if asked.prompt:
        parts.append(asked.prompt)
    item = Item(f"{response}_input", "user", (*audio, TextPart(" ".join(parts))))
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


def transcript_usage(usage: Usage, seconds: float, info: ModelInfo) -> Payload:
    """In the shape of transcriptions: token counts where a model's own prompt has the recording, else how
    long that is."""
    if info.has_transcriber:
        return {"type": "duration", "seconds": seconds}
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
    """`seconds`: of the recording; `sent`: what all deltas so far say."""

    item: WireItem
    seconds: float
    detokeniser: Detokeniser
    text: str = ""
    sent: str = ""


@dataclass(slots=True)
class _Live:
    """A turn that is not over. `last`: its last transcript; `sent`: what all deltas so far say."""

    item_id: str
    last: str = ""
    sent: str = ""


class SessionTranscriptions:
    """A session's transcriptions under way. They hold up nothing: not a response, not the session's end."""

    def __init__(
        self, session: str, info: ModelInfo, ids: IdSource, detokenisers: DetokeniserFactory
    ) -> None:
        self._session = session
        self._info = info
        self._ids = ids
        self._detokenisers = detokenisers
        self._open: dict[str, _Transcript] = {}
        self._live: _Live | None = None

    def __contains__(self, response: str) -> bool:
        return response in self._open

    @property
    def open(self) -> tuple[str, ...]:
        """Side requests that are not over."""
        return tuple(self._open)

    def begin(
        self, item: WireItem, audio: tuple[AudioPart, ...], asked: InputTranscription
    ) -> ResponseRequested:
        """Have an item's audio, its first content part, written down."""
        response = self._ids.new("transcript")
        sent = self._live.sent if self._live is not None and self._live.item_id == item.id else ""
        self._live = None
        seconds = sum(part.num_samples for part in audio) / MODEL_SAMPLE_RATE_HZ
        self._open[response] = _Transcript(item, seconds, self._detokenisers(), sent=sent)
        return transcription_request(self._session, response, audio, asked)

    def expect(self, item_id: str) -> None:
        """Of the turn that becomes this item, the words so far may come by `heard`."""
        if self._live is None or self._live.item_id != item_id:
            self._live = _Live(item_id)

    def heard(self, words: WordsHeard) -> list[Payload]:
        """The words so far; nothing of a turn that is over."""
        live = self._live
        if live is None or live.item_id != words.item_id:
            return []
        detokeniser = self._detokenisers()
        text = (detokeniser.push(words.tokens.tolist()) + detokeniser.flush()).strip()
        before, live.last = live.last, text
        certain = stable(before, text, words.is_pause)
        if not certain.startswith(live.sent) or certain == live.sent:
            return []
        delta, live.sent = certain.removeprefix(live.sent), certain
        return [_event(live.item_id, "delta", delta=delta)]

    def drop(self) -> None:
        """What was said so far becomes no item: nothing more is said of it."""
        self._live = None

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
        self._live = None

    def deliver(self, output: ResponseOutput) -> list[Payload]:
        """What the engine writes down."""
        match output:
            case TokensOut():
                return self.tokens(output)
            case ResponseEnded():
                return self.ended(output)
            case AudioOut():
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
            return [*events, _event(open_.item.id, "failed", error=error)]
        transcript = open_.text.strip()
        open_.item.content[0]["transcript"] = transcript
        usage = transcript_usage(end.usage, open_.seconds, self._info)
        return [*events, _event(open_.item.id, "completed", transcript=transcript, usage=usage)]


def _delta(open_: _Transcript, text: str) -> list[Payload]:
    """What the text says beyond the deltas so far, if it begins with them."""
    open_.text = (open_.text + text).lstrip()
    if not open_.text.startswith(open_.sent) or open_.text == open_.sent:
        return []
    delta, open_.sent = open_.text.removeprefix(open_.sent), open_.text
    return [_event(open_.item.id, "delta", delta=delta)]


def stable(before: str, text: str, is_pause: bool) -> str:
    """The leading words of a transcript that one of more sound is expected to begin with: in a pause all,
    else those that the transcript before has too; never the last one, whose ending depends on what follows.
    """
    earlier, words = WORD.findall(before), list(WORD.finditer(text))
    end = 0
    for i, word in enumerate(words[:-1]):
        if not is_pause and earlier[i : i + 1] != [word.group()]:
            break
        end = word.end()
    return text[:end]


def _event(item_id: str, kind: str, **fields: object) -> Payload:
    return {
        "type": f"conversation.item.input_audio_transcription.{kind}",
        "item_id": item_id,
        "content_index": 0,
        **fields,
    }
