"""LiveServe's memory (§5) on the real engine, where pasts do not fit the device: beside LRU offloading, at
the same time, a core each.

    python benchmarks/liveserve_engine_memory.py --out FILE

As liveserve_engine.py runs its pairs. The medium demo is served over the wire to people who talk for 10 to
30 s a turn and hear a short reply. The thinker's device holds a share of what their pasts amount to, and the
link to the host is held to a rate (`link_gb_s`). Turns are paired by seed, person and number; those count
that wait for KV from the host under the baseline, as its record says. Their first text is timed by the
client.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from liveserve_engine import CORES, started, talk
from liveserve_memory import SYSTEMS, told, waits_for_kv

from antiphon.assembly.storyteller import Storyteller
from antiphon.bench import provenance
from antiphon.bench.logfile import read
from antiphon.checkpoint.demo import make_demo
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.runtime.record import read_record

SEEDS = (0, 1, 2, 3, 4)
PEOPLE, DURATION_S = 6, 160.0
PASTS_TOKENS = 12_288
"""What so many conversations hold towards the end of a run."""
HOST_TOKENS = 1 << 18
CASES = ((0.35, 0.01), (0.35, 0.02), (2.0, 0.02))
"""Shares of it that the device holds, and GB/s; in the last memory is never short."""
SPEAKS = {
    "turns": 40,
    "speech": {"seconds": {"uniform": [10, 30]}},
    "think_s": {"uniform": [1, 4]},
    "max_output_tokens": {"uniform": [8, 16]},
    "reply_s": {"uniform": [0.5, 2]},
}
TOLD = ("transcript_ttft_s.p50", "transcript_ttft_s.p90", "ttfp_s.p50", "ttfp_s.p90", "continuity", "turns")


def workload(work: Path) -> Path:
    path = work / "long-turns.yaml"
    said = {
        "name": path.stem,
        "description": "Conversations of long spoken turns.",
        "load": {"closed": {"concurrency": PEOPLE, "duration_s": DURATION_S}},
        "people": {"talker": SPEAKS},
    }
    path.write_text(yaml.safe_dump(said))
    return path


def deployed(system: str, pool: float, gb_per_s: float, work: Path) -> Path:
    """The file of a deployment that serves so."""
    path = work / f"{system}-{pool:g}-{gb_per_s:g}.yaml"
    said = {
        "base": "demo",
        "preset": system,
        "link_gb_s": gb_per_s,
        "limits": {"min_lead_s": 0.0},
        "stages": {
            "thinker": {"kv_tokens": round(pool * PASTS_TOKENS / 16) * 16, "host_kv_tokens": HOST_TOKENS}
        },
    }
    path.write_text(yaml.safe_dump(said))
    return path


def run_figures(log: Path, record: Path) -> dict[str, Any]:
    """Of a run, and of its turns from the second on (`waits`): seconds to the first text, of them for KV."""
    header, entries = read_record(record)
    teller = Storyteller(header.node, header.depth)
    for entry in entries:
        teller.decide(entry.facts, entry.now)
    for_kv = {response: s for story in teller.stories.values() for response, s in waits_for_kv(story).items()}
    run = fold(read(log))
    found = figures(run, Slo())
    waits: dict[str, tuple[float, float]] = {}
    for row in run.responses:
        if row.turn and row.text_at_s.size and row.turn_ended_s is not None and row.response in for_kv:
            text_s = round(float(row.text_at_s[0]) - row.turn_ended_s, 5)
            waits[f"{row.session}/{row.turn}"] = text_s, for_kv[row.response]
    return {name: round(found[name], 5) for name in TOLD if name in found} | {"waits": waits}


def pair(pool: float, gb_per_s: float, seed: int, model: Path, work: Path) -> dict[str, dict[str, Any]]:
    """Both systems' figures, of runs at the same time."""
    names = {system: f"{system}-{pool:g}-{gb_per_s:g}-{seed}" for system in SYSTEMS}
    core_of: dict[str, int] = dict(zip(SYSTEMS, CORES[seed % 2], strict=True))
    people = workload(work)
    with ExitStack() as stack, ThreadPoolExecutor(len(SYSTEMS)) as threads:
        runs = []
        for system, name in names.items():
            record, core = work / f"{name}.record", core_of[system]
            record.unlink(missing_ok=True)
            config = deployed(system, pool, gb_per_s, work)
            server = started(name, config, core, model, work, "--record", str(record))
            runs.append((stack.enter_context(server).url, core, people, seed, work / f"{name}.jsonl"))
        for done in [threads.submit(talk, *run) for run in runs]:
            done.result()
    return {
        system: run_figures(work / f"{name}.jsonl", work / f"{name}.record") for system, name in names.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("evaluation/engine-memory"), help="of what is done")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    if not (model := work / "medium").exists():
        make_demo(model, size="medium")
    found: dict[float | tuple[float, float], list[Any]] = defaultdict(list)
    for seed, case in product(SEEDS, CASES):
        path = work / f"{case[0]:g}-{case[1]:g}-{seed}.json"
        found[case].append(provenance.once(path, lambda case=case, seed=seed: pair(*case, seed, model, work)))
    cases = {
        f"{pool:g} of the pasts, {gb:g} GB/s": told(
            {system: [pair[system] for pair in found[pool, gb]] for system in SYSTEMS}
        )
        for pool, gb in CASES
    }
    provenance.keep(cases | {"seeds": len(SEEDS)}, arguments.out)


if __name__ == "__main__":
    main()
