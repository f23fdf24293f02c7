"""Reading aloud and writing down: requests and answers of /v1/audio/speech and /v1/audio/transcriptions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from antiphon.core.conversation import AudioPart, Item, TextPart
from antiphon.core.errors import ProtocolError
from antiphon.core.facts import ResponseRequested
from antiphon.core.ids import content_key
from antiphon.core.latin import has_words
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import Usage
from antiphon.core.sampling import Sampling
from antiphon.wire import input_settings
from antiphon.wire.chat import Voice
from antiphon.wire.chat_reading import speaker
from antiphon.wire.chat_replies import Shown
from antiphon.wire.client_events import Strict
from antiphon.wire.errors import shown
from antiphon.wire.limits import Limits, check
from antiphon.wire.sampling_overrides import Wishes, sampling_of
from antiphon.wire.transcription import transcription_request

READ_ALOUD = "Read this aloud, word for word: "
MAX_NAME_CHARS = 64


class SpeechRequest(Strict, frozen=True, kw_only=True):
    """POST /v1/audio/speech. An unknown voice becomes the model's default voice."""

    input: Annotated[str, Meta(min_length=1)]
    model: str | None = None
    voice: str | Voice | None = None
    response_format: Literal["mp3", "opus", "flac", "wav", "pcm"] = "mp3"
    speed: Any = None
    instructions: str | None = None
    stream_format: Literal["audio", "sse"] = "audio"


class SpeechDelta(Shown, frozen=True, kw_only=True):
    """A piece of the sound file, base64."""

    audio: str
    type: Literal["speech.audio.delta"] = "speech.audio.delta"


class InputTokenDetails(Shown, frozen=True, kw_only=True):
    """Of a prompt's tokens: the recording's, and those of the words around it."""

    audio_tokens: int
    text_tokens: int


class FlatUsage(Shown, frozen=True, kw_only=True, tag_field="type", tag="tokens"):
    """Token counts. Audio tokens out are codec frames. The details come with transcriptions."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: InputTokenDetails | msgspec.UnsetType = msgspec.UNSET


class DurationUsage(Shown, frozen=True, kw_only=True, tag_field="type", tag="duration"):
    """Seconds of sound that were heard."""

    seconds: float


class SpeechDone(Shown, frozen=True, kw_only=True):
    """The file is whole."""

    usage: FlatUsage
    type: Literal["speech.audio.done"] = "speech.audio.done"


class TranscriptionRequest(Strict, frozen=True, kw_only=True):
    """The text fields of POST /v1/audio/transcriptions."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "verbose_json"] = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    stream: bool = False
    include: tuple[str, ...] = ()
    timestamp_granularities: tuple[str, ...] = ()
    chunking_strategy: str | None = None


class Transcription(Shown, frozen=True, kw_only=True):
    """What was said. `task`, `language` and `duration` (seconds) come with verbose_json only. A transcriber's
    usage is a duration."""

    text: str
    usage: FlatUsage | DurationUsage
    task: Literal["transcribe"] | msgspec.UnsetType = msgspec.UNSET
    language: str | msgspec.UnsetType = msgspec.UNSET
    duration: float | msgspec.UnsetType = msgspec.UNSET


class TranscriptDelta(Shown, frozen=True, kw_only=True):
    """Text as it is written."""

    delta: str
    type: Literal["transcript.text.delta"] = "transcript.text.delta"


class TranscriptDone(Shown, frozen=True, kw_only=True):
    """The whole text. Of a transcriber without usage: clients expect no duration here."""

    text: str
    usage: FlatUsage | msgspec.UnsetType = msgspec.UNSET
    type: Literal["transcript.text.done"] = "transcript.text.done"


def flat_usage(usage: Usage) -> FlatUsage:
    tokens_in = usage.input_text_tokens + usage.input_audio_tokens + usage.input_image_tokens
    tokens_out = usage.output_text_tokens + usage.output_audio_tokens
    return FlatUsage(input_tokens=tokens_in, output_tokens=tokens_out, total_tokens=tokens_in + tokens_out)


def transcript_usage(usage: Usage) -> FlatUsage:
    details = InputTokenDetails(audio_tokens=usage.input_audio_tokens, text_tokens=usage.input_text_tokens)
    return msgspec.structs.replace(flat_usage(usage), input_token_details=details)


def heard_usage(usage: Usage, seconds: float, info: ModelInfo) -> FlatUsage | DurationUsage:
    """Of a transcription: tokens where a model's own prompt has the recording, else how long that is."""
    return DurationUsage(seconds=seconds) if info.has_transcriber else transcript_usage(usage)


def read_speech(
    asked: SpeechRequest, info: ModelInfo, limits: Limits, session: str, response: str
) -> ResponseRequested:
    """The reply is the input itself, word for word; the model only gives it its voice."""
    check("max_spoken_chars", limits.max_spoken_chars, len(asked.input), "Send it in pieces")
    check("max_text_chars", limits.max_text_chars, len(asked.instructions or ""), "instructions are too long")
    if asked.speed not in (None, 1, 1.0):
        raise ProtocolError(
            f"The speed of speech cannot be changed; speed is 1.0, got {shown(asked.speed)}.",
            code="unsupported_parameter",
            param="speed",
        )
    if not has_words(asked.input, latin_only=info.latin_only):
        letters = "Latin letter (this voice says no other)" if info.latin_only else "letter"
        raise ProtocolError(
            f"The input has no text to read aloud: there is no {letters} and no digit in it.", param="input"
        )
    return ResponseRequested(
        session=session,
        response=response,
        item_id="reply",
        instructions=asked.instructions or "",
        voice=speaker(asked.voice, info),
        remember=False,
        items=(Item("request", "user", (TextPart(READ_ALOUD + asked.input),)),),
        say=asked.input,
    )


def read_transcription(
    asked: TranscriptionRequest,
    audio: tuple[AudioPart, ...],
    info: ModelInfo,
    limits: Limits,
    session: str,
    response: str,
) -> ResponseRequested:
    """A transcriber writes down what it hears, piece by piece, or the chat model is told to: greedily, unless
    a temperature is given. A client waits for it, unlike for what a session has written down."""
    for name in ("include", "timestamp_granularities"):
        if getattr(asked, name):
            raise ProtocolError(
                f"{name} is not supported: the model gives neither times nor log probabilities.",
                code="unsupported_parameter",
                param=name,
            )
    check("max_text_chars", limits.max_text_chars, len(asked.prompt or ""), "prompt is too long")
    check("max_name_chars", MAX_NAME_CHARS, len(asked.language or ""), "language is too long")
    language = input_settings.read_language(asked.language, info, "language")
    hints = input_settings.InputTranscription(language=language, prompt=asked.prompt)
    seed = content_key(response.encode())
    options = input_settings.transcript_options(hints, info, asked.temperature or 0.0, seed)
    parts = tuple(msgspec.structs.replace(part, options=options) for part in audio)
    written = transcription_request(session, response, parts, hints)
    return msgspec.structs.replace(written, sampling=_drawn(asked, info, response), tier="latency")


def _drawn(asked: TranscriptionRequest, info: ModelInfo, response: str) -> dict[str, Sampling]:
    return sampling_of(Wishes(temperature=asked.temperature or 0.0), info, response)
