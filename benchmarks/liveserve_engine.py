"""LiveServe's preset beside the best baseline on the real engine, at the same time, a core each.

    python benchmarks/liveserve_engine.py --made evaluation/engine/forty                     # the checkpoint
    OMP_NUM_THREADS=1 taskset -c 0 antiphon profile evaluation/engine/forty --out PROFILE
    python benchmarks/liveserve.py --profile PROFILE --rates … --rows … --settings --out SETTINGS
    python benchmarks/liveserve_engine.py --settings SETTINGS --rates … --out FILE

People ask for a few seconds and are answered for 40 (forty-seconds.yaml), over the wire. A machine's speed
changes faster than runs can take turns, so the two of a pair run side by side: server and clients of either
system have one core, the same people come to both at the same moment, and the systems change cores in the
middle of the seeds. What the machine does to one it does to the other. Nothing else may run on it.

A system's useful load is the highest of the rates up to which 90 % of replies have no gap over 100 ms and
95 % of turns are completed, with the first sound within 10 s. Runs that --work has are not run again.

The checkpoint is a demo of medium size that is made to answer for 40 s: 160 tokens of text and 500 frames of
sound are the most, and the ids that end them have no weight in the heads, so that none is among the likely.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean

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
from served import Served, served

from antiphon.bench import provenance
from antiphon.bench.logfile import read
from antiphon.checkpoint.demo import make_demo

ARRIVING_S = 100.0
MOST_OPEN = 256
"""Sessions, and responses: nobody is turned away, as nobody is in the simulation that found the settings."""
CORES = (0, 1), (1, 0)
"""Of the baseline and of ours, by half of the seeds."""
SEEDS = (0, 2, 4), (1, 3, 5)
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
        "stages": {"talker": {"step_rows": system.step_rows or None}},
        "edges": {"talker -> code2wav": {"first_chunk": system.first, "chunk": CHUNK}},
    }
    path.write_text(yaml.safe_dump(said))
    return path


def pinned(core: int) -> tuple[str, ...]:
    """What a command that has one core begins with."""
    return "taskset", "-c", str(core)


def started(
    name: str, config: Path, core: int, model: Path, work: Path, *options: str
) -> AbstractContextManager[Served]:
    """A server that has one core."""
    return served(work / f"{name}.log", str(model), "--config", str(config), *options, before=pinned(core))


def talk(url: str, core: int, people: Path, seed: int, log: Path, *options: str) -> None:
    """One run of a workload's clients, who share the server's core."""
    log.unlink(missing_ok=True)
    said = "--workload", str(people), "--seed", str(seed), *options, "--log", str(log)
    command = *pinned(core), sys.executable, "-m", "antiphon", "bench", "--url", url, *said
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def played(url: str, core: int, rate: float, seed: int, log: Path) -> dict[str, float]:
    """The figures of one run."""
    rates = "--rate", f"{rate:g}", "--sessions", str(round(rate * ARRIVING_S))
    talk(url, core, WORKLOAD, seed, log, *rates)
    return run_figures(read(log))


Pair = dict[str, dict[str, float]]


def pair(urls: dict[str, str], core_of: dict[str, int], rate: float, seed: int, work: Path) -> Pair:
    """Both systems' runs, at the same time."""
    with ThreadPoolExecutor(len(urls)) as pool:
        runs = {
            name: pool.submit(played, url, core_of[name], rate, seed, work / f"{name}-{rate:g}-{seed}.jsonl")
            for name, url in urls.items()
        }
        return {name: run.result() for name, run in runs.items()}


def pairs_by(
    systems: dict[str, System], rates: list[float], model: Path, work: Path
) -> dict[float, list[Pair]]:
    """By rate, a pair a seed."""
    found: dict[float, list[Pair]] = {rate: [] for rate in rates}
    for cores, seeds in zip(CORES, SEEDS, strict=True):
        core_of = dict(zip(systems, cores, strict=True))
        with ExitStack() as stack:
            urls = {
                name: stack.enter_context(
                    started(name, deployed(name, system, work), core_of[name], model, work)
                ).url
                for name, system in systems.items()
            }
            for seed, rate in product(seeds, rates):
                path, run = work / f"{rate:g}-{seed}.json", partial(pair, urls, core_of, rate, seed, work)
                found[rate].append(provenance.once(path, run))
    return found


def useful(name: str, found: dict[float, list[Pair]]) -> float:
    """The last rate before one that is too much; 0: none."""
    most = 0.0
    for rate, pairs in sorted(found.items()):
        if any(mean(pair[name][key] for pair in pairs) < least for key, least in USEFUL.items()):
            break
        most = rate
    return most


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("evaluation/engine"), help="of what is done")
    parser.add_argument("--made", type=Path, help="only make the checkpoint, here")
    parser.add_argument("--settings", type=Path, help="as liveserve.py --settings writes them")
    parser.add_argument("--rates", type=float, nargs="+", default=[], help="sessions a second")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.made:
        made(arguments.made)
        return
    if arguments.settings is None or not arguments.rates:
        parser.error("--settings FILE and --rates are needed: python benchmarks/liveserve.py writes the file")
    settings = msgspec.json.decode(arguments.settings.read_bytes(), type=Settings)
    arguments.work.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    model = made(arguments.work / "forty")
    systems = {"fcfs": settings.baseline, "liveserve": settings.liveserve}
    found = pairs_by(systems, arguments.rates, model, arguments.work)
    provenance.keep(
        {
            "systems": {name: system.name for name, system in systems.items()},
            "useful": {name: useful(name, found) for name in systems},
            "seeds": sum(map(len, SEEDS)),
            "loads": {
                f"{rate:g}/s, p_bi 0.5": told(*([pair[name] for pair in pairs] for name in systems))
                for rate, pairs in sorted(found.items())
            },
        },
        arguments.out,
    )


if __name__ == "__main__":
    main()
