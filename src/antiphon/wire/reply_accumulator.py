"""A reply put together from its pieces, for clients that want all of it at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.wire.chat_replies import CalledOut, ToolCallOut
from antiphon.wire.reply_stream import ArgumentsPiece, CallPiece, EndPiece, Piece, SoundPiece, TextPiece


@dataclass(slots=True)
class ReplyAccumulator:
    """calls: of each its id, name and arguments so far."""

    text: str = ""
    sound: bytearray = field(default_factory=bytearray)
    calls: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    def add(self, piece: Piece) -> None:
        match piece:
            case TextPiece():
                self.text += piece.text
            case SoundPiece():
                self.sound += piece.samples
            case CallPiece():
                self.calls.append((piece.call_id, piece.name, ""))
            case ArgumentsPiece():
                call_id, name, arguments = self.calls[piece.index]
                self.calls[piece.index] = (call_id, name, arguments + piece.delta)
            case EndPiece():
                pass

    def shown_calls(self) -> list[ToolCallOut]:
        """As clients read them."""
        return [
            ToolCallOut(id=call_id, function=CalledOut(name=name, arguments=arguments))
            for call_id, name, arguments in self.calls
        ]
