"""Small simulated runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from antiphon.metrics.log import RunStarted
from antiphon.sim.model import released
from antiphon.sim.places import Replicas
from antiphon.sim.run import Outcome, Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named
from sim.linear import LinearCosts

SMALL = Sizes(max_rows=4, kv_tokens=8192, step_tokens=512, max_context_tokens=4096)
TWO_EACH = Replicas(2, 2, apart=True)


def started(seed: int = 0) -> RunStarted:
    return RunStarted(
        t_s=0.0,
        label="sim",
        url="",
        workload="test",
        seed=seed,
        command="",
        commit="",
        machine="",
        version="",
        unix_s=0.0,
    )


def setup(
    workload: str = "barge-in", seed: int = 0, settings: dict[str, Any] | None = None, **others: Any
) -> Setup:
    """A workload that ships, changed, on a small machine."""
    asked = {"load": {"closed": {"concurrency": 4, "duration_s": 25.0}}} | (settings or {})
    made = Setup(changed(named(workload), asked), LinearCosts(), seed=seed, engine=released(sizes=SMALL))
    return replace(made, **others)


def outcome(*args: Any, **options: Any) -> Outcome:
    made = setup(*args, **options)
    return simulate(made, started(made.seed))
