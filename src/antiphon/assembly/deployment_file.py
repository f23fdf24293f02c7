"""Deployments from YAML: one that ships, or a file of one's own that may begin with another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from antiphon.assembly.deployment import Deployment
from antiphon.assembly.keys import model_at, nearest, unknown
from antiphon.core.errors import ConfigError

Tree = dict[str, Any]

MAX_BYTES = 1 << 20
MAX_NODES = 100_000
_ARROW = re.compile(r"\s*->\s*")
_LIBRARY = files("antiphon.assembly").joinpath("deployments")


@dataclass(frozen=True, slots=True)
class Source:
    """One file: what it is called in errors, what it says, and where files that it names are."""

    where: str
    tree: Tree
    node: Any
    folder: Path | None


def deployment_names() -> tuple[str, ...]:
    """Deployments that ship with the package."""
    return tuple(sorted(file.name[:-5] for file in _LIBRARY.iterdir() if file.name.endswith(".yaml")))


def read_deployment(what: str) -> Deployment:
    """The deployment with this name, or in the file with this path, on top of all that it is based on.

    Raises ConfigError with the file, the line and the key that is wrong, and what is allowed there.
    """
    chain = list(_chain(what))
    merged: Tree = {}
    for source in reversed(chain):
        merged = merge(merged, {key: value for key, value in source.tree.items() if key != "base"})
    base = chain[0].tree.get("base")
    try:
        return Deployment.model_validate(merged if base is None else {"base": base, **merged})
    except ValidationError as error:
        said = [_explained(mistake, chain) for mistake in error.errors(include_url=False)]
        raise ConfigError("\n".join(said)) from None


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """`over` laid on `base`: mappings key by key, all else replaced, and null takes a key away."""
    merged: Tree = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            inner = cast(Tree, value)
            merged[key] = merge(cast(Tree, below) if isinstance(below, dict) else {}, inner)
        else:
            merged[key] = value
    return merged


def _chain(what: str) -> Iterator[Source]:
    """The file, then what it is based on, and so on."""
    seen: list[str] = []
    folder: Path | None = Path()
    while True:
        source = _open(what, folder)
        if source.where in seen:
            raise ConfigError(f"base: {' -> '.join([*seen, source.where])} go in a circle; take one out")
        yield source
        seen.append(source.where)
        base = source.tree.get("base")
        if base is None:
            return
        if not isinstance(base, str):
            raise ConfigError(f"{_place(source, ('base',))}: base is {base!r}; it must be a name or a path")
        what, folder = base, source.folder


def _open(what: str, folder: Path | None) -> Source:
    """`folder` None: of a deployment that ships, which is based on others that ship only."""
    if what in deployment_names():
        text = _LIBRARY.joinpath(f"{what}.yaml").read_text(encoding="utf-8")
        return _parsed(text, f"{what} (shipped)", None)
    if folder is None or not (what.endswith((".yaml", ".yml")) or "/" in what or (folder / what).is_file()):
        known = deployment_names()
        said = nearest(what, known)
        raise ConfigError(
            f"no deployment {what!r}{said or ';'} There are {', '.join(known)}, or a file's path"
        )
    path = (folder / Path(what).expanduser()).resolve()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path}: over {MAX_BYTES} bytes, which no deployment needs")
        return _parsed(path.read_text(encoding="utf-8"), str(path), path.parent)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read as a deployment ({error})") from error


def _parsed(text: str, where: str, folder: Path | None) -> Source:
    try:
        node = cast(Any, yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{where}: a deployment is a mapping of keys such as `stages`; this is none")
        _check_nodes(node, where)
        tree: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: no YAML: {getattr(error, 'problem', None) or error}") from error
    edges = tree.get("edges")
    if isinstance(edges, dict):
        tree["edges"] = {_spaced(key): edge for key, edge in cast(dict[str, Any], edges).items()}
    return Source(where, tree, node, folder)


def _check_nodes(node: Any, where: str) -> None:
    """Raises ConfigError for keys that are no text or stand there twice, and for what aliases blow up."""
    waiting, count = [node], 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count > MAX_NODES:
            raise ConfigError(f"{where}: over {MAX_NODES} values with its aliases, which no deployment needs")
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
            raise ConfigError(f"{at}: a key must be text, and {shown!r} is none; put it in quotes")
        name = _spaced(key.value)
        if name in names:
            raise ConfigError(f"{at}: {name} stands there twice; keep one")
        names.add(name)


def _explained(mistake: Any, chain: Sequence[Source]) -> str:
    loc = [str(part) for part in mistake["loc"] if part != "[key]"]
    place = next((_place(source, loc) for source in chain if _line(source.node, loc)), None)
    place = place or _place(chain[0], loc)
    if mistake["type"] == "extra_forbidden":
        return f"{place}: {unknown(loc, model_at(loc))}"
    message = str(mistake["msg"]).removeprefix("Value error, ")
    given = "" if isinstance(mistake["input"], dict | list) else f" (it is {mistake['input']!r})"
    return f"{place}: {'.'.join(loc)}: {message[0].lower()}{message[1:]}{given}"


def _place(source: Source, loc: Sequence[str]) -> str:
    """File, and the line where so much of the location is written."""
    for length in range(len(loc), 0, -1):
        if line := _line(source.node, loc[:length]):
            return f"{source.where}:{line}"
    return source.where


def _line(node: Any, loc: Sequence[str]) -> int | None:
    """The line of a key; None where it is not written there."""
    line: int | None = None
    for part in loc:
        found = _child(node, part)
        if found is None:
            return None
        line, node = found
    return line


def _child(node: Any, part: str) -> tuple[int, Any] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if _spaced(key.value) == part:
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
        inner = node.value[int(part)]
        return inner.start_mark.line + 1, inner
    return None


def _spaced(name: Any) -> Any:
    """`a->b` is `a -> b`."""
    return _ARROW.sub(" -> ", name.strip()) if isinstance(name, str) and "->" in name else name
