"""Workloads from YAML: a file of one's own, or one that ships with the package."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, cast, get_args

import yaml
from pydantic import Tag, ValidationError

from antiphon.core.errors import ConfigError, nearest, no_such, system_words
from antiphon.workload.laws import Spec
from antiphon.workload.spec import Workload
from antiphon.workload.trace_tables import quantile_tables
from antiphon.workload.traces import sessions_of

Place = tuple[str | None, type[Spec]]

_LIBRARY = files("antiphon.workload").joinpath("library")


def names() -> tuple[str, ...]:
    """Workloads that ship with the package."""
    return tuple(sorted(file.name[:-5] for file in _LIBRARY.iterdir() if file.name.endswith(".yaml")))


def named(name: str) -> Workload:
    """Raises ConfigError for a name that does not exist."""
    if name not in names():
        raise ConfigError(no_such("workload", name, names(), ", or the path of a YAML file"))
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
        raise ConfigError(f"{path}: can't be read as a workload ({system_words(error)})") from error
    workload = parsed(text, str(path), path.parent)
    if workload.trace is None:
        return workload
    trace = workload.trace.model_copy(update={"file": str(found(workload.trace.file, path.parent))})
    sessions_of(trace)
    return workload.model_copy(update={"trace": trace})


def found(file: str, folder: Path) -> Path:
    """A file that is named in a workload of this folder, with $NAME and ~ expanded."""
    return folder / Path(os.path.expandvars(file)).expanduser()


def parsed(text: str, where: str, folder: Path = Path()) -> Workload:
    """`where` names the text in errors; files that it names lie in `folder`."""
    try:
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(
            f"{where}{line}: not valid YAML: {getattr(error, 'problem', None) or error}"
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(
            f"{where}: a workload is a mapping with `name`, `load` and `people`; this is {data!r}"
        )
    try:
        return Workload.model_validate(with_measured(data, folder))
    except ValidationError as error:
        raise ConfigError(f"{where}: {explained(error, text)}") from error


def with_measured(data: Any, folder: Path) -> Any:
    """Laws written `{measured: {file: ..., measure: ...}}` become the quantiles that stand in that file."""
    if isinstance(data, list):
        return [with_measured(each, folder) for each in cast(list[Any], data)]
    if not isinstance(data, dict):
        return data
    inner = cast(dict[Any, Any], data)
    if inner.keys() == {"measured"} and isinstance(inner["measured"], dict):
        return {"quantiles": measured(cast(dict[str, Any], inner["measured"]), folder)}
    return {key: with_measured(value, folder) for key, value in inner.items()}


def measured(law: dict[str, Any], folder: Path) -> dict[float, float]:
    if law.keys() != {"file", "measure"}:
        raise ConfigError(f"measured: expected the keys file and measure, not {', '.join(map(str, law))}")
    path = found(str(law["file"]), folder)
    try:
        tables = quantile_tables(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read as a table of quantiles ({system_words(error)})") from error
    if law["measure"] not in tables:
        raise ConfigError(f"{path}: no measure {law['measure']!r}; it has {', '.join(tables) or 'none'}")
    return tables[law["measure"]]


def changed(workload: Workload, settings: Mapping[str, Any]) -> Workload:
    """A copy of the workload with other values at some keys, such as `load.closed.concurrency` or
    `people.talker.barge_in.probability`: a sweep needs one file. Values are what YAML would hold.

    Raises ConfigError for a key or value that can't be.
    """
    data: dict[str, Any] = workload.model_dump(mode="python", exclude_unset=True)
    for key, value in settings.items():
        *parents, last = key.split(".")
        inner = data
        for parent in parents:
            inner = _inside(inner, parent, key)
        inner[last] = value
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        text = json.dumps(data, default=str)
        said = "; ".join(f"{key}: {message}" for _, key, message in mistakes(error, text))
        raise ConfigError(f"workload {workload.name!r} can't be changed: {said}") from error


def _inside(data: dict[str, Any], parent: str, key: str) -> dict[str, Any]:
    inner: Any = data.setdefault(parent, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"{key}: there are no keys inside {parent!r}, which is {inner!r}")
    return cast(dict[str, Any], inner)


def explained(error: ValidationError, text: str) -> str:
    """Every mistake with its key's path and line."""
    said = [f"line {line}: {key}: {message}" for line, key, message in mistakes(error, text)]
    return said[0] if len(said) == 1 else "\n  ".join(["", *said])


def mistakes(error: ValidationError, text: str) -> list[tuple[int, str, str]]:
    """(line, key's path, what is wrong) for each, by line."""
    tree = cast(Any, yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    found: list[tuple[int, str, str]] = []
    for mistake in error.errors(include_url=False):
        keys, line = written(tree, mistake["loc"])
        message = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            message = _no_such(mistake["loc"])
        found.append((line, ".".join(keys) or "the workload", message[0].lower() + message[1:]))
    return sorted(found)


def _no_such(loc: tuple[int | str, ...]) -> str:
    """What to say of the key that `loc` ends with: the nearest that is one, and which there are."""
    places: list[Place] = [(None, Workload)]
    for part in loc[:-1]:
        chosen: list[Place] = [(None, model) for tag, model in places if tag == part]
        fields = (model.model_fields.get(str(part)) for _, model in places)
        within = [place for field in fields if field is not None for place in _places(field.annotation)]
        places = chosen or within or places  # an index and a name of one's own lead nowhere else
    known = list(dict.fromkeys(name for _, model in places for name in model.model_fields))
    return f"no such key{nearest(str(loc[-1]), known) or '.'} There are {', '.join(known)}"


def _places(annotation: Any, tag: str | None = None) -> Iterator[Place]:
    """The models in a field's type, each with the tag that an error names it by in a union."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield tag, annotation
        return
    for each in get_args(annotation):
        tags = [one.tag for one in getattr(each, "__metadata__", ()) if isinstance(one, Tag)]
        yield from _places(each, tags[0] if tags else tag)


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
