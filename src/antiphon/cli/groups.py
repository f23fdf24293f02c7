"""Options that several commands take together: a dataclass whose fields are options, as one parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, ParamSpec, TypeVar, get_args, get_type_hints

import typer

from antiphon.cli.options import (
    Concurrency,
    ContinuityLeast,
    MaxConcurrency,
    Patience,
    Rate,
    TtfpMost,
    TurnEnd,
    WorkloadName,
    finite,
    key_option,
)
from antiphon.core.config import EngineOptions

if TYPE_CHECKING:
    from antiphon.bench.experiment import Changes
    from antiphon.metrics.slo import Slo
    from antiphon.workload.spec import Workload

P = ParamSpec("P")
R = TypeVar("R")


def grouped(command: Callable[P, R]) -> Callable[..., R]:
    """The command, with the fields of each parameter that is a dataclass in that parameter's place. Help has
    them under the class's `panel`, if there is one."""
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
        kind, option = get_args(hints[field.name])
        option = copy(option)
        option.rich_help_panel = getattr(group, "panel", option.rich_help_panel)
        yield _named(field.name, field.default, Annotated[kind, option])


def _named(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


ENGINE = EngineOptions()
"""The engine's options where nothing is said."""


@dataclass(frozen=True)
class EngineFlags:
    """How the engine runs: fields of EngineOptions (see `engine_options`)."""

    panel: ClassVar[str] = "The model and its machine"
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = ENGINE.device
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = ENGINE.dtype
    attention: Annotated[
        str,
        typer.Option(help="auto, cpu-bf16, cpu, reference, or flashinfer or triton (both unverified)."),
    ] = ENGINE.attention
    threads: Annotated[int, typer.Option(help="CPU threads of the engine; 0 leaves torch's default.")] = (
        ENGINE.threads
    )
    depth: Annotated[
        int | None, typer.Option(help="Steps in flight, 0 or 1; by default 1 on CUDA and 0 on a CPU.")
    ] = ENGINE.depth
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Decode with CUDA graphs (unverified; CUDA only).")
    ] = False
    tensor_parallel: Annotated[
        int, typer.Option(help="Processes that compute each decoder together (CPU only).")
    ] = ENGINE.tensor_parallel
    load_format: Annotated[
        str,
        typer.Option(help="auto, or dummy: random weights, for which config and tokenizer are enough."),
    ] = ENGINE.load_format


@dataclass(frozen=True)
class EngineSizes:
    """Fields of EngineOptions."""

    panel: ClassVar[str] = "Memory and limits"
    max_rows: Annotated[
        int,
        typer.Option(
            help="Requests that run at once in a stage; 0: by the model and the machine, as `antiphon doctor "
            "--model` explains it.",
        ),
    ] = ENGINE.max_rows
    kv_tokens: Annotated[
        int,
        typer.Option(help="KV capacity of each stage, in tokens; 0: by the memory that is free."),
    ] = ENGINE.kv_tokens
    max_context_tokens: Annotated[int, key_option("limits.max_context_tokens")] = ENGINE.max_context_tokens


def engine_options(said: dict[str, Any]) -> dict[str, Any]:
    """What was said, by the names that EngineOptions has for it."""
    graphs = {"graphs": "on" if said.pop("cuda_graphs") else "off"} if "cuda_graphs" in said else {}
    return said | graphs


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


@dataclass(frozen=True)
class PeopleOptions(LoadOptions):
    """Who comes, and how long each waits for a reply."""

    workload: WorkloadName = "smoke"
    patience: Patience = 60.0

    @property
    def played(self) -> Workload:
        """Raises ConfigError."""
        from antiphon.bench.experiment import workload_of

        return workload_of(self.workload, self.changes)


@dataclass(frozen=True)
class ChatOptions(PeopleOptions):
    """Who comes, people who talk unless it is said otherwise."""

    workload: WorkloadName = "voice-chat"


@dataclass(frozen=True)
class KeptOptions:
    """Where runs are kept."""

    out: Annotated[Path, typer.Option(help="Directory of logs and result.")] = Path("comparison")
    resume: Annotated[bool, typer.Option(help="Go on with what is in --out.")] = False


@dataclass(frozen=True)
class SpeechBounds:
    """What speech is held to."""

    slo_ttfp_p90: Annotated[float, TtfpMost] = 1.0
    slo_continuity: Annotated[float, ContinuityLeast] = 0.95

    @property
    def slo(self) -> Slo:
        from antiphon.metrics.slo import Slo

        return Slo(ttfp_p90_s=self.slo_ttfp_p90, continuity=self.slo_continuity)
