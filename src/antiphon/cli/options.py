"""Options that several commands of measuring share: what is played, to whom, for how long."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import typer

from antiphon.assembly.keys import find_key
from antiphon.assembly.preset import preset_names

PRESETS = f"{', '.join(preset_names())}, or a YAML file"
"""What may be said of presets."""


class AcksOption(StrEnum):
    """When playback is reported."""

    auto = "auto"
    always = "always"
    never = "never"


class TurnDetection(StrEnum):
    """Who ends a turn."""

    manual = "manual"
    server_vad = "server_vad"


def finite(value: float | None) -> float | None:
    """An option's callback: bounds alone let "nan" and "inf" through."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def key_option(path: str) -> Any:
    """The option that stands for a deployment's key: what it means, and the least that it may be, are said
    there."""
    field = find_key(path).field
    least = next((one.ge for one in field.metadata if hasattr(one, "ge")), None)
    return typer.Option(
        min=least,
        callback=finite if field.annotation is float else None,
        help=field.description,
    )


Url = Annotated[str, typer.Option(help="Server, ours or another: http(s)://host:port.")]
WorkloadName = Annotated[str, typer.Option(help="Name of a workload that ships, or a YAML file.")]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Sessions kept open at once (closed loop).")]
Rate = Annotated[
    float | None,
    typer.Option(min=0, callback=finite, help="Sessions that come per second, on average (open loop)."),
]
MaxConcurrency = Annotated[
    int | None,
    typer.Option(min=1, help="Sessions open at once at most, where they arrive (open loop); others wait."),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed plays the same scripts to every server.")]
TurnEnd = Annotated[TurnDetection | None, typer.Option(help="Who ends a turn, whatever the workload says.")]
Acks = Annotated[
    AcksOption, typer.Option(help="Playback reports; auto: if the server says that it knows them.")
]
Patience = Annotated[
    float, typer.Option(min=0, callback=finite, help="Seconds until a person gives up on a reply.")
]
TtfpMost = typer.Option(
    "--slo-ttfp-p90", min=0, callback=finite, help="Most seconds of P90 time to first audio."
)
ContinuityLeast = typer.Option(
    "--slo-continuity",
    min=0,
    max=1,
    callback=finite,
    help="Least share of spoken replies without a stall.",
)
TtftMost = typer.Option(
    "--slo-ttft-p90", min=0, callback=finite, help="Most seconds of P90 time to first text."
)
RecordPreset = Annotated[
    str,
    typer.Option(
        "--preset", help="The preset that was served with, where its policies do not ship with Antiphon."
    ),
]
ApiKey = Annotated[str, typer.Option(envvar="ANTIPHON_API_KEY", help="Sent as a Bearer token.")]

LOCAL_URL = "http://127.0.0.1:8000"
