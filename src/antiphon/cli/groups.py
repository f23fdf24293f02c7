"""Options that several commands take together: a dataclass whose fields are options, as one parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, get_type_hints

import typer

from antiphon.cli.options import Concurrency, MaxConcurrency, Rate, TurnEnd, finite

if TYPE_CHECKING:
    from antiphon.bench.experiment import Changes

P = ParamSpec("P")
R = TypeVar("R")


def grouped(command: Callable[P, R]) -> Callable[..., R]:
    """The command, with the fields of each parameter that is a dataclass in that parameter's place."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _options(groups[parameter.name])
        else:
            parameters.append(_named(parameter.name, parameter.default, hints[parameter.name]))

    @wraps(command)
    def call(**given: Any) -> R:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**made, **given)  # type: ignore[call-arg]

    del call.__wrapped__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _options(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield _named(field.name, field.default, hints[field.name])


def _named(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@dataclass(frozen=True)
class LoadOptions:
    """Who comes, and until when, where the command line says otherwise than the workload."""

    concurrency: Concurrency = None
    rate: Rate = None
    max_concurrency: MaxConcurrency = None
    duration: Annotated[
        float | None, typer.Option(min=0, callback=finite, help="Seconds until the run ends.")
    ] = None
    sessions: Annotated[int | None, typer.Option(min=1, help="Sessions until the run ends.")] = None
    turn_detection: TurnEnd = None

    @property
    def changes(self) -> Changes:
        from antiphon.bench.experiment import Changes

        return Changes(
            self.concurrency,
            self.rate,
            self.max_concurrency,
            self.duration,
            self.sessions,
            self.turn_detection,
        )
