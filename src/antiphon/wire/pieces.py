"""One reply as it comes, for surfaces without events of their own: text, sound, its one end."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core.errors import AntiphonError, Overloaded, ProtocolError
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut
from antiphon.wire.ports import Detokeniser

CLIENT_CODES = ("invalid_prompt", "context_length_exceeded")
BUSY_CODES = ("server_overloaded", "server_shutting_down")
OVER = ("completed", "incomplete")


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that is certain now."""

    text: str


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """Mono float32 little-endian at 24 kHz."""

    samples: bytes


@dataclass(frozen=True, slots=True)
class EndPiece:
    """The one end; comes last. `error` says what went wrong; None: the reply is whole or met its limit."""

    end: ResponseEnded
    error: AntiphonError | None = None


Piece = TextPiece | SoundPiece | EndPiece


class Pieces:
    """Turns one response's outputs into pieces, and keeps the reply's exact tokens."""

    def __init__(self, detokeniser: Detokeniser, retry_after_s: float) -> None:
        self.token_ids: list[int] = []
        self._detokeniser = detokeniser
        self._retry_after_s = retry_after_s

    def take(self, output: Output) -> list[Piece]:
        """What an output brings; nothing while half a character is held back."""
        match output:
            case TokensOut():
                ids: list[int] = output.tokens[:, 0].tolist()
                self.token_ids += ids
                text = self._detokeniser.push(ids)
                return [TextPiece(text)] if text else []
            case AudioOut():
                return [SoundPiece(output.audio)]
            case ResponseEnded():
                rest = self._detokeniser.flush()
                end = EndPiece(output, error_of(output, self._retry_after_s))
                return [TextPiece(rest), end] if rest else [end]


def error_of(end: ResponseEnded, retry_after_s: float) -> AntiphonError | None:
    """Why a response has no whole reply, as an error; None where it has one."""
    if end.status in OVER:
        return None
    if end.reason in BUSY_CODES:
        return Overloaded(end.message, retry_after_s)
    if end.reason in CLIENT_CODES:
        return ProtocolError(end.message, code=end.reason)
    message = end.message or f"The response was {end.status}."
    return ProtocolError(message, code=end.reason or end.status, kind="server_error")
