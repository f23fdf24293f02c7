"""Workloads from YAML: a file of one's own, or one that ships with the package."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from antiphon.core.errors import ConfigError
from antiphon.workload.spec import Workload
from antiphon.workload.traces import sessions_of

_LIBRARY = files("antiphon.workload").joinpath("library")


def names() -> tuple[str, ...]:
    """Workloads that ship with the package."""
    return tuple(sorted(file.name[:-5] for file in _LIBRARY.iterdir() if file.name.endswith(".yaml")))


def named(name: str) -> Workload:
    """Raises ConfigError for a name that does not exist."""
    if name not in names():
        raise ConfigError(
            f"unknown workload {name!r}; known: {', '.join(names())}, or the path of a YAML file"
        )
    return parsed(_LIBRARY.joinpath(f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")


def find(what: str) -> Workload:
    """The workload with this name, or in the file with this path. Raises ConfigError."""
    if what in names():
        return named(what)
    is_path = what.endswith((".yaml", ".yml")) or "/" in what or Path(what).is_file()
    return load(Path(what)) if is_path else named(what)


def load(path: Path) -> Workload:
    """A workload file, and its trace read once to see that it can be.

    Raises ConfigError with the file and the line (YAML, traces) or the key that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read as a workload ({error})") from error
    workload = parsed(text, str(path))
    if workload.trace is None:
        return workload
    file = Path(os.path.expandvars(workload.trace.file)).expanduser()
    trace = workload.trace.model_copy(update={"file": str(path.parent / file)})
    sessions_of(trace)
    return workload.model_copy(update={"trace": trace})


def parsed(text: str, where: str) -> Workload:
    """`where` names the text in errors."""
    try:
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: no YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(data, dict):
        raise ConfigError(
            f"{where}: a workload is a mapping with `name`, `load` and `people`; this is {data!r}"
        )
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explained(error, text)}") from error


def explained(error: ValidationError, text: str) -> str:
    """Every mistake with its key's path and line."""
    tree = cast(Any, yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    lines: list[str] = []
    for mistake in error.errors(include_url=False):
        keys, line = written(tree, mistake["loc"])
        path = ".".join(keys) or "the workload"
        message = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            message = "no such key"
        lines.append(f"line {line}: {path}: {message[0].lower()}{message[1:]}")
    return lines[0] if len(lines) == 1 else "\n  ".join(["", *lines])


def written(node: Any, loc: tuple[int | str, ...]) -> tuple[list[str], int]:
    """The part of an error's location that is really written (tags of unions are not, and a tag is there
    twice where it is also the key), and the line of its end."""
    keys: list[str] = []
    line: int = node.start_mark.line + 1
    for part in loc:
        found = child(node, part)
        if found is None:
            continue
        line, node = found
        keys.append(str(part))
    missing = loc and str(loc[-1]) not in keys[-1:]
    return [*keys, str(loc[-1])] if missing and isinstance(node, yaml.MappingNode) else keys, line


def child(node: Any, part: int | str) -> tuple[int, Any] | None:
    """(line, node) under a key or at an index."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    return None
