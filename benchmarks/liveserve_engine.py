"""LiveServe's preset beside the best baseline on the real engine, by the settings that liveserve.py found.

    python benchmarks/liveserve_engine.py checkpoints/forty --rate 0.171 --sessions 16 --seeds 5 --out e.json

The same people (forty-seconds.yaml) come to two servers in turns, over the wire; the engine has one thread
and the clients have the other core. Nothing else may run on the machine. The checkpoint is a demo of medium
size that is made to answer for 40 s: in its generation_config.json `max_new_tokens` is 160 and
`talker_max_new_tokens` 500, and the ids that end text and speech are ones that are never drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import yaml
from liveserve import CHUNK, HOST_KV_TOKENS, MECHANISMS, System

from antiphon.bench import provenance
from antiphon.bench.servers import READY

WORKLOAD = Path(__file__).parent / "forty-seconds.yaml"
START_S = 300.0
BASELINE, LIVESERVE = System((), 8, 4), System(tuple(MECHANISMS), 10, 4, (1.0, 12.0), 0.6)


def deployed(name: str, system: System, work: Path) -> Path:
    """The file of a deployment that serves so."""
    system.write(work)
    path = work / f"{name}.yaml"
    said = {
        "base": "demo",
        "preset": system.preset(work).name,
        "limits": {"max_open_responses": 16, "min_lead_s": 0.0},
        "defaults": {
            "max_rows": system.rows,
            "host_kv_tokens": HOST_KV_TOKENS,
        },
        "edges": {"talker -> code2wav": {"first_chunk": system.first, "chunk": CHUNK}},
    }
    path.write_text(yaml.safe_dump(said))
    return path


def served(name: str, system: System, model: str, work: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A server, and where it answers."""
    log = work / f"{name}.log"
    command = (
        "-m",
        "antiphon.cli",
        "serve",
        model,
        "--config",
        str(deployed(name, system, work)),
        "--port",
        "0",
    )
    with log.open("wb") as words:
        process = subprocess.Popen((sys.executable, *command), stdout=words, stderr=words)
    until = time.monotonic() + START_S
    while not (ready := READY.search(log.read_text(errors="replace"))):
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{name} is not ready: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)
    return process, ready.group(1)


def compared(
    model: str, systems: dict[str, System], rate: float, sessions: int, seeds: int, work: Path
) -> None:
    running: list[subprocess.Popen[bytes]] = []
    targets: list[str] = []
    try:
        for name, system in systems.items():
            process, url = served(name, system, model, work)
            running.append(process)
            targets.append(f"{name}={url}")
        people = "--workload", str(WORKLOAD), "--rate", str(rate), "--sessions", str(sessions)
        subprocess.run(
            (
                *(sys.executable, "-m", "antiphon.cli", "compare", *targets, *people),
                *("--seeds", str(seeds), "--out", str(work / "compared"), "--resume"),
            ),
            check=True,
        )
    finally:
        for process in running:
            process.terminate()
            process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("evaluation/engine"), help="of what is done")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    compared(
        arguments.model,
        {"fcfs": BASELINE, "liveserve": LIVESERVE},
        arguments.rate,
        arguments.sessions,
        arguments.seeds,
        arguments.work,
    )
    found = json.loads((arguments.work / "compared" / "comparison.json").read_text())
    command = (
        f"python benchmarks/liveserve_engine.py FORTY --rate {arguments.rate:g} --sessions "
        f"{arguments.sessions} --seeds {arguments.seeds} --out benchmarks/results/liveserve-engine.json"
    )
    provenance.keep(found | {"command": command}, arguments.out)


if __name__ == "__main__":
    main()
