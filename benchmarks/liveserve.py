"""LiveServe's preset beside the best baseline, simulated at the pace of this engine on two cores of a CPU.

    python benchmarks/liveserve.py --work evaluation/liveserve --out benchmarks/results/liveserve.json
    python benchmarks/liveserve.py --profile PROFILE --rates … --rows … --settings --out SETTINGS

The times are those that `antiphon profile` measured of the demo's medium size (medium-2core.json). People ask
for a few seconds and are answered for 40; half of them barge in. The baseline is fcfs with a host tier at the
rows and the first chunk of sound that are best by useful load on the tuning seeds; liveserve is tuned on the
same seeds. Loads are shares of the highest at which the baseline completes 95 % of its turns on those, with
the first sound within 10 s: a queue that grows for as long as a run lasts completes everything in the end.
What is told is paired by seed, on seeds that decided nothing. Runs that --work has are not run again.

The second form finds only the settings, by the times of another day or machine, for liveserve_engine.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.resources import files
from itertools import repeat
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

import msgspec
import yaml

from antiphon.bench import provenance
from antiphon.bench.statistics import mean_interval, ratio_interval
from antiphon.core.stage_options import EdgeOptions
from antiphon.latency.profile import Profile
from antiphon.metrics.log import Event, RunStarted
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.model import SimEngine, engine_of
from antiphon.sim.run import Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, find

HERE = Path(__file__).parent
PROFILE, WORKLOAD = HERE / "medium-2core.json", HERE / "forty-seconds.yaml"
TUNING, SEEDS = (100, 101), (0, 1, 2, 3, 4)
RATES = (0.12, 0.14, 0.16, 0.18, 0.2, 0.22, 0.24)
"""Sessions a second that are tried."""
ARRIVING_S, DRAINING_S = 300.0, 120.0
COMPLETES, PATIENCE_S, SMOOTH = 0.95, 10.0, 0.9
"""Shares of turns: of what a server that keeps up completes; of replies without a gap for a useful load."""
SHARES = (0.5, 0.8, 0.95)
ABLATED = (0, 1, 2)
"""Seeds of the ablation."""
ROWS, HOST_KV_TOKENS = 16, 1 << 18
CHUNK, CREDIT = 4, 64
"""Frames of sound after the first, and frames that the talker may be ahead of the vocoder, as shipped."""
MECHANISMS = {
    "order": ("step",),
    "pacing": ("pace",),
    "device": ("device",),
    "memory": ("evict", "write", "fetch"),
}
NOBODY = RunStarted(
    t_s=0.0, label="", url="", workload="", seed=0, command="", commit="", machine="", version="", unix_s=0.0
)
WASTE = 'waste_token_ratio{stage="talker"}'
TOLD = (
    *("ttfp_s.p50", "ttfp_s.p90", "continuity", "turns", "completed_turns", "completed_rps", "offered_rps"),
    *('waste_token_ratio{stage="thinker"}', WASTE),
    *('utilisation{stage="thinker"}', 'utilisation{stage="talker"}', 'utilisation{stage="code2wav"}'),
)


TRADED = ("ttfp_s.p90", "smooth", WASTE, 'waste_token_ratio{stage="thinker"}')


class System(msgspec.Struct, frozen=True):
    """What is compared. mechanisms: of LiveServe; the rest is as fcfs has it.

    rows       that a stage holds at most: further requests wait
    first      frames of a reply's first chunk of sound, 80 ms each
    safe_s     lead below which a reply goes first, and at which it is held
    brink_s    lead below which those that are well buffered stay out of its steps
    step_rows  of the talker's rows, those that run in one step at most; 0: all
    """

    mechanisms: tuple[str, ...]
    rows: int
    first: int
    safe_s: tuple[float, float] = (1.0, 4.0)
    brink_s: float = 0.0
    step_rows: int = 0

    @property
    def name(self) -> str:
        first_s, held_s = self.safe_s
        ours = f"-{first_s:g}-{held_s:g}-{self.brink_s:g}" if self.mechanisms else ""
        rows = f"{self.rows}.{self.step_rows}" if self.step_rows else f"{self.rows}"
        return f"{'+'.join(self.mechanisms) or 'fcfs'}-{rows}-{self.first}{ours}"

    def write(self, folder: Path) -> None:
        """The preset's file, if it is not there: other processes may read it."""
        said = written("fcfs")
        for mechanism in self.mechanisms:
            said |= {decision: written("liveserve")[decision] for decision in MECHANISMS[mechanism]}
        if "order" in self.mechanisms:
            said["step"] |= {"safe_s": self.safe_s[0], "brink_s": self.brink_s}
        if "pacing" in self.mechanisms:
            said["pace"] |= {"safe_s": self.safe_s[1]}
        if not self.preset(folder).exists():
            self.preset(folder).write_text(yaml.safe_dump(said))

    def preset(self, folder: Path) -> Path:
        return folder / f"{self.name}.yaml"

    def engine(self, profile: Profile, folder: Path) -> SimEngine:
        sizes = Sizes(max_rows=self.rows, host_kv_tokens=HOST_KV_TOKENS)
        made = engine_of(profile, str(self.preset(folder)), sizes)
        edge = EdgeOptions("talker", "code2wav", self.first, CHUNK, CREDIT)
        talker = msgspec.structs.replace(made.served.node.ar["talker"], step_rows=self.step_rows or None)
        stages = made.served.node.ar | {"talker": talker}
        node = msgspec.structs.replace(made.served.node, edges=(edge,), ar=stages)
        return SimEngine(msgspec.structs.replace(made.served, node=node), made.block_bytes)


SHIPPED = System((), ROWS, 2)
BASELINE_ROWS, OUR_ROWS = (8, 9, 10, 12), ((8, 0), (9, 0), (10, 0), (16, 8), (16, 9))
"""With a first chunk of 4 frames. Ours: a reply that is held keeps a row, and needs none in a step."""
HELD_S = 4.0, 6.0, 12.0
"""Leads at which what was chosen is held, as a trade between waste and the first sound."""


def written(preset: str) -> dict[str, Any]:
    """What a preset that ships says."""
    text = files("antiphon.assembly").joinpath("presets", f"{preset}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def as_printed() -> dict[str, Any]:
    """LiveServe's preset in the order of Algorithm 1, in a stage and among stages: what may run dry goes
    first, and shares with first sounds in no way that the paper does not have."""
    said = written("liveserve")
    step = said["step"] | {"brink_s": 0.0, "patient": False}
    return said | {"step": step, "device": {"policy": said["device"]["policy"]}}


class Point(msgspec.Struct, frozen=True):
    system: System
    rate: float
    seed: int
    barge_in: float = 0.5

    @property
    def name(self) -> str:
        return f"{self.system.name}-{self.rate:.4g}-{self.barge_in:g}-{self.seed}"


def run_figures(events: Iterable[Event]) -> dict[str, float]:
    """TOLD of a run; `smooth`, the share of its spoken replies without a gap; `completes`, of its turns."""
    run, slo = fold(events), Slo()
    found = figures(run, slo)
    spoken = [row for row in run.responses if row.audio_at_s.size]
    told = {name: round(found[name], 5) for name in TOLD if name in found}
    told["smooth"] = round(mean(max(row.gaps, default=0.0) <= slo.gap_s for row in spoken), 5)
    in_time = [row for row in spoken if row.audio_at_s[0] - row.turn_ended_s <= PATIENCE_S]
    told["completes"] = round(min(len(in_time), found["completed_turns"]) / found["turns"], 5)
    return told


def events_of(point: Point, work: Path, times: Path) -> list[Event]:
    """What one run logs, by the times of a profile."""
    profile = Profile.from_json(times.read_bytes())
    settings = {
        "load.open.arrivals": {"poisson": {"rate_per_s": point.rate}},
        "load.open.sessions": round(point.rate * ARRIVING_S),
        "load.open.duration_s": ARRIVING_S + DRAINING_S,
        "people.talker.barge_in.probability": point.barge_in,
    }
    setup = Setup(
        changed(find(str(WORKLOAD)), settings), profile, point.seed, point.system.engine(profile, work)
    )
    outcome = simulate(setup, NOBODY)
    if outcome.overruled or outcome.incidents:
        raise RuntimeError(f"{point.name}: {outcome.overruled} {outcome.incidents}")
    return list(outcome.events)


def played(point: Point, work: Path, times: Path) -> dict[str, float]:
    """One run's figures."""
    return run_figures(events_of(point, work, times))


def kept(point: Point, work: Path, times: Path) -> dict[str, float]:
    return provenance.once(work / f"{point.name}.json", lambda: played(point, work, times))


class Runs:
    """Figures by point, two runs at a time. `rows`: that are tried, of either system."""

    def __init__(
        self,
        work: Path,
        pool: ProcessPoolExecutor,
        times: Path = PROFILE,
        rates: Sequence[float] = RATES,
        rows: Sequence[int] = (),
    ) -> None:
        self._work, self._pool, self._times, self.rates = work, pool, times, rates
        self.baselines = SHIPPED, *(System((), most, 4) for most in rows or BASELINE_ROWS)
        ours = tuple((most, 0) for most in rows) or OUR_ROWS
        brink_s = written("liveserve")["step"]["brink_s"]
        self.tried = tuple(
            System(tuple(MECHANISMS), most, 4, brink_s=brink_s, step_rows=in_step) for most, in_step in ours
        )
        work.mkdir(parents=True, exist_ok=True)

    def at(
        self, system: System, rate: float, seeds: tuple[int, ...], barge_in: float = 0.5
    ) -> list[dict[str, float]]:
        system.write(self._work)
        points = [Point(system, rate, seed, barge_in) for seed in seeds]
        return list(self._pool.map(kept, points, repeat(self._work), repeat(self._times)))

    def highest(self, system: System, bounds: dict[str, float], seeds: tuple[int, ...]) -> float:
        """Of the rates, the last before a mean that is under a bound; 0: none."""
        found = 0.0
        for rate in self.rates:
            runs = self.at(system, rate, seeds)
            if any(mean(run[key] for run in runs) < least for key, least in bounds.items()):
                break
            found = rate
        return found


USEFUL = {"completes": COMPLETES, "smooth": SMOOTH}


def tuned(runs: Runs, baseline: System, rates: list[float]) -> System:
    """Of what is tried, the least P90 of the first audio (geometric mean of these loads) among those that are
    as smooth as the baseline at each, within a reply; if none is, the smoothest."""

    def of(system: System, figure: str) -> list[float]:
        return [mean(run[figure] for run in runs.at(system, rate, TUNING)) for rate in rates]

    def lacks(system: System) -> float:
        return max(
            least - smooth - 1 / (rate * ARRIVING_S)
            for rate, least, smooth in zip(rates, of(baseline, "smooth"), of(system, "smooth"), strict=True)
        )

    as_smooth = [system for system in runs.tried if lacks(system) <= 0]
    if not as_smooth:
        return min(runs.tried, key=lacks)
    return min(as_smooth, key=lambda system: geometric_mean(of(system, "ttfp_s.p90")))


def told(a: list[dict[str, float]], b: list[dict[str, float]]) -> dict[str, Any]:
    """Means of both, and b against a: the ratio where all are above 0, else the difference; 95 %."""
    found: dict[str, Any] = {}
    for name in (*TOLD, "smooth", "completes"):
        columns = [[run[name] for run in runs if name in run] for runs in (a, b)]
        if len(columns[0]) != len(columns[1]) or not columns[0]:
            continue
        is_ratio = min(map(min, columns)) > 0
        difference = [after - before for before, after in zip(*columns, strict=True)]
        interval = ratio_interval(*columns) if is_ratio else mean_interval(difference)
        found[name] = {
            "baseline": round(mean(columns[0]), 5),
            "liveserve": round(mean(columns[1]), 5),
            "ratio" if is_ratio else "difference": [interval.mean, interval.low, interval.high],
        }
    return found


def held(runs: Runs, baseline: System, ours: System, rates: list[float]) -> dict[str, Any]:
    """On the tuning seeds, by the lead at which replies are held: means over these loads."""
    systems = {"nobody is held (the baseline)": baseline} | {
        f"{held_s:g} s": msgspec.structs.replace(ours, safe_s=(ours.safe_s[0], held_s)) for held_s in HELD_S
    }
    told: dict[str, Any] = {}
    for name, system in systems.items():
        found = [run for rate in rates for run in runs.at(system, rate, TUNING)]
        told[name] = {figure: round(mean(run[figure] for run in found), 4) for figure in TRADED}
    return told


class Settings(msgspec.Struct, frozen=True):
    """completes_at_most and useful: rates, sessions a second"""

    baseline: System
    liveserve: System
    completes_at_most: float
    useful: dict[str, float]


def rates_of(most: float) -> list[float]:
    """Sessions a second at SHARES."""
    return [round(share * most, 4) for share in SHARES]


def settings(runs: Runs) -> Settings:
    """Of each system its best, on the tuning seeds."""
    useful = {system: runs.highest(system, USEFUL, TUNING) for system in runs.baselines}
    most_useful = max(useful.values())
    baseline = min(
        (system for system in runs.baselines if useful[system] == most_useful),
        key=lambda system: mean(run["ttfp_s.p90"] for run in runs.at(system, most_useful, TUNING)),
    )
    most = runs.highest(baseline, {"completes": COMPLETES}, TUNING)
    ours = tuned(runs, baseline, rates_of(most))
    useful[ours] = runs.highest(ours, USEFUL, TUNING)
    return Settings(baseline, ours, most, {system.name: rate for system, rate in useful.items()})


def evaluated(runs: Runs) -> dict[str, Any]:
    best = settings(runs)
    baseline, ours, most = best.baseline, best.liveserve, best.completes_at_most
    rates = rates_of(most)
    loads = {
        f"{share:g} of {most:g}/s, p_bi {barge_in:g}": {
            name: told(runs.at(before, rate, SEEDS, barge_in), runs.at(ours, rate, SEEDS, barge_in))
            for name, before in (("the best baseline", baseline), ("fcfs as shipped", SHIPPED))
            if barge_in or before is baseline
        }
        for barge_in in (0.5, 0.0)
        for share, rate in zip(SHARES, rates, strict=True)
    }
    parts = [(name,) for name in MECHANISMS]
    parts += [tuple(name for name in MECHANISMS if name != left_out) for left_out in MECHANISMS]
    at_both = (ours.rows, ours.first, ours.safe_s, ours.brink_s, ours.step_rows)
    reference = runs.at(System((), ours.step_rows or ours.rows, ours.first), rates[1], ABLATED)
    ablation = {
        " + ".join(part): told(reference, runs.at(System(part, *at_both), rates[1], ABLATED))
        for part in [*parts, tuple(MECHANISMS)]
    }
    return {
        "baseline": baseline.name,
        "liveserve": ours.name,
        "completes_at_most": most,
        "useful": best.useful,
        "held": held(runs, baseline, ours, rates),
        "loads": loads,
        f"ablation at {SHARES[1]:g} of {most:g}/s": ablation,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("evaluation/liveserve"), help="of what is done")
    parser.add_argument(
        "--profile", type=Path, default=PROFILE, help="times, as antiphon profile writes them"
    )
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="tried, in order")
    parser.add_argument("--rows", type=int, nargs="+", default=(), help="tried, of either system")
    parser.add_argument("--settings", action="store_true", help="only what each system does best with")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        runs = Runs(arguments.work, pool, arguments.profile, arguments.rates, arguments.rows)
        if arguments.settings:
            arguments.out.write_bytes(msgspec.json.format(msgspec.json.encode(settings(runs))))
            return
        found = evaluated(runs)
    provenance.keep(found, arguments.out)


if __name__ == "__main__":
    main()
