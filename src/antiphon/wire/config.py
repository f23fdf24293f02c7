"""The session's settings: defaults, merging of updates, and the object echoed to clients.

What a client asks for and this version cannot do is refused by name; the echo shows only what is true.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from antiphon.core.errors import ProtocolError
from antiphon.core.model_info import ModelInfo
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.wire.client_events import (
    AudioInputPatch,
    AudioOutputPatch,
    GenerationPatch,
    SessionPatch,
)
from antiphon.wire.effects import Payload
from antiphon.wire.errors import shown
from antiphon.wire.limits import Limits, check
from antiphon.wire.turn_detection import TurnDetection, read_turn_detection

V = TypeVar("V")

MAX_VOICE_CHARS = 64
OFF = "is not supported by this version"


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How replies are made. `voice` is kept as it was asked for; `max_output_tokens` None is "inf"."""

    speech: bool = True
    instructions: str = ""
    max_output_tokens: int | None = None
    voice: str | None = None
    tool_choice: str = "auto"
    turn_detection: TurnDetection | None = None

    @property
    def output_modalities(self) -> list[str]:
        return ["audio"] if self.speech else ["text"]

    @property
    def max_output_tokens_shown(self) -> int | str:
        return "inf" if self.max_output_tokens is None else self.max_output_tokens


@dataclass(frozen=True, slots=True)
class Scope:
    """What settings are checked against. `detects_turns`: somebody hears when turns start and end."""

    info: ModelInfo
    limits: Limits
    detects_turns: bool = False

    @property
    def defaults(self) -> SessionConfig:
        return SessionConfig(
            voice=self.info.voices[0] if self.info.voices else None,
            turn_detection=TurnDetection() if self.detects_turns else None,
        )

    def speaker(self, config: SessionConfig) -> str | None:
        """The model's voice for a config: clients may ask for other servers' voices and get the default."""
        asked = (config.voice or "").lower()
        return asked if asked in self.info.voices else self.defaults.voice


def updated(config: SessionConfig, patch: SessionPatch, scope: Scope) -> SessionConfig:
    """The config after `session.update`: absent keeps, null resets. Raises before anything changes."""
    if patch.type != "realtime":
        raise ProtocolError(
            f"Session type {shown(patch.type)} {OFF}; it is 'realtime'.", param="session.type"
        )
    if patch.model not in (None, scope.info.name):
        raise ProtocolError("The model of a session cannot be changed.", param="session.model")
    _refuse(patch.include, "session.include", "Log probabilities")
    _check_truncation(patch.truncation)
    config = overridden(config, patch, scope, scope.defaults)
    if patch.audio is None:
        return config
    if patch.audio.input is not None:
        _check_audio_input(patch.audio.input, scope)
        asked = patch.audio.input.turn_detection
        if asked is not UNSET:
            detection = read_turn_detection(asked, "session.audio.input.turn_detection")
            config = replace(config, turn_detection=detection)
    return with_output(config, patch.audio.output, scope.defaults, "session")


def overridden(
    config: SessionConfig, patch: GenerationPatch, scope: Scope, on_null: SessionConfig, at: str = "session"
) -> SessionConfig:
    """The config with a patch's own fields over it. Null means `on_null`: a default, or the session's."""
    _refuse(patch.tools, f"{at}.tools", "Tool calling")
    _refuse(patch.prompt, f"{at}.prompt", "Stored prompts")
    _refuse(patch.reasoning, f"{at}.reasoning", "Reasoning control")
    speech = patch.output_modalities
    tokens = patch.max_output_tokens
    return replace(
        config,
        speech=_picked(_speech(speech, at), config.speech, on_null.speech),
        instructions=_picked(
            _instructions(patch.instructions, scope, at), config.instructions, on_null.instructions
        ),
        max_output_tokens=on_null.max_output_tokens
        if tokens is None
        else config.max_output_tokens
        if isinstance(tokens, UnsetType)
        else _max_tokens(tokens, scope, at),
        tool_choice=_tool_choice(patch.tool_choice, config.tool_choice, at),
    )


def with_output(
    config: SessionConfig, patch: AudioOutputPatch | None, on_null: SessionConfig, at: str
) -> SessionConfig:
    """The config with `audio.output` over it."""
    if patch is None:
        return config
    if patch.speed not in (None, 1.0):
        raise ProtocolError(f"A speed other than 1.0 {OFF}.", param=f"{at}.audio.output.speed")
    voice = patch.voice
    if isinstance(voice, dict):
        raise ProtocolError(f"Custom voices by id: this {OFF}.", param=f"{at}.audio.output.voice")
    if isinstance(voice, str):
        check("max_voice_chars", MAX_VOICE_CHARS, len(voice))
    return replace(config, voice=_picked(voice, config.voice, on_null.voice))


def session_object(config: SessionConfig, session_id: str, info: ModelInfo) -> Payload:
    """The whole GA session object."""
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": info.name,
        "output_modalities": config.output_modalities,
        "instructions": config.instructions,
        "tools": [],
        "tool_choice": config.tool_choice,
        "max_output_tokens": config.max_output_tokens_shown,
        "tracing": None,
        "truncation": "disabled",
        "prompt": None,
        "expires_at": None,
        "include": None,
        "x_extensions": ["playback.ack"],
        "audio": {
            "input": {
                "format": pcm_format(),
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": config.turn_detection.payload() if config.turn_detection else None,
            },
            "output": {"format": pcm_format(), "voice": config.voice, "speed": 1.0},
        },
    }


def pcm_format() -> Payload:
    """The one format both ways; other rates are resampled inside, because clients trip over them."""
    return {"type": "audio/pcm", "rate": WIRE_SAMPLE_RATE_HZ}


def _picked(value: V | UnsetType | None, current: V, on_null: V) -> V:
    if isinstance(value, UnsetType):
        return current
    return on_null if value is None else value


def _speech(modalities: list[str] | UnsetType | None, at: str) -> bool | UnsetType | None:
    if modalities is None or isinstance(modalities, UnsetType):
        return modalities
    if modalities not in (["audio"], ["text"]):
        raise ProtocolError(
            f"output_modalities is ['audio'] (speech and its transcript) or ['text'];"
            f" got {shown(modalities)}.",
            param=f"{at}.output_modalities",
        )
    return modalities == ["audio"]


def _instructions(text: str | UnsetType | None, scope: Scope, at: str) -> str | UnsetType | None:
    if isinstance(text, str):
        check("max_text_chars", scope.limits.max_text_chars, len(text), f"{at}.instructions is too long")
    return text


def _max_tokens(value: int | str, scope: Scope, at: str) -> int | None:
    if value == "inf":
        return None
    most = scope.info.max_context_tokens
    if isinstance(value, str) or not 1 <= value <= most:
        raise ProtocolError(
            f"max_output_tokens is 1 to {most}, or 'inf'; got {shown(value)}.",
            param=f"{at}.max_output_tokens",
        )
    return value


def _tool_choice(value: Any, current: str, at: str) -> str:
    if value is None:
        return current
    if value not in ("auto", "none"):
        raise ProtocolError(
            f"Tool calling {OFF}; tool_choice is 'auto' or 'none'.", param=f"{at}.tool_choice"
        )
    return value


def _check_audio_input(patch: AudioInputPatch, scope: Scope) -> None:
    at = "session.audio.input"
    if not scope.detects_turns and patch.turn_detection not in (None, UNSET):
        raise ProtocolError(
            f"Turn detection {OFF}: it commits manually. Set turn_detection to null, then send"
            " input_audio_buffer.commit and response.create.",
            param=f"{at}.turn_detection",
        )
    _refuse(patch.transcription, f"{at}.transcription", "Transcription of input audio")
    _refuse(patch.noise_reduction, f"{at}.noise_reduction", "Noise reduction")


def _check_truncation(value: Any) -> None:
    if value not in (None, "auto", "disabled"):
        raise ProtocolError(
            f"Truncation by retention ratio {OFF}; the conversation is never truncated ('disabled').",
            param="session.truncation",
        )


def _refuse(value: Any, param: str, what: str) -> None:
    """Null and empty ask for nothing."""
    if value is not None and value != [] and value is not UNSET:
        raise ProtocolError(f"{what} {OFF}.", param=param)
