"""Frames to typed events. Each way in which a frame can be wrong becomes a ProtocolError with code, param."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from antiphon.core.counted import counted
from antiphon.core.errors import ProtocolError
from antiphon.core.model_info import ModelInfo
from antiphon.wire.client_events import EVENTS, ClientEvent
from antiphon.wire.errors import cut, shown
from antiphon.wire.limits import Limits, check

T = TypeVar("T")

MAX_EVENT_ID_CHARS = 512
MAX_DEPTH = 64
"""Objects and lists within each other: what is echoed has to be readable for every client's parser."""
MAX_BRACKETS = 1 << 17
"""Opening ones in one JSON text, `[` and `{`. With commas they bound the time and the memory that it takes,
since every value has one of them before it. What people write has far fewer, and media have none."""
MAX_COMMAS = 1 << 20
MAX_WHAT_CHARS = 200
"""Of a sentence about a value: it may quote the value, which may be long."""
MAX_PATH_CHARS = 200
"""Of the place of an error, whatever a client may have called its fields."""
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b'{}[]"'))
_AT = " - at `$"
_RANGE = re.compile(r"` (?:of length |matching |multiple of |[<>])")
_FIELD = re.compile(r"^Object [a-z ]* field `(?P<field>[^`]{0,200})")
_KIND = "str|bytes|int|float|bool|array|list|object|dict|null|NoneType"
_CHOICE = re.compile(r"Invalid (?:enum )?value(?= )")
_WRONG_TYPE = re.compile(rf"Expected `(?P<types>(?:{_KIND})(?: \| (?:{_KIND}))*)`, got `(?P<got>{_KIND})`")
_BOUND = re.compile(
    r"Expected `(?:(?P<type>int|float)`|(?P<counted>str|array|object)` of length) "
    r"(?P<sign>[<>]=?) (?P<number>[-+.e\d]+)"
)
GOT = "got"
KINDS = {
    "str": ["a string"],
    "bytes": ["base64"],
    "int": ["a whole number"],
    "float": ["a number"],
    "bool": ["true", "false"],
    "array": ["a list"],
    "list": ["a list"],
    "object": ["an object"],
    "dict": ["an object"],
    "null": ["null"],
    "NoneType": ["null"],
}
"""Types of JSON as people call them; of a tag msgspec tells Python's."""
COUNTED = {"str": ("character",), "array": ("entry", "entries"), "object": ("field",)}
BOUNDS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d*)")


def decode_object(frame: str | bytes, limits: Limits) -> dict[str, Any]:
    """The JSON object in a text frame."""
    check("max_frame_bytes", limits.max_frame_bytes, len(frame))
    if isinstance(frame, bytes):
        raise ProtocolError("Binary frames carry no events here; send JSON as text.", code="invalid_type")
    value = decode_json(frame, "frame")
    if not isinstance(value, dict):
        raise ProtocolError(f"An event is a JSON object; got {shown(value)}.", code="invalid_type")
    return value  # pyright: ignore[reportUnknownVariableType]


def decode_json(text: str | bytes, what: str) -> Any:
    """The value in `text`, nested no deeper than clients can read again. `what` names the text in errors."""
    try:
        return _shallow(text)
    except RecursionError:
        raise _too_deep(f"The {what}") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ProtocolError(f"The {what} is not valid JSON: {error}.", code="invalid_json") from None


def check_depth(text: str, at: str) -> None:
    """Raise for JSON that is nested too deeply, found at `at`. What is no JSON is text like any other."""
    try:
        _shallow(text)
    except RecursionError:
        raise _too_deep(f"'{at}'", param=at) from None
    except (msgspec.DecodeError, UnicodeError):
        pass


def _shallow(text: str | bytes) -> Any:
    """The value in `text`. Raises RecursionError where it is nested too deeply, LimitExceeded where it has
    too many values."""
    raw = text.encode() if isinstance(text, str) else text
    num_brackets = raw.count(b"[") + raw.count(b"{")
    check("max_json_brackets", MAX_BRACKETS, num_brackets, "Send fewer lists and objects at once")
    check("max_json_commas", MAX_COMMAS, raw.count(b","), "Send fewer values at once")
    value = msgspec.json.decode(raw)
    if num_brackets > MAX_DEPTH and _is_deep(raw):
        raise RecursionError
    return value


def _is_deep(raw: bytes) -> bool:
    """Is anything in the JSON text nested too deeply? Every round takes the innermost brackets away."""
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = unescaped.translate(_BRACKETS, _OTHERS).split(b'"')
    brackets = b"".join(pieces[::2])  # what is between quotes is text
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _too_deep(what: str, param: str | None = None) -> ProtocolError:
    return ProtocolError(
        f"{what} is JSON that is nested too deeply: {MAX_DEPTH} levels at most.",
        code="invalid_json",
        param=param,
    )


def client_event_id(raw: dict[str, Any]) -> str | None:
    """The client's own id of the event, where it is one that can be echoed."""
    event_id = raw.get("event_id")
    return event_id if isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID_CHARS else None


def typed_event(raw: dict[str, Any]) -> ClientEvent:
    """The event that `raw` spells."""
    if "type" not in raw:
        raise ProtocolError(
            "Missing required parameter: 'type'.", code="missing_required_parameter", param="type"
        )
    kind = raw["type"]
    if not isinstance(kind, str) or kind not in EVENTS:
        supported = ", ".join(EVENTS)
        raise ProtocolError(
            f"Event type {shown(kind)} is not supported. Supported: {supported}.", param="type"
        )
    return converted(raw, EVENTS[kind])


def converted(raw: Any, target: type[T], at: str = "") -> T:
    """`raw` as `target`; `at` is the path of `raw` within its event."""
    try:
        return msgspec.convert(raw, target)
    except msgspec.ValidationError as error:
        raise _protocol_error(str(error), raw, at, target) from None


def _protocol_error(message: str, raw: Any, at: str, target: Any) -> ProtocolError:
    """msgspec's sentence on `raw` as a wire error: what is wrong, what `target` allows there, and the dotted
    path of the field."""
    what, path = _place(message)
    found = _FIELD.match(what)
    param = ".".join(part for part in (at, path.lstrip("."), found["field"] if found else "") if part)
    param = param[:MAX_PATH_CHARS]
    if what.startswith("Object missing"):
        return ProtocolError(
            f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
        )
    if what.startswith("Object contains unknown"):
        return ProtocolError(f"Unknown parameter: {shown(param)}.", code="unknown_parameter", param=param)
    is_type = what.startswith("Expected") and not _RANGE.search(what)
    code = "invalid_type" if is_type else "invalid_value"
    what = cut(_in_words(what), MAX_WHAT_CHARS)
    if what.startswith(GOT) and (allowed := _allowed(target, path, raw)):
        what += f"; allowed are {', '.join(allowed)}"
    place = f"'{param}'" if param else "value"
    return ProtocolError(f"Invalid {place}: {what}.", code=code, param=param or None)


def _in_words(what: str) -> str:
    """The commonest of msgspec's sentences without its signs; any other as it is."""
    if choice := _CHOICE.match(what):
        return GOT + what[choice.end() :]
    if wrong := _WRONG_TYPE.fullmatch(what):
        return f"{_kinds(wrong['types'])} is expected; got {_kinds(wrong['got'])}"
    if bound := _BOUND.fullmatch(what):
        size, kind = bound["number"].removesuffix(".0"), bound["type"]
        if kind is None:
            kind = bound["counted"]
            size = counted(int(bound["number"]), *COUNTED[kind])
        return f"{_kinds(kind)} of {BOUNDS[bound['sign']]} {size} is expected"
    return what


def _kinds(types: str) -> str:
    names = [name for kind in types.split(" | ") for name in KINDS[kind]]
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _place(message: str) -> tuple[str, str]:
    """What msgspec says, and where. The end of its sentence counts: a value in it may read like one."""
    what, found, path = message.rpartition(_AT)
    if not found or not path.endswith("`") or len(path) > MAX_PATH_CHARS:
        return message, ""
    return what, path[:-1]


def _allowed(target: Any, path: str, raw: Any) -> list[str]:
    """The values that `target` takes where msgspec's `path` (".name", "[0]", "[...]") leads in `raw`."""
    kinds = [*_alternatives(inspect.type_info(target))]
    for step in _STEP.finditer(path):
        kinds = [kind for kind in kinds if _is_tagged(kind, raw)] or kinds
        raw = _at(raw, step)
        inner = [each for kind in kinds for each in _inside(kind, step["name"])]
        kinds = [each for kind in inner for each in _alternatives(kind)]
    literals = [kind for kind in kinds if isinstance(kind, inspect.LiteralType)]
    numbers = [kind for kind in kinds if isinstance(kind, inspect.IntType | inspect.FloatType)]
    choices = dict.fromkeys(shown(value) for literal in literals for value in literal.values)
    return [*choices, *map(_numbers, numbers)]


def _is_tagged(kind: inspect.Type, raw: Any) -> bool:
    """Whether `raw` says that it is of this kind."""
    if not isinstance(kind, inspect.StructType) or not isinstance(raw, dict) or kind.tag_field is None:
        return False
    return cast("dict[str, Any]", raw).get(kind.tag_field) == kind.tag


def _at(raw: Any, step: re.Match[str]) -> Any:
    """What is a step further in."""
    match raw:
        case dict():
            return cast("dict[str, Any]", raw).get(step["name"] or "")
        case list() if step["index"] and int(step["index"]) < len(cast("list[Any]", raw)):
            return cast("list[Any]", raw)[int(step["index"])]
        case _:
            return None


def _numbers(kind: inspect.IntType | inspect.FloatType) -> str:
    """In words, those of the type."""
    name = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
    ends = (("from", kind.ge), ("over", kind.gt), ("to", kind.le), ("below", kind.lt))
    return " ".join([name, *(f"{word} {end:g}" for word, end in ends if end is not None)])


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    """A union's members; any other type itself."""
    if isinstance(kind, inspect.UnionType):
        yield from kind.types
    else:
        yield kind


def _inside(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """The type of a field; without a name, of what a collection holds."""
    match kind:
        case inspect.StructType():
            if name is not None and name == kind.tag_field:
                yield inspect.LiteralType((kind.tag,))
            yield from (field.type for field in kind.fields if field.encode_name == name)
        case inspect.DictType():
            yield kind.value_type
        case inspect.ListType() | inspect.VarTupleType():
            yield kind.item_type
        case _:
            pass


def check_taken(kind: str, info: ModelInfo, at: str) -> None:
    """Raise ProtocolError unless the model takes media of this kind, "audio" or "image". at: the part that
    brings it."""
    if kind not in info.inputs:
        takes = " and ".join(("text", *info.inputs))
        raise ProtocolError(f"The model {info.name} takes {takes}: leave {kind} out.", param=f"{at}.type")
