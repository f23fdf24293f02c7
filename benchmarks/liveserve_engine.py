"""LiveServe's preset beside the best baseline on the real engine, by settings that its own times gave.

    python benchmarks/liveserve_engine.py --made evaluation/engine/forty                     # the checkpoint
    antiphon profile evaluation/engine/forty --out PROFILE
    python benchmarks/liveserve.py --profile PROFILE --rates … --rows … --settings --out SETTINGS
    python benchmarks/liveserve_engine.py --settings SETTINGS --out benchmarks/results/liveserve-engine.json

The last takes 90 minutes; all with OMP_NUM_THREADS=1. People ask for a few seconds and are answered for 40
(forty-seconds.yaml). Two servers are up, and the same people come to one after the other, over the wire; the
engine has one thread and the clients have the other core. Nothing else may run on the machine. The useful
load of each system is the highest at which 90 % of replies have no gap over 100 ms and 95 % of turns are
completed, with the first sound within 10 s, on the tuning seeds; loads are shares of the baseline's. (Without
the gaps it completes whatever comes: everybody begins, and all stall.) What is told is paired by seed, on
seeds that decided nothing. Runs that --work has are not run again, and loads of which not all runs were made
(--runs) are left out.

The checkpoint is a demo of medium size that is made to answer for 40 s: 160 tokens of text and 500 frames of
sound are the most, and the ids that end them have no weight in the heads, so that none is among the likely.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml
from liveserve import (
    CHUNK,
    HOST_KV_TOKENS,
    USEFUL,
    WORKLOAD,
    Settings,
    System,
    run_figures,
    told,
)
from safetensors.torch import load_file, save_file

from antiphon.bench import provenance
from antiphon.bench.logfile import read
from antiphon.bench.servers import READY
from antiphon.checkpoint.demo import make_demo

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S, ARRIVING_S = 300.0, 100.0
RATES = tuple(hundredths / 100 for hundredths in range(20, 80, 4))
"""Sessions a second that are tried."""
SHARES = 0.95, 0.5, 0.8
MOST_OPEN = 256
"""Sessions, and responses: nobody is turned away, as nobody is in the simulation that found the settings."""
TUNING, SEEDS = (100, 101), (0, 1, 2, 3, 4)
TEXT_TOKENS, FRAMES = 160, 500
HEADS = {"thinker.lm_head.weight": "eos_token_id", "talker.codec_head.weight": "codec_eos_token_id"}


def made(folder: Path) -> Path:
    """The checkpoint, made once."""
    if folder.exists():
        return folder
    half = folder.with_name(f"{folder.name}.half")
    make_demo(half, size="medium")
    config = json.loads((half / "config.json").read_text())
    generation = json.loads((half / "generation_config.json").read_text())
    ends = generation | config["talker_config"]
    weight_map = json.loads((half / "model.safetensors.index.json").read_text())["weight_map"]
    for head, end in HEADS.items():
        path = half / weight_map[head]
        tensors = load_file(path)
        tensors[head][ends[end]] = 0
        save_file(tensors, path, {"format": "pt"})
    generation |= {"max_new_tokens": TEXT_TOKENS, "talker_max_new_tokens": FRAMES}
    (half / "generation_config.json").write_text(json.dumps(generation, indent=2))
    return half.rename(folder)


def deployed(name: str, system: System, work: Path) -> Path:
    """The file of a deployment that serves so."""
    system.write(work)
    path = work / f"{name}.yaml"
    said = {
        "base": "demo",
        "preset": system.preset(work).name,
        "limits": {"max_sessions": MOST_OPEN, "max_open_responses": MOST_OPEN, "min_lead_s": 0.0},
        "defaults": {"max_rows": system.rows, "host_kv_tokens": HOST_KV_TOKENS},
        "edges": {"talker -> code2wav": {"first_chunk": system.first, "chunk": CHUNK}},
    }
    path.write_text(yaml.safe_dump(said))
    return path


@contextmanager
def served(name: str, system: System, model: Path, work: Path) -> Iterator[str]:
    """Where a server answers."""
    log, config = work / f"{name}.log", str(deployed(name, system, work))
    command = (*("-m", "antiphon.cli", "serve", str(model)), *("--config", config, "--port", "0"))
    with log.open("wb") as words:
        process = subprocess.Popen((sys.executable, *command), stdout=words, stderr=words)
    try:
        until = time.monotonic() + START_S
        while not (ready := READY.search(log.read_text(errors="replace"))):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{name} is not ready: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
        yield ready.group(1)
    finally:
        process.terminate()
        process.wait(30)


class Enough(Exception):
    """As many runs were made as were asked for."""


class Runs:
    """Figures of one run at a time, kept; `left` more are made at most."""

    def __init__(self, urls: dict[str, str], work: Path, left: int) -> None:
        self._urls, self._work, self._left = urls, work, left

    def one(self, name: str, rate: float, seed: int) -> dict[str, float]:
        run = self._work / f"{name}-{rate:g}-{seed}"

        def played() -> dict[str, float]:
            if not self._left:
                raise Enough
            self._left -= 1
            log = run.with_name(f"{run.name}.jsonl")
            log.unlink(missing_ok=True)
            people = "--rate", f"{rate:g}", "--sessions", str(round(rate * ARRIVING_S)), "--seed", str(seed)
            command = (*("bench", "--url", self._urls[name], "--workload", str(WORKLOAD)), *people)
            subprocess.run(
                (sys.executable, "-m", "antiphon.cli", *command, "--log", str(log)),
                check=True,
                stdout=subprocess.DEVNULL,
            )
            return run_figures(read(log))

        return provenance.once(run.with_name(f"{run.name}.json"), played)

    def pairs(self, rate: float, seeds: tuple[int, ...]) -> dict[str, list[dict[str, float]]]:
        """By system, a run a seed: the first goes first with every other seed."""
        found: dict[str, dict[int, dict[str, float]]] = {name: {} for name in self._urls}
        for seed in seeds:
            for name in self._urls if seed % 2 == 0 else reversed(self._urls):
                found[name][seed] = self.one(name, rate, seed)
        return {name: list(runs.values()) for name, runs in found.items()}

    def useful(self, name: str, least: float = 0.0) -> float:
        """Of RATES, the last before one that is too much, halving what is left; up to `least` none is."""

        def fails(rate: float) -> bool:
            means = dict.fromkeys(USEFUL, 1.0)
            for seed in TUNING:
                run = self.one(name, rate, seed)
                for key in means:  # of the runs that are left the best is thought
                    means[key] -= (1 - run[key]) / len(TUNING)
                if any(means[key] < USEFUL[key] for key in means):
                    return True
            return False

        kept_up = bisect_left(RATES, True, lo=bisect_right(RATES, least), key=fails)
        return RATES[kept_up - 1] if kept_up else 0.0


def evaluated(runs: Runs, settings: Settings) -> dict[str, Any]:
    most = runs.useful("fcfs")
    useful = {"fcfs": most, "liveserve": runs.useful("liveserve", most)}
    loads: dict[str, Any] = {}
    for share in SHARES:
        try:
            pairs = runs.pairs(round(share * most, 4), SEEDS)
        except Enough:
            break
        loads[f"{share:g} of {most:g}/s, p_bi 0.5"] = told(pairs["fcfs"], pairs["liveserve"])
    systems = {"baseline": settings.baseline.name, "liveserve": settings.liveserve.name}
    return systems | {"useful": useful, "seeds": len(SEEDS), "loads": loads}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("evaluation/engine"), help="of what is done")
    parser.add_argument("--made", type=Path, help="only make the checkpoint, here")
    parser.add_argument("--settings", type=Path, help="as liveserve.py --settings writes them")
    parser.add_argument("--runs", type=int, default=-1, help="stop after so many more; the rest another time")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.made:
        made(arguments.made)
        return
    if arguments.settings is None:
        parser.error("--settings FILE is needed: python benchmarks/liveserve.py --settings writes it")
    settings = msgspec.json.decode(arguments.settings.read_bytes(), type=Settings)
    arguments.work.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    model = made(arguments.work / "forty")
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(served(name, system, model, arguments.work))
            for name, system in (("fcfs", settings.baseline), ("liveserve", settings.liveserve))
        }
        found = evaluated(Runs(urls, arguments.work, arguments.runs), settings)
    out = "benchmarks/results/liveserve-engine.json"
    command = f"python benchmarks/liveserve_engine.py --settings SETTINGS --out {out}"
    provenance.keep(found | {"command": command}, arguments.out)


if __name__ == "__main__":
    main()
