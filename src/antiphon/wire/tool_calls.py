r"""Tool calls in a reply's text, told apart while it is being written. Pure: text in, pieces out.

    <tool_call>
    {"name": "NAME", "arguments": {…}}
    </tool_call>

Or, where the chat template asks for that (Llama 3), as bare JSON with which the reply begins:

    {"name": "NAME", "parameters": {…}}

There NAME is that of a tool: JSON that answers a question may have a "name" too.

Arguments are handed on as they come once the head is read. A call whose head is no such JSON is plain text,
markers and all; one whose arguments break off ends incomplete. White space around calls is dropped, and so
is what stands between the end of the arguments and the end of the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_HEAD_CHARS = 4096
"""What is longer and has not come to its arguments is no call; more white space before a call is text."""
_TEXT = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_TEXT})\s*,\s*"arguments"\s*:\s*\{{')


PYTHON_TAG = "<|python_tag|>"
"""What may stand before bare calls, where the tokenizer shows it."""
BETWEEN = " \t\r\n,;"
_BARE_HEAD = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?'
    rf'"name"\s*:\s*({_TEXT})\s*,\s*"(?:parameters|arguments)"\s*:\s*\{{'
)
_NO_HEAD = re.compile(r'\{\s*(?:[^\s"]|"(?!(?:name|type|parameters|arguments)")[^"]*")')
"""The first key is none of a call's."""


@dataclass(frozen=True, slots=True)
class Text:
    """Words to the person."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of this tool; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments' JSON text."""

    delta: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """`is_complete` False: the reply ended inside the arguments."""

    is_complete: bool


ParsedPiece = Text | CallBegun | Arguments | CallEnded


class _At(Enum):
    TEXT = "text"
    HEAD = "head"
    ARGUMENTS = "arguments"
    TAIL = "tail"


class ToolCallParser:
    """One reply's. However the text is cut into pushes, the pieces, joined where they touch, are the same."""

    def __init__(self) -> None:
        self._at = _At.TEXT
        self._held: str = ""
        self._lead: str = ""
        """White space before what may be a call, given back if it turns out to be text."""
        self._after_call = False
        self._depth = 0
        self._in_string = self._escaped = False
        self._num_braces = 0
        """Opened so far by the head, outside its strings: arguments begin with the second."""

    @property
    def is_calling(self) -> bool:
        """Is the text inside a call whose name is known?"""
        return self._at in (_At.ARGUMENTS, _At.TAIL)

    def push(self, text: str) -> list[ParsedPiece]:
        return joined(piece for char in text for piece in self._step(char))

    def flush(self) -> list[ParsedPiece]:
        """What is left when no text follows."""
        at, held, self._held = self._at, self._held, ""
        match at:
            case _At.TEXT:
                rest = self._lead + held
                return [Text(rest)] if rest else []
            case _At.HEAD:
                return joined(self._whole(held, ""))
            case _At.ARGUMENTS:
                return [CallEnded(False)]
            case _At.TAIL:
                return []

    def _step(self, char: str) -> list[ParsedPiece]:
        match self._at:
            case _At.TEXT:
                return self._text(char)
            case _At.HEAD:
                return self._head(char)
            case _At.ARGUMENTS:
                return self._arguments(char)
            case _At.TAIL:
                return self._tail(char)

    def _text(self, char: str) -> list[ParsedPiece]:
        if self._after_call and char.isspace() and not self._held:
            return []
        held = self._held + char
        if held == OPEN:
            self._begin_head()
            return []
        if OPEN.startswith(held):
            self._held = held
            return []
        text, self._held = "", ""
        if not char.isspace():
            sure = len(held) - char.count(OPEN[0])
            text, self._lead, self._held = self._lead + held[:sure], "", held[sure:]
        elif len(held) > 1 or len(self._lead) == MAX_HEAD_CHARS:
            text, self._lead = self._lead + held[:-1], char
        else:
            self._lead += char
        self._after_call = self._after_call and not text
        return [Text(text)] if text else []

    def _begin_head(self) -> None:
        self._held, self._at, self._depth, self._num_braces = "", _At.HEAD, 0, 0
        self._in_string = self._escaped = False

    def _called(self, char: str, head: re.Pattern[str]) -> str | None:
        """The name, where all that is held is the head of a call and `char`, its last, begins the arguments.

        The pattern is tried at one brace only: it is read from the start each time.
        """
        if char != "{" or self._in_string:
            return None
        self._num_braces += 1
        found = head.fullmatch(self._held) if self._num_braces == 2 else None
        return _loaded(found[1]) if found else None

    def _call(self, name: str) -> list[ParsedPiece]:
        self._held, self._lead, self._at, self._depth = "", "", _At.ARGUMENTS, 1
        return [CallBegun(name), Arguments("{")]

    def _head(self, char: str) -> list[ParsedPiece]:
        self._held += char
        name = self._called(char, _HEAD)
        if name is not None:
            return self._call(name)
        self._closes(char)
        if self._held.endswith(CLOSE):
            body, self._held = self._held[: -len(CLOSE)], ""
            return self._whole(body, CLOSE)
        if len(self._held) > MAX_HEAD_CHARS:
            body, self._held = self._held, ""
            return self._as_text(body)
        return []

    def _whole(self, body: str, close: str) -> list[ParsedPiece]:
        """A call whose end was there before its arguments could be streamed: members in another order, or
        arguments that are no object."""
        call: Any = _loaded(body)
        name = call.get("name") if isinstance(call, dict) else None  # pyright: ignore
        if not isinstance(name, str):
            return self._as_text(body + close)
        given: Any = call.get("arguments", {})  # pyright: ignore
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        self._lead, self._at, self._after_call = "", _At.TEXT, True
        return [CallBegun(name), Arguments(arguments), CallEnded(True)]

    def _as_text(self, body: str) -> list[ParsedPiece]:
        lead, self._lead, self._at, self._after_call = self._lead, "", _At.TEXT, False
        return [Text(lead + OPEN + body)]

    def _arguments(self, char: str) -> list[ParsedPiece]:
        if not self._closes(char):
            return [Arguments(char)]
        self._at = _At.TAIL
        return [Arguments(char), CallEnded(True)]

    def _closes(self, char: str) -> bool:
        """Is it the last of the JSON value that is being read?"""
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped, self._in_string = char == "\\", char != '"'
        else:
            self._in_string = char == '"'
            self._depth += (char in "{[") - (char in "}]")
        return not self._depth

    def _tail(self, char: str) -> list[ParsedPiece]:
        self._held = (self._held + char)[-len(CLOSE) :]
        if self._held.endswith(CLOSE):
            self._held, self._at, self._after_call = "", _At.TEXT, True
        elif self._held.endswith(OPEN):
            self._begin_head()
            self._after_call = True
        return []


class BareCallParser(ToolCallParser):
    """Of a reply whose calls are bare JSON. It begins with them, or has none; between two stand white space,
    commas and semicolons. JSON that names no tool is text."""

    def __init__(self, names: Collection[str]) -> None:
        """names: of the tools."""
        super().__init__()
        self._names = names
        self._may_call = True
        self._num_quotes = 0
        """In the head, while its first key may be none of a call's."""

    def _text(self, char: str) -> list[ParsedPiece]:
        if not self._may_call:
            return [Text(char)]
        if char == "{":
            self._lead = "" if self._after_call else self._held
            self._begin_head()
            self._num_quotes = 0
            return self._head(char)
        if self._after_call and not self._held and char in BETWEEN:
            return []
        self._held += char
        if len(self._held) <= MAX_HEAD_CHARS and PYTHON_TAG.startswith(self._held.lstrip()):
            return []
        self._may_call = False
        text, self._held = self._held, ""
        return [Text(text)]

    def _head(self, char: str) -> list[ParsedPiece]:
        self._held += char
        name = self._called(char, _BARE_HEAD)
        if name is not None and name in self._names:
            return self._call(name)
        is_over = self._closes(char)
        if name is not None or self._has_other_key(char) or len(self._held) > MAX_HEAD_CHARS:
            return self._as_text(self._held)
        return self._whole(self._held, "") if is_over else []

    def _has_other_key(self, char: str) -> bool:
        """Is the first key none of a call's? That shows in what it begins with, and where it ends."""
        if self._num_quotes == 2 or len(self._held) == 1 or char.isspace():
            return False
        self._num_quotes += char == '"'
        return self._num_quotes != 1 and _NO_HEAD.match(self._held) is not None

    def _whole(self, body: str, close: str) -> list[ParsedPiece]:
        loaded: Any = _loaded(body)
        call: dict[str, Any] = loaded if isinstance(loaded, dict) else {}  # pyright: ignore
        name, given = call.get("name"), call.get("parameters", call.get("arguments"))
        if not isinstance(name, str) or name not in self._names or not isinstance(given, dict):
            return self._as_text(body)
        self._held, self._lead, self._at, self._after_call = "", "", _At.TEXT, True
        return [CallBegun(name), Arguments(json.dumps(given, ensure_ascii=False)), CallEnded(True)]

    def _as_text(self, body: str) -> list[ParsedPiece]:
        lead, self._held, self._lead = self._lead, "", ""
        self._at, self._may_call = _At.TEXT, False
        return [Text(lead + body)]

    def _tail(self, char: str) -> list[ParsedPiece]:
        """The rest of the object in which the arguments were."""
        self._depth = self._depth or 1
        if self._closes(char):
            self._at, self._after_call = _At.TEXT, True
        return []


def call_parser(names: Collection[str], *, json_calls: bool) -> ToolCallParser:
    """For one reply. names: of the tools; what calls another in tags is a call all the same."""
    return BareCallParser(names) if json_calls else ToolCallParser()


def joined(pieces: Iterable[ParsedPiece]) -> list[ParsedPiece]:
    """Neighbouring texts, and neighbouring arguments, as one."""
    whole: list[ParsedPiece] = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if isinstance(piece, Text) and isinstance(last, Text):
            whole[-1] = Text(last.text + piece.text)
        elif isinstance(piece, Arguments) and isinstance(last, Arguments):
            whole[-1] = Arguments(last.delta + piece.delta)
        else:
            whole.append(piece)
    return whole


def _loaded(text: str) -> Any:
    """The JSON value, None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
