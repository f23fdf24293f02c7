"""The baselines on the papers' workloads: the two problems that LiveServe starts from (§2.3, Figures 3 to 5).

    python benchmarks/evaluation.py checkpoints/demo --work evaluation

Simulated is Qwen3-Omni-30B-A3B on H200 GPUs as their datasheet has them; measured is the demo checkpoint on
this machine's CPU, served and played over the wire. Results are kept in benchmarks/results (two files,
evaluation-simulated.json and evaluation-measured.json), figures and tables in docs. Parts that --work has
are not run again. About 15 minutes of two cores; --only simulated, measured or draw.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from evaluation_measured import HOST_KV_TOKENS, KV_TOKENS, measured_run
from evaluation_plots import draw
from evaluation_simulated import HARDWARE, SIMULATED_KV_TOKENS, completion, lead, load, reloads, table

from antiphon.bench import provenance

HERE = Path(__file__).parent
RESULTS, DOCS = HERE / "results", HERE.parent / "docs"
CLOSED = (4, 8, 16, 24, 32)
SYSTEMS = ("fcfs", "fcfs+lru")
BARGE_INS = (0.0, 0.3, 0.7, 1.0)
CONTEXTS = (1000, 2000, 4000, 8000, 16000)
Part = Callable[[], Any]


def simulated_parts() -> dict[str, Part]:
    """By name, in the order in which they are run."""
    parts: dict[str, Part] = {"completion": completion}
    parts |= {
        f"load-{system}-{n}": _load(system, n)
        for system in (*SYSTEMS, "fcfs+lru-slow", "roomy")
        for n in CLOSED
    }
    parts |= {f"lead-{share:g}": _lead(share) for share in BARGE_INS}
    parts |= {f"reload-{tokens}": _reload(tokens) for tokens in CONTEXTS}
    grid = product(("sharegpt-speech", "mixed", "interactive"), (0.5, 0.0), ("burstgpt", "poisson"), SYSTEMS)
    for workload, share, arrivals, system in grid:
        parts[f"table-{workload}-{arrivals}-{share:g}-{system}"] = _table(workload, arrivals, share, system)
    return parts


def _load(system: str, conversations: int) -> Part:
    return lambda: load(system, conversations)


def _lead(share: float) -> Part:
    return lambda: lead(share)


def _reload(tokens: int) -> Part:
    return lambda: reloads(tokens)


def _table(workload: str, arrivals: str, share: float, system: str) -> Part:
    return lambda: table(workload, arrivals, share, system)


def measured_parts(checkpoint: str, work: Path) -> dict[str, Part]:
    return {
        f"{system}-{share:g}": _measured(checkpoint, work, system, share)
        for share, system in product((0.0, 0.5), SYSTEMS)
    }


def _measured(checkpoint: str, work: Path, system: str, share: float) -> Part:
    return lambda: asyncio.run(measured_run(checkpoint, work, system, share))


def run_all(parts: dict[str, Part], work: Path, until_s: float) -> dict[str, Any]:
    """What each part gives; kept in a file each. Once the budget is spent, of those that are there."""
    found: dict[str, Any] = {}
    for number, (name, part) in enumerate(parts.items(), 1):
        path = work / f"{name}.json"
        if not path.exists():
            if time.monotonic() > until_s:
                sys.stderr.write(
                    f"{name}: not run, the budget is spent; the same command goes on from here\n"
                )
                continue
            sys.stderr.write(f"{number} of {len(parts)}: {name}\n")
            path.write_text(json.dumps(part()))
        found[name] = json.loads(path.read_text())
    return found


def keep(result: dict[str, Any], name: str) -> None:
    provenance.keep(result, RESULTS / f"evaluation-{name}.json")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--work", type=Path, default=Path("evaluation"), help="directory of what is done")
    parser.add_argument("--only", choices=("simulated", "measured", "draw"))
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which nothing new is begun")
    arguments = parser.parse_args()
    only, until_s = arguments.only, time.monotonic() + arguments.budget
    work: Path = arguments.work
    for name in ("simulated", "measured"):
        (work / name).mkdir(parents=True, exist_ok=True)
    if only in (None, "simulated"):
        runs = run_all(simulated_parts(), work / "simulated", until_s)
        keep({"hardware": HARDWARE, "kv_tokens": SIMULATED_KV_TOKENS, "runs": runs}, "simulated")
    if only in (None, "measured"):
        runs = run_all(measured_parts(arguments.checkpoint, work / "measured"), work / "measured", until_s)
        sizes = {"kv_tokens": KV_TOKENS, "host_kv_tokens": HOST_KV_TOKENS}
        keep({"model": Path(arguments.checkpoint).name, **sizes, "runs": runs}, "measured")
    kept = [RESULTS / f"evaluation-{name}.json" for name in ("simulated", "measured")]
    if all(path.exists() for path in kept):
        simulated, measured = (json.loads(path.read_text()) for path in kept)
        draw(simulated["runs"], measured["runs"], DOCS)


if __name__ == "__main__":
    main()
