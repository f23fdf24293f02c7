"""The first line of a simulated run's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli.machine import MEASURED

if TYPE_CHECKING:
    from antiphon.metrics.log import RunStarted
    from antiphon.sim.model import SimEngine
    from antiphon.sim.run import Setup

Seed = Annotated[
    int, typer.Option(min=0, help="The same seed, the same log, byte for byte beside its first line.")
]


def first_line(setup: Setup, label: str, machine: str) -> RunStarted:
    """Says what was simulated, and nothing of when: the same run has the same log."""
    from antiphon.bench import provenance
    from antiphon.metrics.log import RunStarted

    workload = setup.workload
    return RunStarted(
        t_s=0.0,
        label=label,
        url="",
        workload=workload.name,
        seed=setup.seed,
        command=provenance.command(),
        commit=provenance.commit(),
        machine=f"simulated: {machine}",
        version=provenance.package_version(),
        unix_s=0.0,
        options={
            "preset": setup.engine.node.preset,
            "load": workload.load.model_dump(mode="json", exclude_none=True),
            "turn_detection": workload.turn_detection,
            "patience_s": setup.patience_s,
            "network_s": setup.network.delay_s,
            "decide_s": setup.costs.decide_s if setup.clock is None else MEASURED,
            "engine": engine_options(setup.engine),
        },
    )


def engine_options(engine: SimEngine) -> dict[str, Any]:
    """What its stages were given."""
    node = engine.node
    return {
        "depth": engine.depth,
        "units": [f"{unit.name} on {unit.process}/{unit.device}" for unit in node.placed],
        "max_rows": {stage: config.max_rows for stage, config in node.ar.items()},
        "kv_tokens": {stage: config.num_blocks * config.block_size for stage, config in node.ar.items()},
        "host_kv_tokens": {
            stage: config.host_blocks * config.block_size for stage, config in node.ar.items()
        },
        "step_tokens": {stage: config.step_tokens for stage, config in node.ar.items()},
    }
