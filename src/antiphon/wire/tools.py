"""Function tools: what clients may declare and choose, as sessions echo it and as chat templates take it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from antiphon.core.errors import ProtocolError
from antiphon.core.model_info import ModelInfo
from antiphon.wire.client_events import Strict
from antiphon.wire.effects import Payload
from antiphon.wire.errors import shown
from antiphon.wire.limits import Limits, check
from antiphon.wire.parsing import converted

CHOICES = ("auto", "none", "required")
MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class FunctionTool(Strict, frozen=True, kw_only=True, omit_defaults=True):
    """A function that a reply may call. `strict` is taken from other dialects, without effect."""

    name: str
    type: str = "function"
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def payload(self) -> Payload:
        """As sessions echo it."""
        known = {"type": "function", "name": self.name}
        more = {"description": self.description, "parameters": self.parameters}
        return known | {key: value for key, value in more.items() if value is not None}

    def schema(self) -> str:
        """As the chat template takes it: JSON text, the function in a member of its own."""
        function = {key: value for key, value in self.payload().items() if key != "type"}
        return msgspec.json.encode({"type": "function", "function": function}).decode()


Tools = tuple[FunctionTool, ...]


class _Named(msgspec.Struct):
    name: str


class _Schema(msgspec.Struct):
    function: _Named


def names_in(schemas: Iterable[str]) -> tuple[str, ...]:
    """Of tools that are given as `FunctionTool.schema` writes them."""
    return tuple(msgspec.json.decode(schema, type=_Schema).function.name for schema in schemas)


def read_tools(raw: list[Any], limits: Limits, at: str) -> Tools:
    """The tools of a session, a response or a request. Raises ProtocolError, LimitExceeded.

    Takes the realtime form (flat) and that of chat completions (under `function`).
    """
    check("max_tools", MAX_TOOLS, len(raw))
    tools = tuple(_read(tool, f"{at}[{index}]") for index, tool in enumerate(raw))
    num_chars = sum(len(tool.schema()) for tool in tools)
    check("max_text_chars", limits.max_text_chars, num_chars, f"{at} is too long")
    return tools


def check_place(tools: Sequence[object], choice: str, info: ModelInfo, at: str) -> None:
    """Raise ProtocolError for tools that the model may call, or calls of them, and that it is not shown."""
    if tools and choice != "none" and not info.takes_tools:
        raise ProtocolError(
            f"The chat template of {info.name} has no place for tools: leave {at} out, or serve a model whose"
            " template has one (/v1/models says `tools`).",
            code="unsupported_parameter",
            param=at,
        )


def read_choice(value: Any, tools: Tools, at: str) -> str:
    """auto | none | required | a tool's name. `required` may come before its tools: each reply is checked
    (`check_required`)."""
    if isinstance(value, str) and value in CHOICES:
        return value
    if not isinstance(value, dict) or value.get("type") != "function":  # pyright: ignore
        raise ProtocolError(
            f"tool_choice is 'auto', 'none', 'required' or {{'type': 'function', 'name': …}};"
            f" got {shown(value)}.",  # pyright: ignore
            param=at,
        )
    asked: dict[str, Any] = value  # pyright: ignore
    name: Any = asked.get("name") or converted(asked.get("function", {}), dict[str, Any], at).get("name")
    check_choice(str(name), tools, at)
    return str(name)


def check_choice(choice: str, tools: Tools, at: str) -> None:
    """Raises ProtocolError unless a tool chosen by name is there."""
    if choice not in CHOICES and choice not in {tool.name for tool in tools}:
        known = ", ".join(tool.name for tool in tools) or "there are none"
        raise ProtocolError(f"tool_choice names {shown(choice)}; the tools: {known}.", param=at)


def check_required(choice: str, tools: Tools, at: str) -> None:
    """Raises ProtocolError where a reply has to call a tool, and there is none."""
    if choice == "required" and not tools:
        raise ProtocolError("tool_choice is 'required', but there are no tools.", param=at)


def choice_payload(choice: str) -> str | Payload:
    """The choice as sessions echo it."""
    return choice if choice in CHOICES else {"type": "function", "name": choice}


def _read(raw: Any, at: str) -> FunctionTool:
    fields = converted(raw, dict[str, Any], at)
    kind = fields.get("type", "function")
    if kind != "function":
        raise ProtocolError(
            f"A tool of type {shown(kind)} is not supported by this version; supported: function.",
            param=f"{at}.type",
        )
    if "function" in fields:
        fields, at = converted(fields["function"], dict[str, Any], f"{at}.function"), f"{at}.function"
    tool = converted(fields, FunctionTool, at)
    if not _NAME.fullmatch(tool.name) or tool.name in CHOICES:
        raise ProtocolError(
            "A tool's name has 1 to 64 letters, digits, '_', '-' or '.', and is not one of"
            f" {', '.join(CHOICES)}; got {shown(tool.name)}.",
            param=f"{at}.name",
        )
    return tool
