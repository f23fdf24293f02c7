"""The session's settings: defaults, merging of updates, and the object echoed to clients.

What a client asks for and this version cannot do is refused by name; the echo shows only what is true.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from antiphon.core.errors import ProtocolError
from antiphon.core.model_info import ModelInfo
from antiphon.wire.client_events import AudioInputPatch, AudioOutputPatch, GenerationPatch, SessionPatch
from antiphon.wire.effects import Payload
from antiphon.wire.errors import shown
from antiphon.wire.input_settings import (
    AudioFormat,
    Incoming,
    InputTranscription,
    format_payload,
    read_format,
    read_noise_reduction,
    read_transcription,
)
from antiphon.wire.limits import Limits, check
from antiphon.wire.readers import ReaderRates
from antiphon.wire.tools import Tools, check_choice, check_place, choice_payload, read_choice, read_tools
from antiphon.wire.truncation import AUTO, Truncation, read_truncation
from antiphon.wire.turn_detection import TurnDetection, read_turn_detection

V = TypeVar("V")

MAX_VOICE_CHARS = 64
EXTENSIONS = ("playback.ack", "antiphon.advise")
"""What every session knows beyond the protocol."""
OFF = "is not supported by this version"
SERVER_VAD = TurnDetection()


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How replies are made. `voice` is kept as it was asked for; `max_output_tokens` None is "inf"."""

    speech: bool = True
    instructions: str = ""
    max_output_tokens: int | None = None
    voice: str | None = None
    tools: Tools = ()
    tool_choice: str = "auto"
    output_format: AudioFormat = "audio/pcm"
    input_format: AudioFormat = "audio/pcm"
    turn_detection: TurnDetection | None = SERVER_VAD
    transcription: InputTranscription | None = None
    noise_reduction: Payload | None = None
    truncation: Truncation = AUTO

    @property
    def usable_tools(self) -> Tools:
        """What a reply may call."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def incoming(self) -> Incoming:
        """How the next recording comes in."""
        return Incoming(self.input_format, self.transcription)

    @property
    def output_modalities(self) -> list[str]:
        return ["audio"] if self.speech else ["text"]

    @property
    def max_output_tokens_shown(self) -> int | str:
        return "inf" if self.max_output_tokens is None else self.max_output_tokens


@dataclass(frozen=True, slots=True)
class Scope:
    """What settings are checked against."""

    info: ModelInfo
    limits: Limits
    readers: ReaderRates = field(default_factory=ReaderRates)

    @property
    def defaults(self) -> SessionConfig:
        """Of a model with a voice, replies are spoken."""
        voices = self.info.voices
        return SessionConfig(speech=bool(voices), voice=voices[0] if voices else None)

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
    _refuse(patch.include, "session.include", "Log probabilities are")
    if patch.truncation is not UNSET:
        config = replace(config, truncation=read_truncation(patch.truncation))
    _check_tracing(patch.tracing)
    config = overridden(config, patch, scope, scope.defaults)
    if patch.audio is None:
        return config
    if patch.audio.input is not None:
        config = _with_input(config, patch.audio.input, scope)
    return with_output(config, patch.audio.output, scope.defaults, "session")


def overridden(
    config: SessionConfig, patch: GenerationPatch, scope: Scope, on_null: SessionConfig, at: str = "session"
) -> SessionConfig:
    """The config with a patch's own fields over it. Null means `on_null`: a default, or the session's."""
    _refuse(patch.prompt, f"{at}.prompt", "Stored prompts are")
    _refuse(patch.reasoning, f"{at}.reasoning", "Reasoning control is")
    tools, choice = _tools(config, patch, scope, on_null, at)
    speech = patch.output_modalities
    tokens = patch.max_output_tokens
    return replace(
        config,
        speech=_picked(_speech(speech, scope.info, at), config.speech, on_null.speech),
        instructions=_picked(
            _instructions(patch.instructions, scope, at), config.instructions, on_null.instructions
        ),
        max_output_tokens=on_null.max_output_tokens
        if tokens is None
        else config.max_output_tokens
        if isinstance(tokens, UnsetType)
        else _max_tokens(tokens, scope, at),
        tools=tools,
        tool_choice=choice,
    )


def with_output(
    config: SessionConfig, patch: AudioOutputPatch | None, on_null: SessionConfig, at: str
) -> SessionConfig:
    """The config with `audio.output` over it."""
    if patch is None:
        return config
    if patch.speed not in (None, 1.0):
        raise ProtocolError(
            f"A speed other than 1.0 {OFF}; leave it out or set it to 1.0.", param=f"{at}.audio.output.speed"
        )
    voice = patch.voice
    if isinstance(voice, dict):
        raise ProtocolError(f"Custom voices by id: this {OFF}.", param=f"{at}.audio.output.voice")
    if isinstance(voice, str):
        check("max_voice_chars", MAX_VOICE_CHARS, len(voice))
    return replace(
        config,
        voice=_picked(voice, config.voice, on_null.voice),
        output_format=_format(
            patch.format, config.output_format, on_null.output_format, f"{at}.audio.output"
        ),
    )


def session_object(config: SessionConfig, session_id: str, info: ModelInfo) -> Payload:
    """The whole GA session object."""
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": info.name,
        "output_modalities": config.output_modalities,
        "instructions": config.instructions,
        "tools": [tool.payload() for tool in config.tools],
        "tool_choice": choice_payload(config.tool_choice),
        "max_output_tokens": config.max_output_tokens_shown,
        "tracing": None,
        "truncation": config.truncation.payload(),
        "prompt": None,
        "expires_at": None,
        "include": None,
        "x_extensions": [*EXTENSIONS, *(("input_video",) if "image" in info.inputs else ())],
        "audio": {
            "input": {
                "format": format_payload(config.input_format),
                "transcription": config.transcription.payload() if config.transcription else None,
                "noise_reduction": config.noise_reduction,
                "turn_detection": config.turn_detection.payload() if config.turn_detection else None,
            },
            "output": {"format": format_payload(config.output_format), "voice": config.voice, "speed": 1.0},
        },
    }


def _picked(value: V | UnsetType | None, current: V, on_null: V) -> V:
    if isinstance(value, UnsetType):
        return current
    return on_null if value is None else value


def _speech(modalities: list[str] | UnsetType | None, info: ModelInfo, at: str) -> bool | UnsetType | None:
    """Whether replies are spoken: never those of a model without a voice. Unset and null are returned as they
    are. Raises ProtocolError for any other modalities."""
    if modalities is None or isinstance(modalities, UnsetType):
        return modalities
    if modalities not in (["audio"], ["text"]):
        raise ProtocolError(
            f"output_modalities is ['audio'] (speech and its transcript) or ['text'];"
            f" got {shown(modalities)}.",
            param=f"{at}.output_modalities",
        )
    return modalities == ["audio"] and bool(info.voices)


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


def _tools(
    config: SessionConfig, patch: GenerationPatch, scope: Scope, on_null: SessionConfig, at: str
) -> tuple[Tools, str]:
    """Tools and choice after the patch. A choice by name must fit the tools that are there then."""
    raw = patch.tools
    read = raw if raw is None or isinstance(raw, UnsetType) else read_tools(raw, scope.limits, f"{at}.tools")
    tools = _picked(read, config.tools, on_null.tools)
    asked = patch.tool_choice
    if asked is not None and asked is not UNSET:
        asked = read_choice(asked, tools, f"{at}.tool_choice")
    choice: str = _picked(asked, config.tool_choice, on_null.tool_choice)
    check_choice(choice, tools, f"{at}.tool_choice")
    check_place(tools, choice, scope.info, f"{at}.tools")
    return tools, choice


def _with_input(config: SessionConfig, patch: AudioInputPatch, scope: Scope) -> SessionConfig:
    """The config with `audio.input` over it. Null turns a thing off, and resets the format."""
    at = "session.audio.input"
    changes: dict[str, Any] = {"input_format": _format(patch.format, config.input_format, "audio/pcm", at)}
    if patch.transcription is not UNSET:
        changes["transcription"] = read_transcription(patch.transcription, scope.info, f"{at}.transcription")
    if patch.noise_reduction is not UNSET:
        changes["noise_reduction"] = read_noise_reduction(patch.noise_reduction, f"{at}.noise_reduction")
    if patch.turn_detection is not UNSET:
        changes["turn_detection"] = read_turn_detection(patch.turn_detection, f"{at}.turn_detection")
    return replace(config, **changes)


def _format(value: Any, current: AudioFormat, on_null: AudioFormat, at: str) -> AudioFormat:
    given = value if value is None or value is UNSET else read_format(value, f"{at}.format")
    return _picked(given, current, on_null)


def _check_tracing(value: Any) -> None:
    """Taken without effect, since nothing is traced; agents send it in the middle of a response."""
    if value is not None and value != "auto" and not isinstance(value, dict):
        raise ProtocolError(
            f"tracing is null, 'auto' or an object; got {shown(value)}.", param="session.tracing"
        )


def _refuse(value: Any, param: str, what: str) -> None:
    """what: with its verb. Null and empty ask for nothing."""
    if value is not None and value != [] and value is not UNSET:
        raise ProtocolError(f"{what} not supported by this version.", param=param)
