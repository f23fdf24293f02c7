"""TokenFlow's preset beside first come first served on the real engine, in a burst, over a throttled link.

    python benchmarks/tokenflow_engine.py --out benchmarks/results/tokenflow-engine.json     # 20 minutes

A dense demo checkpoint on the CPU, one thread. Readers come all at once, with prompts and replies about as
long as in the paper's table 1 (S/S), 40 % of them at 3/4 of the rate of the others, and the device has room
for half of the KV that they need together. Those that run get twice the tokens that they read, as with the
paper's baseline (figure 2): how many this machine makes for each is measured first. Copies to and from the
host take what a link of --link-mb-per-s would. Every system serves the same people (paired seeds), one run a
process, in turns: the order is turned around with every other seed. Figures are from the times at which
tokens were generated; delivery is not paced. Beside them is told where the time went: steps, rows a step,
tokens of prompts that were computed, seconds in steps and until preempted requests had their KV. Nothing
else may run on the machine. Runs that --work has are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import numpy as np
from tokenflow import BASELINES, System, tokenflow

from antiphon.bench import provenance
from antiphon.bench.statistics import ratio_interval
from antiphon.checkpoint.demo import make_demo
from antiphon.core.config import EngineOptions
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import Fact, ItemAdded, ResponseRequested, SessionOpened
from antiphon.core.plans import ArStep, Decision, Output, RenderPrompt, ResponseEnded, TokensOut
from antiphon.core.sampling import Sampling
from antiphon.metrics.names import Metric
from antiphon.metrics.streaming import (
    Reading,
    effective_tokens_per_s,
    qos,
    rebuffer_s,
    streamed_tokens_per_s,
)

FAMILY, BLOCK_SIZE, ROWS, STEP_TOKENS = "qwen3", 16, 64, 1024
SPREAD = 0.15
"""Standard deviation of lengths, as a share."""
SLOWER, SHARE_SLOWER = 0.75, 0.4
"""As 15 and 20 tokens a second are (figure 19)."""
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SYSTEMS: tuple[System, ...] = (
    *(one for one in BASELINES if one.name in ("prompts first", "room reserved", "round-robin swap")),
    tokenflow("tokenflow"),
    tokenflow("without the host", has_host=False),
    tokenflow("without write-through", write=False),
)
BASELINE, OURS = "prompts first", "tokenflow"


class Burst(msgspec.Struct, frozen=True):
    """Who comes. rate: tokens a second of the faster readers; pool: KV for which the device has room, as a
    share of what all need."""

    size: str
    readers: int
    words: int
    reply: int
    rate: float
    link_mb_per_s: float
    pool: float


class Work:
    """What the engine's steps had to do, as the driver records it.

    prompt_tokens  that were computed: those of prompts, and what preempted requests had lost
    row_steps      rows that ran one token, of all steps
    """

    has_stopped = False

    def __init__(self) -> None:
        self.steps = self.prompt_tokens = self.row_steps = self.waits = 0

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None:
        for step in decision.orders:
            if isinstance(step, ArStep):
                self.steps += 1
                self.row_steps += int((step.counts == 1).sum())
                self.prompt_tokens += int(step.counts[step.counts > 1].sum())
                self.waits += len(step.waits[0]) > 0

    def told(self, stats: dict[str, float]) -> dict[str, float]:
        """With the seconds that steps took, and that preempted requests waited for their KV."""
        return {
            "steps": self.steps,
            "rows_a_step": self.row_steps / max(self.steps, 1),
            "prompt_tokens": self.prompt_tokens,
            "steps_that_waited": self.waits,
            "step_s": stats[Metric.STEP_SECONDS.of("thinker")],
            "resume_s": stats.get(Metric.RESUME_SECONDS.of("thinker"), 0.0),
        }


class Person(msgspec.Struct, frozen=True):
    words: int
    reply: int
    rate: float


def people(burst: Burst, seed: int) -> list[Person]:
    rng = np.random.default_rng(seed)
    num_slower = round(SHARE_SLOWER * burst.readers)
    slower = rng.permutation(burst.readers) < num_slower
    scale = np.maximum(rng.normal(1.0, SPREAD, (burst.readers, 2)), 0.5)
    return [
        Person(round(burst.words * a), round(burst.reply * b), burst.rate * (SLOWER if one else 1.0))
        for (a, b), one in zip(scale.tolist(), slower.tolist(), strict=True)
    ]


def question(person: Person, at: int) -> Item:
    words = (WORDS[(at + 7 * index) % len(WORDS)] for index in range(person.words))
    return Item(f"q{at}", "user", (TextPart(" ".join(words)),))


def played(name: str, burst: Burst, seed: int, work: Path) -> dict[str, float]:
    """One burst, in this process."""
    from antiphon.runtime.driver import Driver
    from antiphon.runtime.loading import load_engine

    system = next(one for one in SYSTEMS if one.name == name)
    system.write(work)
    who = people(burst, seed)
    options = EngineOptions(
        device="cpu", threads=1, preset=str(system.file(work)), max_rows=ROWS, block_size=BLOCK_SIZE
    )
    model = str(work / burst.size)
    prompter = load_engine(model, options, "engine", lambda *_: None).prompter
    needs: list[int] = []
    for at, person in enumerate(who):
        ready: Any = prompter.render(RenderPrompt(0, (question(person, at),), speech=False))
        needs.append(len(ready.prompts["thinker"].token_ids) + person.reply)
    kv_tokens = round(burst.pool * sum(needs) / BLOCK_SIZE) * BLOCK_SIZE
    sizes: dict[str, float] = {
        "kv_tokens": kv_tokens,
        "max_context_tokens": min(max(needs), kv_tokens),
        "host_kv_tokens": 2 * sum(needs) if system.has_host else 0,
        "step_tokens": min(system.step_tokens, STEP_TOKENS),
        "link_gb_s": burst.link_mb_per_s / 1000,
    }
    options = msgspec.structs.replace(options, **sizes)
    came: list[tuple[float, Output]] = []
    engine = load_engine(model, options, "engine", lambda *_: None)
    driver = Driver(
        replace(engine, node=system.with_headroom(engine.node, burst.reply)),
        lambda outputs: came.extend((time.monotonic(), one) for one in outputs),
    )
    _warm(driver, came)
    before_s = driver.stats()[Metric.STEP_SECONDS.of("thinker")]
    driver.recorder = work_done = Work()
    facts: list[Fact] = []
    for at, person in enumerate(who):
        reader = f"reader-{at}"
        sampling = {"thinker": Sampling(max_tokens=person.reply, ignore_eos=True, temperature=0.0)}
        facts += [
            SessionOpened(reader),
            ItemAdded(reader, question(person, at)),
            ResponseRequested(
                reader, reader, "reply", speech=False, sampling=sampling, rate=person.rate, remember=False
            ),
        ]
    asked_at = time.monotonic()
    _until_ended(driver, facts, came, len(who))
    if baseline_decided := [one for one in driver.node.guard.overruled if one.reasons.keys() - {"slow"}]:
        raise RuntimeError(f"{name}: {baseline_decided}")
    read = [_reading(f"reader-{at}", person, asked_at, came) for at, person in enumerate(who)]
    done = work_done.told(driver.stats())
    done |= {"step_s": done["step_s"] - before_s, "span_s": max(one.at_s[-1] for one in read)}
    preemptions = driver.node.stages.ar["thinker"].num_preemptions
    return told(read, preemptions, kv_tokens / sum(needs)) | {k: round(v, 2) for k, v in done.items()}


def _warm(driver: Any, came: list[tuple[float, Output]]) -> None:
    """The first steps are slower."""
    sampling = {"thinker": Sampling(max_tokens=16, ignore_eos=True)}
    ask = ResponseRequested("warm", "warm", "reply", speech=False, sampling=sampling, remember=False)
    person = Person(32, 16, 1.0)
    _until_ended(driver, [SessionOpened("warm"), ItemAdded("warm", question(person, 0)), ask], came, 1)
    came.clear()


def _until_ended(driver: Any, facts: list[Fact], came: list[tuple[float, Output]], num: int) -> None:
    ended = looked_at = 0
    while ended < num:
        if not driver.advance(facts):
            driver.wait(0.05)
        facts = []
        for _, output in came[looked_at:]:
            if isinstance(output, ResponseEnded):
                ended += 1
                if output.status not in ("completed", "incomplete"):
                    raise RuntimeError(f"{output.response}: {output.reason} {output.message}")
        looked_at = len(came)
        if driver.node.num_in_flight:
            driver.wait(0.05)


def _reading(name: str, person: Person, asked_at: float, came: list[tuple[float, Output]]) -> Reading:
    times = [
        at - asked_at
        for at, one in came
        if isinstance(one, TokensOut) and one.response == name
        for _ in range(len(one.tokens))
    ]
    if len(times) != person.reply:
        raise RuntimeError(f"{name} has {len(times)} tokens of {person.reply}")
    return Reading(0.0, np.array(times), person.rate)


def told(read: list[Reading], num_preemptions: int, pool: float) -> dict[str, float]:
    ttft_s = [one.ttft_s for one in read]
    waited_s = [rebuffer_s(one) for one in read]
    found = {
        "effective_tokens_per_s": effective_tokens_per_s(read) or 0.0,
        "streamed_tokens_per_s": streamed_tokens_per_s(read) or 0.0,
        "qos": qos(read) or 0.0,
        "ttft_s.mean": mean(ttft_s),
        "ttft_s.p99": float(np.quantile(ttft_s, 0.99)),
        "rebuffer_s.mean": mean(waited_s),
        "rebuffer_s.p99": float(np.quantile(waited_s, 0.99)),
        "running_tokens_per_s": float(np.median([1 / np.median(np.diff(one.at_s)) for one in read])),
        "preemptions": num_preemptions,
        "pool": pool,
    }
    return {name: round(value, 4) for name, value in found.items()}


def apart(name: str, burst: Burst, seed: int, work: Path) -> dict[str, float]:
    """One burst in a process of its own, kept."""

    def run() -> dict[str, float]:
        asked = json.dumps([name, msgspec.to_builtins(burst), seed, str(work)])
        command = (sys.executable, __file__, "--one", asked)
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(ran.stdout.splitlines()[-1])

    kept = f"{name}-{burst.pool:g}-{burst.rate:.4g}-{seed}.json"
    return provenance.once(work / kept.replace(" ", "-"), run)


def evaluated(burst: Burst, systems: tuple[str, ...], seeds: int, work: Path) -> dict[str, Any]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for seed in range(seeds):
        for name in systems if seed % 2 == 0 else reversed(systems):
            runs[name].append(apart(name, burst, seed, work))
            sys.stderr.write(f"{name}, seed {seed}: {runs[name][-1]}\n")
    means = {
        name: {one: round(mean(run[one] for run in of), 4) for one in of[0]} for name, of in runs.items()
    }
    found: dict[str, Any] = {"burst": msgspec.to_builtins(burst), "seeds": seeds, "means": means}
    if seeds > 1 and {BASELINE, OURS} <= runs.keys():
        ratios = {
            figure: ratio_interval(*([run[figure] for run in runs[name]] for name in (BASELINE, OURS)))
            for figure in ("effective_tokens_per_s", "streamed_tokens_per_s", "ttft_s.mean", "ttft_s.p99")
        }
        found[f"{OURS} against {BASELINE}"] = {
            name: [one.mean, one.low, one.high] for name, one in ratios.items()
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, default=Path("evaluation/tokenflow-engine"), help="of what is done"
    )
    parser.add_argument("--size", default="medium", help="of the checkpoint")
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--words", type=int, default=400, help="of a prompt")
    parser.add_argument("--reply", type=int, default=1024, help="tokens")
    parser.add_argument(
        "--rate", type=float, help="tokens a second of the faster readers; measured if it is not given"
    )
    parser.add_argument("--pool", type=float, default=0.5, help="of the KV that all need, on the device")
    parser.add_argument("--link-mb-per-s", type=float, default=50.0)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--systems", nargs="+", default=[one.name for one in SYSTEMS])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/tokenflow-engine.json"))
    arguments = parser.parse_args()
    if arguments.one:
        name, burst, seed, work = json.loads(arguments.one)
        sys.stdout.write(json.dumps(played(name, msgspec.convert(burst, Burst), seed, Path(work))))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    if not (work / arguments.size).exists():
        make_demo(work / arguments.size, model=FAMILY, size=arguments.size)
    burst = Burst(
        *(arguments.size, arguments.readers, arguments.words, arguments.reply),
        *(arguments.rate or 1.0, arguments.link_mb_per_s, arguments.pool),
    )
    if arguments.rate is None:
        made = apart(BASELINE, burst, 0, work)["running_tokens_per_s"]
        burst = msgspec.structs.replace(burst, rate=made / 2)
    found = evaluated(burst, tuple(arguments.systems), arguments.seeds, work)
    provenance.keep(found, arguments.out)


if __name__ == "__main__":
    main()
