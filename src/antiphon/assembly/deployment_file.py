"""Deployments from YAML: one that ships, or a file of one's own that may begin with another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from antiphon.assembly.deployment import Deployment
from antiphon.assembly.keys import model_at, unknown
from antiphon.assembly.preset import is_path
from antiphon.assembly.registry import DECISIONS, OBSERVE
from antiphon.assembly.yaml_file import child, parse, read, shipped, spaced
from antiphon.core.errors import ConfigError, no_such
from antiphon.latency.roofline import datasheet_name

Tree = dict[str, Any]

_LIBRARY = files("antiphon.assembly").joinpath("deployments")


@dataclass(frozen=True, slots=True)
class DeploymentSource:
    """One file: what it is called in errors, what it says, and where files that it names are."""

    where: str
    tree: Tree
    node: Any
    folder: Path | None


def deployment_names() -> tuple[str, ...]:
    """Deployments that ship with the package."""
    return shipped(_LIBRARY)


def read_deployment(what: str) -> Deployment:
    """The deployment with this name, or in the file with this path, on top of all that it is based on.

    Raises ConfigError with the file, the line and the key that is wrong, and what is allowed there.
    """
    chain = list(_chain(what))
    if chain[0].tree and not chain[0].tree.keys() - {*DECISIONS, OBSERVE}:
        raise ConfigError(
            f"{chain[0].where} is a preset: give it as --preset, or as `preset` of a deployment"
        )
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


def _chain(what: str) -> Iterator[DeploymentSource]:
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


def _open(what: str, folder: Path | None) -> DeploymentSource:
    """`folder` None: of a deployment that ships, which is based on others that ship only."""
    if what in deployment_names():
        text = _LIBRARY.joinpath(f"{what}.yaml").read_text(encoding="utf-8")
        return _parsed(text, f"{what} (shipped)", None)
    if folder is None or not (what.endswith((".yaml", ".yml")) or "/" in what or (folder / what).is_file()):
        raise ConfigError(no_such("deployment", what, deployment_names(), ", or a file's path"))
    path = (folder / Path(what).expanduser()).resolve()
    return _parsed(read(path, str(path), "deployment"), str(path), path.parent)


def _parsed(text: str, where: str, folder: Path | None) -> DeploymentSource:
    tree, node = parse(text, where, "a deployment is a mapping of keys such as `stages`")
    edges, preset = tree.get("edges"), tree.get("preset")
    if isinstance(edges, dict):
        tree["edges"] = {spaced(key): edge for key, edge in cast(dict[str, Any], edges).items()}
    if isinstance(preset, str) and is_path(preset) and folder is not None:
        tree["preset"] = str((folder / Path(preset).expanduser()).resolve())
    profile = tree.get("profile")
    if isinstance(profile, str) and folder is not None and datasheet_name(profile) is None:
        tree["profile"] = str((folder / Path(profile).expanduser()).resolve())
    parts = tree.get("parts")
    if isinstance(parts, dict) and folder is not None:
        tree["parts"] = {part: _located(named, folder) for part, named in cast(Tree, parts).items()}
    return DeploymentSource(where, tree, node, folder)


def _located(named: Any, folder: Path) -> Any:
    """A part's directory or GGUF as an absolute path; a hub id (org/name, and no such path) as it is."""
    if not isinstance(named, str) or not named:
        return named
    path = folder / Path(named).expanduser()
    is_hub_id = named.count("/") == 1 and named[0] not in "./~" and not path.exists()
    return named if is_hub_id else str(path.resolve())


def _explained(mistake: Any, chain: Sequence[DeploymentSource]) -> str:
    loc = [str(part) for part in mistake["loc"] if part != "[key]"]
    place = next((_place(source, loc) for source in chain if _line(source.node, loc)), None)
    place = place or _place(chain[0], loc)
    if mistake["type"] == "extra_forbidden":
        return f"{place}: {unknown(loc, model_at(loc))}"
    message = str(mistake["msg"]).removeprefix("Value error, ")
    given = "" if isinstance(mistake["input"], dict | list) else f" (it is {mistake['input']!r})"
    return f"{place}: {'.'.join(loc)}: {message[0].lower()}{message[1:]}{given}"


def _place(source: DeploymentSource, loc: Sequence[str]) -> str:
    """File, and the line where so much of the location is written."""
    for length in range(len(loc), 0, -1):
        if line := _line(source.node, loc[:length]):
            return f"{source.where}:{line}"
    return source.where


def _line(node: Any, loc: Sequence[str]) -> int | None:
    """The line of a key; None where it is not written there."""
    line: int | None = None
    for part in loc:
        found = child(node, part)
        if found is None:
            return None
        line, node = found
    return line
