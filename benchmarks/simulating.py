"""What simulating costs, and how it grows with the machine.

    python benchmarks/simulating.py --duration 600

LiveServe §7.1's machine (four thinkers' and four talkers' GPUs) with 64 conversations, and machines of 2 to
64 GPUs with 16 conversations per thinker for a tenth of that time. Seconds of processor and of wall clock.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from antiphon.bench import provenance
from antiphon.latency.finding import find_costs
from antiphon.metrics.log import RunStarted
from antiphon.sim.model import engine_of
from antiphon.sim.places import Replicas
from antiphon.sim.run import Setup, simulate
from antiphon.workload.load import changed, named

PER_PIPELINE = 16
NOBODY = RunStarted(
    t_s=0.0, label="", url="", workload="", seed=0, command="", commit="", machine="", version="", unix_s=0.0
)


def cost(pipelines: int, duration_s: float) -> dict[str, Any]:
    load = {"closed": {"concurrency": PER_PIPELINE * pipelines, "duration_s": duration_s}}
    costs = find_costs("h200")
    engine = engine_of(costs, replicas=Replicas(pipelines, pipelines, apart=pipelines > 1))
    setup = Setup(changed(named("voice-chat"), {"load": load}), costs, engine=engine)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    outcome = simulate(setup, NOBODY)
    return {
        "gpus": 2 * pipelines,
        "conversations": PER_PIPELINE * pipelines,
        "simulated_s": duration_s,
        "cpu_s": round(time.process_time() - cpu_s, 1),
        "wall_s": round(time.perf_counter() - wall_s, 1),
        "decisions": outcome.num_decisions,
        "log_bytes": len(outcome.log),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--duration", type=float, default=600.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    growth = [cost(pipelines, args.duration / 10) for pipelines in (1, 2, 4, 8, 16, 32)]
    provenance.keep({"liveserve": cost(4, args.duration), "growth": growth}, args.out)


if __name__ == "__main__":
    main()
