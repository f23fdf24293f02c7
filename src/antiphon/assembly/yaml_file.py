"""YAML that operators write, read by the safe loader: every value with its line, and no key twice."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from math import isnan
from pathlib import Path
from typing import Any, cast

import yaml

from antiphon.core.errors import ConfigError, system_words

MAX_BYTES = 1 << 20
MAX_NODES = 100_000
MIN_INT, MAX_INT = -(1 << 63), (1 << 63) - 1


def shipped(folder: Traversable) -> tuple[str, ...]:
    """Names of the files that come with the package there."""
    return tuple(sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml")))


def read(file: str | Path, where: str, what: str) -> str:
    """The text of an operator's file. Raises ConfigError where it cannot be read, or is too large for what it
    should be (`what`)."""
    try:
        path = Path(file).expanduser()
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{where}: over {MAX_BYTES} bytes, which no {what} needs")
        return path.read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{where}: can't be read as a {what} ({system_words(error)})") from error


def parse(text: str, where: str, what: str) -> tuple[dict[str, Any], Any]:
    """The mapping that the text is, and its nodes. `what` names in errors what it should be. Raises
    ConfigError, also for keys that are no text or stand there twice, and for what aliases blow up."""
    try:
        node = cast(Any, yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{where}: {what}; this is not")
        _check_nodes(node, where)
        return yaml.safe_load(text), node
    except RecursionError:
        raise ConfigError(f"{where}: nested too deep, which no file needs") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        said = getattr(error, "problem", None) or error
        raise ConfigError(f"{where}{line}: not valid YAML: {said}") from error


def child(node: Any, part: str) -> tuple[int, Any] | None:
    """The line and the value of a key (or of a place in a list); None where it is not written there."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if spaced(key.value) == part:
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
        inner = node.value[int(part)]
        return inner.start_mark.line + 1, inner
    return None


def spaced(name: Any) -> Any:
    """`a->b` is `a -> b`."""
    if not isinstance(name, str) or "->" not in name:
        return name
    return " -> ".join(part.strip() for part in name.split("->"))


def check_plain(name: str, value: Any) -> None:
    """Raises ConfigError unless the value is null, a bool, a number, text, or a list or map of those: others
    (dates, sets, nan) come out of a record otherwise than they went in."""
    if isinstance(value, dict):
        for key, inner in cast(dict[str, Any], value).items():
            check_plain(name, key)
            check_plain(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for index, inner in enumerate(cast(list[Any], value)):
            check_plain(f"{name}[{index}]", inner)
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise ConfigError(f"{name} is a {type(value).__name__}, which no record can hold; put it in quotes")
    elif isinstance(value, float) and isnan(value):
        raise ConfigError(f"{name} is nan, which is not a number")
    elif isinstance(value, int) and not MIN_INT <= value <= MAX_INT:
        raise ConfigError(f"{name} is a number of over 64 bits, which no record can hold")
    elif isinstance(value, str) and value.encode("utf-8", "replace").decode() != value:
        raise ConfigError(f"{name} is {value!r}, which is not text")


def _check_nodes(node: Any, where: str) -> None:
    waiting, count = [node], 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count > MAX_NODES:
            raise ConfigError(f"{where}: over {MAX_NODES} values with its aliases, which no file needs")
        if isinstance(node, yaml.SequenceNode):
            waiting += cast(list[Any], node.value)
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, where)
            waiting += [value for _, value in node.value]


def _check_keys(node: yaml.MappingNode, where: str) -> None:
    names: set[str] = set()
    for key, _ in node.value:
        at = f"{where}:{key.start_mark.line + 1}"
        if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
            shown = key.value if isinstance(key.value, str) else "it"
            raise ConfigError(f"{at}: a key must be text, and {shown!r} is not; put it in quotes")
        name = spaced(key.value)
        if name in names:
            raise ConfigError(f"{at}: {name} is there twice; keep one")
        names.add(name)
