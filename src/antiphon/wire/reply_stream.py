"""One reply as it comes, for surfaces without events of their own: text, sound, its one end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import msgspec

from antiphon.core.errors import AntiphonError, Overloaded, ProtocolError
from antiphon.core.ids import IdSource
from antiphon.core.logprobs import TokenLog, log_bytes, read_logs
from antiphon.core.plans import CLIENT_CODES, AudioOut, ResponseEnded, ResponseOutput, TokensOut, Usage
from antiphon.wire import tool_calls
from antiphon.wire.chat_replies import CalledOut, ToolCallOut
from antiphon.wire.ports import Detokeniser
from antiphon.wire.text_params import TextReading
from antiphon.wire.tool_calls import call_parser

PASSING_CODES = ("server_overloaded", "server_shutting_down", "stage_lost", "engine_gone")
"""Ends after which the same request may do well a moment later."""
OVER = ("completed", "incomplete")
PLAIN = TextReading()


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that is certain now, how many tokens have come since the last of it, and what is told of them.

    num_read  of those tokens, the ones that went into no call: a reader takes them with the text
    told      for `read_logs` with `num_top`: bytes, since a piece may wait for its reader for long
    """

    text: str
    num_tokens: int = field(default=0, compare=False)
    num_read: int = field(default=0, compare=False)
    told: bytes = b""
    num_top: int = field(default=0, compare=False)

    @property
    def logs(self) -> list[TokenLog]:
        return read_logs(self.told, self.num_top)


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """Mono float32 little-endian at 24 kHz."""

    samples: bytes


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A tool's call begins, the reply's `index`-th; its arguments follow."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """More of a call's arguments, JSON text."""

    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class EndPiece:
    """The one end; comes last. `error` says what went wrong; None: the reply is whole or met its limit."""

    end: ResponseEnded
    error: AntiphonError | None = None


Piece = TextPiece | SoundPiece | CallPiece | ArgumentsPiece | EndPiece


class ReplyStream:
    """Turns one response's outputs into pieces, and keeps the reply's exact tokens.

    `tools`: names of those that it may call; without any, all is text. A text that has come to one of
    the strings that end it is over: `is_stopped`, whatever follows.
    """

    def __init__(
        self,
        detokeniser: Detokeniser,
        ids: IdSource,
        tools: Collection[str],
        retry_after_s: float,
        reading: TextReading = PLAIN,
        json_calls: bool = False,
    ) -> None:
        """json_calls: as `ModelInfo` has it."""
        self.token_ids: list[int] = []
        self.num_calls = 0
        self.counts = Usage()
        """Of the prompt, from the first tokens on."""
        self._num_told = 0
        """Tokens that pieces have told of."""
        self._num_called = 0
        """Tokens up to the end of the newest call, as far as it has come."""
        self._detokeniser = detokeniser
        self._ids = ids
        self._parser = call_parser(tools, json_calls=json_calls) if tools else None
        self._retry_after_s = retry_after_s
        self._reading = reading
        self._stops = reading.stops()
        self.prompt_logs = b""
        """For `read_logs`: what is told of a long prompt is read once it is written."""
        self._logs = bytearray()
        """Log-probabilities of tokens that no piece has told of."""

    def spelled(self, token_id: int) -> bytes:
        """What a token stands for by itself."""
        return self._detokeniser.spelled(token_id)

    @property
    def num_held_bytes(self) -> int:
        """What is told of tokens that no piece has told of yet, such as those of a call."""
        return len(self._logs)

    @property
    def is_stopped(self) -> bool:
        return self._stops is not None and self._stops.is_found

    def take(self, output: ResponseOutput) -> list[Piece]:
        """What an output brings; nothing while half a character is held back."""
        match output:
            case TokensOut():
                if output.usage is not None:
                    self.counts = output.usage
                self._note(output)
                return self._counted(self._read(self._detokenised(output.tokens[:, 0].tolist())))
            case AudioOut():
                return [SoundPiece(output.audio)]
            case ResponseEnded():
                was_stopped = self.is_stopped
                rest = [] if was_stopped else self._read(self._flushed())
                if self.is_stopped and not was_stopped:
                    output = msgspec.structs.replace(output, status="completed", reason="")
                late = self._pieces(self._parser.flush()) if self._parser else []
                rest = self._told([*rest, *late])
                return [*rest, EndPiece(output, error_of(output, self._retry_after_s))]

    def _detokenised(self, ids: list[int]) -> str:
        if self._stops is None:
            self.token_ids += ids
            return self._detokeniser.push(ids)
        text = ""
        for token in ids:
            if not self.is_stopped:
                self.token_ids.append(token)
                text += self._stops.push(self._detokeniser.push([token]), len(self.token_ids))
        return text

    def _flushed(self) -> str:
        rest = self._detokeniser.flush()
        if self._stops is None:
            return rest
        return self._stops.push(rest, len(self.token_ids)) + self._stops.flush()

    def _counted(self, pieces: list[Piece]) -> list[Piece]:
        for at, piece in enumerate(pieces):
            if isinstance(piece, TextPiece):
                num_tokens = len(self.token_ids) - self._num_told
                num_read = len(self.token_ids) - max(self._num_told, self._num_called)
                pieces[at] = replace(
                    piece,
                    num_tokens=num_tokens,
                    num_read=num_read,
                    told=bytes(self._logs),
                    num_top=self._reading.num_top or 0,
                )
                self._num_told = len(self.token_ids)
                self._logs.clear()
        return pieces

    def _told(self, pieces: list[Piece]) -> list[Piece]:
        """The last ones: with what is still to be told of tokens, if need be beside no text."""
        if self._logs and not any(isinstance(piece, TextPiece) for piece in pieces):
            pieces = [TextPiece(""), *pieces]
        return self._counted(pieces)

    def _note(self, output: TokensOut) -> None:
        """What is told of tokens; of one that ended the reply, nothing is."""
        num_top = self._reading.num_top
        if num_top is None or not output.logprobs or self.is_stopped:
            return
        logs = output.logprobs
        if self._reading.tells_prompt and output.usage is not None:
            size = log_bytes(output.usage.input_text_tokens, num_top)
            self.prompt_logs, logs = logs[:size], logs[size:]
        if len(output.tokens):
            self._logs += logs

    def _read(self, text: str) -> list[Piece]:
        if self._parser is None:
            return [TextPiece(text)] if text else []
        was_calling = self._parser.is_calling
        found = self._parser.push(text)
        if was_calling or any(not isinstance(each, tool_calls.Text) for each in found):
            self._num_called = len(self.token_ids)
        return self._pieces(found)

    def _pieces(self, found: list[tool_calls.ParsedPiece]) -> list[Piece]:
        pieces: list[Piece] = []
        for each in found:
            match each:
                case tool_calls.Text():
                    pieces.append(TextPiece(each.text))
                case tool_calls.CallBegun():
                    pieces.append(CallPiece(self.num_calls, self._ids.new("call"), each.name))
                    self.num_calls += 1
                case tool_calls.Arguments():
                    pieces.append(ArgumentsPiece(self.num_calls - 1, each.delta))
                case tool_calls.CallEnded():
                    pass  # a call that breaks off is told by the end's reason
        return pieces


def error_of(end: ResponseEnded, retry_after_s: float) -> AntiphonError | None:
    """Why a response has no whole reply, as an error; None where it has one."""
    if end.status in OVER:
        return None
    if end.reason in PASSING_CODES:
        return Overloaded(end.message, retry_after_s if end.retry_s is None else end.retry_s, end.reason)
    if end.reason in CLIENT_CODES:
        return ProtocolError(end.message, code=end.reason)
    message = end.message or f"The response was {end.status}."
    return ProtocolError(message, code=end.reason or end.status, kind="server_error")


@dataclass(slots=True)
class ReplyAccumulator:
    """A reply put together from its pieces. calls: of each its id, name and arguments so far."""

    text: str = ""
    sound: bytearray = field(default_factory=bytearray)
    calls: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    logs: list[TokenLog] = field(default_factory=list[TokenLog])

    def add(self, piece: Piece) -> None:
        match piece:
            case TextPiece():
                self.text += piece.text
                self.logs += piece.logs
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
