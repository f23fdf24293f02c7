"""What it costs to follow what people hear and to decide by it: preset liveserve beside preset fcfs.

    python benchmarks/interaction_plane.py --out benchmarks/results/interaction-plane.json

64 people talk to LiveServe's machine (§7.1; four thinkers' and four talkers' H200 by their datasheet, a host
tier) on virtual time: the node is the server's own, steps take what the profile says, and playback is
reported every 0.2 to 0.25 s, as the workload's clients do. Each pair of runs plays the same people to both
presets, by turns (fcfs first, then liveserve first). Counted:

- `decide`: processor seconds in `Node.decide` for each second of conversation: facts are folded, views read,
  policies asked, plans built. `added` is what liveserve takes beyond fcfs.
- `plane`: in runs of their own, processor seconds in the calls that fold facts and outputs into the monitor,
  the frontier and the next-use lists, and in the calls of each decision's policy with the columns that it
  reads; less what the stopwatch takes. `device` has in it what the policies of its stages take. Both presets
  fold; fcfs's policies are the baselines.
- `idle`: one person alone with the server, whose decisions delay what they order by the processor time that
  they take here: TTFP, and microseconds a decision.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.assembly.watched import Watched
from antiphon.bench import provenance
from antiphon.core.facts import Fact
from antiphon.core.plans import Decision
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor
from antiphon.interaction.next_use import NextUseTimes
from antiphon.latency.finding import find_costs
from antiphon.metrics.log import RunStarted
from antiphon.metrics.recorder import fold
from antiphon.metrics.summary import figures
from antiphon.sim.model import engine_of
from antiphon.sim.places import Replicas
from antiphon.sim.run import Setup, Simulation
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named

PRESETS = "fcfs", "liveserve"
PIPELINES = 4
SIZES = Sizes(kv_tokens=16384, host_kv_tokens=262144)
FOLDS: dict[type, tuple[str, ...]] = {
    Monitor: ("observe", "hear"),
    NextUseTimes: ("observe", "hear", "rests"),
    Frontier: ("take", "free", "begin", "play", "fall_silent", "stop", "end_speech", "make", "sound"),
}
NOBODY = RunStarted(
    t_s=0.0, label="", url="", workload="", seed=0, command="", commit="", machine="", version="", unix_s=0.0
)


def setup(preset: str, sessions: int, duration_s: float, seed: int, is_charged: bool = False) -> Setup:
    """is_charged: decisions take the processor time that they take here."""
    load = {"closed": {"concurrency": sessions, "duration_s": duration_s}}
    costs = find_costs("h200")
    pipelines = PIPELINES if sessions > 1 else 1
    engine = engine_of(costs, preset, SIZES, Replicas(pipelines, pipelines, apart=pipelines > 1))
    clock = time.process_time if is_charged else None
    return Setup(changed(named("voice-chat"), {"load": load}), costs, seed, engine, clock=clock)


class Metered:
    """Owner of a run and of how long each of its decisions took, in processor seconds."""

    def __init__(self, made: Setup) -> None:
        self.simulation = Simulation(made)
        self.seconds: list[float] = []
        self.facts = Counter[str]()
        node = self.simulation.driver.node
        self._decide = node.decide
        node.decide = self.decide

    def decide(self, facts: Iterable[Fact], now: float) -> Decision:
        facts = list(facts)
        self.facts.update(type(fact).__name__ for fact in facts)
        began = time.process_time()
        decision = self._decide(facts, now)
        self.seconds.append(time.process_time() - began)
        return decision

    def play(self) -> Metered:
        gc.collect()
        self.outcome = self.simulation.play(NOBODY)
        return self


def cost(preset: str, sessions: int, duration_s: float, seed: int) -> dict[str, Any]:
    """Of all that is decided."""
    run = Metered(setup(preset, sessions, duration_s, seed)).play()
    stats = run.simulation.driver.node.stats()
    evicted = [n for name, n in stats.items() if name.startswith("antiphon_kv_blocks_evicted")]
    return {
        "decide": sum(run.seconds) / duration_s,
        "decisions_per_s": len(run.seconds) / duration_s,
        "decision_us": 1e6 * float(np.mean(run.seconds)),
        "facts_per_s": {name: n / duration_s for name, n in run.facts.most_common()},
        "blocks_evicted": sum(evicted),
    }


class Parts:
    """Owner of the seconds in parts of a decision; of calls within calls the outermost counts."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self.calls = Counter[str]()
        self._is_inside = False

    def timed(self, part: Callable[..., str], call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, which counts for the part of its first argument."""

        def timed(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return call(self_, *args, **kwargs)
            self._is_inside = True
            began = time.process_time()
            try:
                return call(self_, *args, **kwargs)
            finally:
                name = part(self_)
                self.seconds[name] += time.process_time() - began
                self.calls[name] += 1
                self._is_inside = False

        return timed

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = {(kind, name): getattr(kind, name) for kind, names in FOLDS.items() for name in names}
        before[Watched, "decide"] = Watched.decide
        for (kind, name), call in before.items():
            part = (lambda one: one.decision) if kind is Watched else (lambda _: "fold")
            setattr(kind, name, self.timed(part, call))
        try:
            yield
        finally:
            for (kind, name), call in before.items():
                setattr(kind, name, call)


def stopwatch_s(calls: int = 100_000) -> float:
    """What a timed call of nothing is told to take."""
    parts = Parts()
    nothing = parts.timed(lambda _: "", lambda _: None)
    for _ in range(calls):
        nothing(None)
    return parts.seconds[""] / calls


def plane(preset: str, sessions: int, duration_s: float, seed: int) -> dict[str, float]:
    """Seconds for each second of conversation, by part."""
    parts = Parts()
    with parts.watching():
        Metered(setup(preset, sessions, duration_s, seed)).play()
    own_s = stopwatch_s()
    found = {name: (parts.seconds[name] - own_s * n) / duration_s for name, n in parts.calls.items()}
    return {"whole": sum(found.values())} | dict(sorted(found.items(), key=lambda item: -item[1]))


def idle(preset: str, duration_s: float, seed: int) -> dict[str, float]:
    run = Metered(setup(preset, 1, duration_s, seed, is_charged=True)).play()
    found = figures(fold(run.outcome.events))
    return {
        "ttfp_ms": 1e3 * found["ttfp_s.p50"],
        "decision_us": 1e6 * float(np.mean(run.seconds)),
        "decide": sum(run.seconds) / duration_s,
    }


def by_turns(pairs: int, measure: Callable[[str, int], Any]) -> dict[str, list[Any]]:
    """fcfs, liveserve, liveserve, fcfs, …: by preset, a result a pair."""
    found: dict[str, list[Any]] = {preset: [] for preset in PRESETS}
    for pair in range(pairs):
        for preset in PRESETS if pair % 2 == 0 else PRESETS[::-1]:
            found[preset].append(measure(preset, pair))
    return found


def spread(values: list[float]) -> dict[str, float]:
    return {
        name: round(float(of(values)), 5)
        for name, of in (("median", np.median), ("least", min), ("most", max))
    }


def columns(found: dict[str, list[dict[str, Any]]], *names: str) -> dict[str, Any]:
    """By preset and figure, and what liveserve adds pair by pair."""
    table = {
        preset: {name: [run.get(name, 0.0) for run in runs] for name in names}
        for preset, runs in found.items()
    }
    fcfs, liveserve = (table[preset] for preset in PRESETS)
    added = {
        name: spread([more - less for less, more in zip(fcfs[name], liveserve[name], strict=True)])
        for name in names
    }
    spreads = {preset: {name: spread(values) for name, values in of.items()} for preset, of in table.items()}
    return spreads | {"added": added}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--duration", type=float, default=60.0, help="Seconds of conversation a run.")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--part-pairs", type=int, default=2, help="Of `plane`.")
    parser.add_argument("--idle-duration", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    size = args.sessions, args.duration
    whole = by_turns(args.pairs, lambda preset, seed: cost(preset, *size, seed))
    parts = by_turns(args.part_pairs, lambda preset, seed: plane(preset, *size, seed))
    alone = by_turns(args.pairs, lambda preset, seed: idle(preset, args.idle_duration, seed))
    names = dict.fromkeys(name for runs in parts.values() for run in runs for name in run)
    facts = {
        preset: {name: round(n, 1) for name, n in runs[0]["facts_per_s"].items()}
        for preset, runs in whole.items()
    }
    result = {
        "sessions": args.sessions,
        "seconds_a_run": args.duration,
        "seconds_alone": args.idle_duration,
        "pairs": args.pairs,
        "part_pairs": args.part_pairs,
        "facts_per_s": facts,
        "decide": columns(whole, "decide", "decisions_per_s", "decision_us", "blocks_evicted"),
        "plane": columns(parts, *names),
        "idle": columns(alone, "ttfp_ms", "decision_us", "decide"),
    }
    provenance.keep(result, args.out)


if __name__ == "__main__":
    main()
