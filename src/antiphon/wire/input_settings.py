"""What a session says about audio: formats both ways, and how what comes in is cleaned and written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from antiphon.core.conversation import TranscriptOptions
from antiphon.core.errors import ProtocolError
from antiphon.core.model_info import ModelInfo
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.wire.client_events import Strict
from antiphon.wire.effects import Payload
from antiphon.wire.errors import shown
from antiphon.wire.limits import check
from antiphon.wire.parsing import converted

AudioFormat = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
FORMATS: tuple[AudioFormat, ...] = ("audio/pcm", "audio/pcmu", "audio/pcma")
G711_RATE_HZ = 8000
MAX_TRANSCRIPTION_CHARS = 10_000
"""Echoed beside instructions and tools, in one event under 1 MiB."""
REDUCTIONS = ("near_field", "far_field")


@dataclass(frozen=True, slots=True)
class InputTranscription:
    """How input audio is to be written down. The served model does it, whatever model is named."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None

    def payload(self) -> Payload:
        asked = {"model": self.model, "language": self.language, "prompt": self.prompt}
        return {key: value for key, value in asked.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Incoming:
    """How a recording comes in: its format, and how it is to be written down."""

    format: AudioFormat = "audio/pcm"
    transcription: InputTranscription | None = None


class TranscriptionPatch(Strict, frozen=True, kw_only=True):
    """`audio.input.transcription`. Fields that tune other servers' models are taken, without effect."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    delay: Any = None
    keywords: Any = None
    languages: Any = None


class _Format(Strict, frozen=True, kw_only=True):
    type: str = "audio/pcm"
    rate: int | None = None


class _Reduction(Strict, frozen=True, kw_only=True):
    type: str
    strength: float | None = None


def read_language(language: str | None, info: ModelInfo, param: str) -> str | None:
    """A code ("de", "de-AT") as the model's transcriber has it. As it stands, where a model that hears by
    itself is only told of it. Raises ProtocolError for one that the transcriber does not hear."""
    if not language or not info.languages:
        return language
    code = language.strip().lower().partition("-")[0]
    if code not in info.languages:
        raise ProtocolError(
            f"This model writes down only {', '.join(info.languages)}; got {shown(language)}. Leave language"
            f" out for {info.languages[0]}.",
            code="unsupported_language",
            param=param,
        )
    return code


def transcript_options(
    asked: InputTranscription | None, info: ModelInfo, temperature: float = 0.0, seed: int = 0
) -> TranscriptOptions | None:
    """For a model with a transcriber; None for its own way. Of `asked` the language is read."""
    asked = asked or InputTranscription()
    if not info.languages:
        return None
    language = None if asked.language in (None, "", info.languages[0]) else asked.language
    prompt = (asked.prompt or "").strip() or None
    options = TranscriptOptions(language, prompt, temperature, seed if temperature else 0)
    return None if options == TranscriptOptions() else options


def read_transcription(value: Any, info: ModelInfo, at: str) -> InputTranscription | None:
    """None for null: input is not transcribed. Raises ProtocolError, LimitExceeded."""
    if value is None:
        return None
    patch = converted(value, TranscriptionPatch, at)
    num_chars = sum(len(text or "") for text in (patch.model, patch.language, patch.prompt))
    check("max_transcription_chars", MAX_TRANSCRIPTION_CHARS, num_chars, f"{at} is too long")
    return InputTranscription(
        patch.model, read_language(patch.language, info, f"{at}.language"), patch.prompt
    )


def read_noise_reduction(value: Any, at: str) -> Payload | None:
    """Echoed as asked for, without effect: the encoder takes speech as it comes."""
    if value is None:
        return None
    patch = converted(value, _Reduction, at)
    if patch.type not in REDUCTIONS:
        raise ProtocolError(
            f"noise_reduction is null, {' or '.join(REDUCTIONS)}; got {shown(patch.type)}.",
            param=f"{at}.type",
        )
    return {"type": patch.type}


def read_format(value: Any, at: str) -> AudioFormat:
    """One of FORMATS. PCM is 24 kHz only; G.711 is 8 kHz and says no rate."""
    patch = converted(value, _Format, at)
    for found in FORMATS:
        if found == patch.type:
            break
    else:
        raise ProtocolError(
            f"An audio format is {', '.join(FORMATS)}; got {shown(patch.type)}.", param=f"{at}.type"
        )
    rate = WIRE_SAMPLE_RATE_HZ if found == "audio/pcm" else G711_RATE_HZ
    if patch.rate not in (None, rate):
        raise ProtocolError(f"The rate of {found} is {rate}; got {patch.rate}.", param=f"{at}.rate")
    return found


def format_payload(audio_format: AudioFormat) -> Payload:
    """As clients read it; PCM's rate is always shown, because clients trip over its absence."""
    if audio_format == "audio/pcm":
        return {"type": audio_format, "rate": WIRE_SAMPLE_RATE_HZ}
    return {"type": audio_format}
