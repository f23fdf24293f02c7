"""One measured run: draws the workload's scripts, plays them to the server, keeps the log."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from antiphon.bench import provenance
from antiphon.bench.logfile import LogWriter
from antiphon.bench.progress import RunProgress
from antiphon.bench.run import run
from antiphon.bench.target import DrivenServer, Pace
from antiphon.core.errors import ConfigError
from antiphon.metrics.log import RunStarted
from antiphon.workload.draw import draw
from antiphon.workload.load import load, mistakes, named
from antiphon.workload.script import Script
from antiphon.workload.spec import Workload

SESSIONS_A_PLACE = 2
"""Of a workload that ships, where it has fewer sessions than are to be kept open."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What the command line says otherwise than the workload. None: as it is.

    concurrency  makes the load closed; rate_per_s makes it open, with Poisson arrivals. A workload that ships
                 and has fewer sessions than that gets SESSIONS_A_PLACE
    max_concurrency  bounds an open load
    """

    concurrency: int | None = None
    rate_per_s: float | None = None
    max_concurrency: int | None = None
    duration_s: float | None = None
    num_sessions: int | None = None
    turn_detection: str | None = None


def workload_of(name: str, changes: Changes) -> Workload:
    """A workload by its name or file, changed. Raises ConfigError."""
    path = Path(name)
    is_file = bool(path.suffix) or path.exists()
    workload = load(path) if is_file else named(name)
    data = workload.model_dump(exclude_unset=True)
    data["load"] = _load(data["load"], changes, may_grow=not is_file)
    if changes.turn_detection is not None:
        data["turn_detection"] = changes.turn_detection
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        found = mistakes(error, json.dumps(data, default=str))
        said = "; ".join(f"{key}: {message}" for _, key, message in found)
        raise ConfigError(f"workload {name} with these options: {said}") from error


def _load(written: dict[str, Any], changes: Changes, may_grow: bool) -> dict[str, Any]:
    _refuse_contradictions(written, changes)
    (kind, load) = next((kind, load) for kind, load in written.items() if load is not None)
    ends = {key: load[key] for key in ("sessions", "duration_s") if load.get(key) is not None}
    if changes.num_sessions is not None:
        ends["sessions"] = changes.num_sessions
    if changes.duration_s is not None:
        ends["duration_s"] = changes.duration_s
        if changes.num_sessions is None:
            ends.pop("sessions", None)
    if changes.concurrency is not None:
        if may_grow and changes.num_sessions is None and ends.get("sessions", inf) < changes.concurrency:
            ends["sessions"] = SESSIONS_A_PLACE * changes.concurrency
        places = {key: load[key] for key in ("until",) if key in load}
        return {"closed": {"concurrency": changes.concurrency} | places | ends}
    bound = {} if changes.max_concurrency is None else {"max_concurrency": changes.max_concurrency}
    kept = {key: value for key, value in load.items() if key not in ("sessions", "duration_s")}
    if changes.rate_per_s is not None:
        is_bound = bound or "max_concurrency" in kept
        places = ("max_concurrency", "until") if is_bound else ()
        kept = {key: value for key, value in kept.items() if key in places}
        kept["arrivals"] = {"poisson": {"rate_per_s": changes.rate_per_s}}
        kind = "open"
    return {kind: kept | bound | ends}


def _refuse_contradictions(written: dict[str, Any], changes: Changes) -> None:
    if changes.concurrency is not None and changes.rate_per_s is not None:
        raise ConfigError(
            "--concurrency and --rate: people come by one or the other, not both; for arrivals with a bound "
            "on sessions at once, give --rate and --max-concurrency"
        )
    if changes.max_concurrency is None:
        return
    if changes.concurrency is not None:
        raise ConfigError(
            "--concurrency keeps so many sessions open, --max-concurrency bounds those that arrive; give one"
        )
    if changes.rate_per_s is None and written.get("open") is None:
        raise ConfigError(
            "--max-concurrency bounds arrivals, and in this workload people come as others leave (a closed "
            "load); give --rate as well, or --concurrency instead"
        )


def pace_of(workload: Workload, pace: Pace) -> Pace:
    """`pace` with what the workload says about who comes and how turns end."""
    return dataclasses.replace(
        pace,
        concurrency=workload.load.concurrency,
        frees_early=workload.load.frees_early,
        max_concurrency=workload.load.max_concurrency,
        duration_s=workload.load.duration_s,
        num_sessions=workload.load.sessions,
        turn_detection=workload.turn_detection,
    )


async def measure(
    workload: Workload,
    seed: int,
    target: DrivenServer,
    pace: Pace,
    log: LogWriter,
    progress: RunProgress | None,
) -> str:
    """Play the workload; `pace` gives patience and voices. Returns why the run ended."""
    pace = pace_of(workload, pace)
    scripts: Iterator[Script] = draw(workload, seed)
    log.write(
        RunStarted(
            t_s=log.now_s(),
            label=target.label,
            url=target.root,
            workload=workload.name,
            seed=seed,
            command=provenance.command(),
            commit=provenance.commit(),
            machine=provenance.machine(),
            version=provenance.package_version(),
            unix_s=time.time(),
            options={
                "model": target.model,
                "acks": target.acks,
                "load": workload.load.model_dump(mode="json", exclude_none=True),
                "turn_detection": pace.turn_detection,
                "patience_s": pace.patience_s,
                "voices": "recorded" if pace.voices else "synthetic",
            },
        )
    )
    return await run(target, scripts, pace, log, progress)
