"""The keys that a deployment's file may have, each with what its field says of itself."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from antiphon.assembly.deployment import Deployment, Written
from antiphon.assembly.preset import preset_names
from antiphon.assembly.registry import DECISIONS, OBSERVE
from antiphon.core.errors import ConfigError, nearest
from antiphon.latency.roofline import hardware_names

TYPES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key by its dotted path; names that people give stand as NAME in it."""

    path: str
    field: FieldInfo
    inner: type[Written] | None

    @property
    def meaning(self) -> str:
        return self.field.description or ""

    @property
    def type(self) -> str:
        return type_of(self.field.annotation)

    @property
    def allowed(self) -> str:
        """Names, bounds or a form; empty where the type says all."""
        if self.path == "preset":
            return f"{' or '.join(preset_names())}, or the path of a .yaml file"
        if self.path.endswith(".kind"):
            return " or ".join(hardware_names())
        return self.bounds

    @property
    def bounds(self) -> str:
        """What of that the field itself says, without the names of what ships beside it."""
        return ", ".join(dict.fromkeys(bounds(self.field.annotation, self.field.metadata)))

    @property
    def default(self) -> Any:
        """The default as a file would have it; None: there is none, or it is empty."""
        value = self.field.get_default(call_default_factory=True, validated_data={})
        if value is PydanticUndefined or isinstance(value, Written):
            return None
        return cast(Any, value) or None if isinstance(value, dict | list) else value

    @property
    def example(self) -> Any:
        return (self.field.examples or [None])[0]


def keys(model: type[Written] = Deployment, before: str = "") -> Iterator[Key]:
    """Every key there is, parents first."""
    for name, field in model.model_fields.items():
        inner, is_mapping = held(field.annotation)
        key = Key(before + name, field, inner)
        yield key
        if inner is not None:
            yield from keys(inner, f"{key.path}.NAME." if is_mapping else f"{key.path}.")


def find_key(path: str) -> Key:
    """What `stages.thinker.kv_tokens` says of itself. Raises ConfigError with the nearest key."""
    parts = path.split(".")
    model: type[Written] | None = Deployment
    found: Key | None = None
    at: list[str] = []
    while parts:
        name = parts.pop(0)
        if model is None or name not in model.model_fields:
            raise ConfigError(unknown([*at, name], model))
        inner, is_mapping = held(model.model_fields[name].annotation)
        at.append(name)
        found = Key(".".join(at), model.model_fields[name], inner)
        model = inner
        if is_mapping and parts:
            at.append(parts.pop(0))
    assert found is not None, "a split text has one part or more"
    return found


def model_at(loc: Sequence[int | str]) -> type[Written] | None:
    """The keys that belong where a location's last part is."""
    model: type[Written] | None = Deployment
    parts = list(loc[:-1])
    while parts and model is not None:
        field = model.model_fields.get(str(parts.pop(0)))
        if field is None:
            return None
        model, is_mapping = held(field.annotation)
        if is_mapping and parts:
            parts.pop(0)
    return model


def unknown(path: Sequence[str], model: type[Written] | None) -> str:
    """What to say of a key that is none: the nearest that is one, and which there are."""
    *parents, name = path
    where = ".".join(parents) or "a deployment"
    if model is None:
        return f"{'.'.join(path)}: {where} has no keys inside"
    known = list(model.model_fields)
    said = nearest(name, known)
    if name in ("policy", OBSERVE, *DECISIONS):
        said = "; policies are named in a preset (`preset`), which may name others for single stages."
    if not said:
        homes = [key.path for key in keys() if key.path.rpartition(".")[2] == name]
        said = f"; did you mean {homes[0]}?" if homes else ""
    return f"{'.'.join(path)}: no such key{said or '.'} Keys of {where}: {', '.join(known)}"


def held(annotation: Any) -> tuple[type[Written] | None, bool]:
    """The keys inside a field, and whether they are by names that people give."""
    if isinstance(annotation, type) and issubclass(annotation, Written):
        return annotation, False
    if get_origin(annotation) is dict:
        return held(get_args(annotation)[1])[0], True
    return None, False


def type_of(annotation: Any) -> str:
    """In words."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_of(args[0])
    if origin in (Union, types.UnionType):
        return type_of(next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        return TYPES[type(args[0])]
    if origin is list:
        return "a list of names"
    if origin is dict or held(annotation)[0] is not None:
        return "a mapping"
    return TYPES[annotation]


def bounds(annotation: Any, metadata: Sequence[Any]) -> Iterator[str]:
    """What a value must be beyond its type."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from bounds(args[0], args[1:])
    elif origin in (Union, types.UnionType):
        for arg in args:
            yield from bounds(arg, ())
    elif origin is Literal:
        yield " or ".join(str(arg) for arg in args)
    for each in metadata:
        yield from _bound(each)


def _bound(constraint: Any) -> Iterator[str]:
    if isinstance(constraint, FieldInfo):
        for each in constraint.metadata:
            yield from _bound(each)
    for name, words in (("ge", "{} or more"), ("gt", "more than {}"), ("le", "at most {}")):
        limit = getattr(constraint, name, None)
        if limit is not None:
            yield words.format(f"{limit:g}")
    if (pattern := getattr(constraint, "pattern", None)) is not None:
        yield f"of the form {pattern}"
