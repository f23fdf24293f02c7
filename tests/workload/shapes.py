"""Small workloads and where the shared traces are."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from antiphon.workload.draw import draw
from antiphon.workload.script import PersonScript, Script
from antiphon.workload.spec import Workload

TRACES = Path(os.environ.get("ANTIPHON_TRACES", "none-such"))
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="ANTIPHON_TRACES names no folder of traces")


def workload(load: dict[str, Any] | None = None, **parts: Any) -> Workload:
    if not parts.keys() & {"people", "jobs", "agents"}:
        parts["people"] = {"talker": {"turns": 1}}
    load = load or {"closed": {"concurrency": 1, "sessions": 5}}
    return Workload.model_validate({"name": "test", "load": load, **parts})


def talkers(sessions: int = 5, **laws: Any) -> Workload:
    return workload({"closed": {"concurrency": 1, "sessions": sessions}}, people={"talker": laws})


def opened(arrivals: dict[str, Any], **bounds: Any) -> Workload:
    return workload({"open": {"arrivals": arrivals, **bounds}})


def drawn(chosen: Workload, seed: int = 0, at_most: int = 1000) -> list[Script]:
    return list(islice(draw(chosen, seed), at_most))


def people(chosen: Workload, seed: int = 0) -> list[PersonScript]:
    return [script for script in drawn(chosen, seed) if isinstance(script, PersonScript)]
