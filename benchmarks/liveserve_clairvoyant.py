"""What the wait for a row could be at best, near the load that liveserve.py finds: newcomers let in by who
knew at which moment each listener will break in.

    python benchmarks/liveserve_clairvoyant.py --out benchmarks/results/liveserve-clairvoyant.json

Takes two minutes. A model of the talker alone: in a step each row that runs makes a frame of sound, and the
step takes as long as talker and vocoder take for so many rows by the profile, with the thinker's share of the
machine beside it. Turns come as they came to the simulated baseline, and listeners hear as much of each reply
as they heard there; those that are cut are made on until then. A listener plays a reply chunk by chunk from
the first on, and pauses where it has no more. `simulated` is the baseline in the simulator: how true the
model is.

fcfs         rows share alike
urgent       of 16 rows the eight that are ahead least run in a step; whoever comes first is let in
expected     that, and a newcomer is let in only where all that is being made can still be made in time: what
             must be there by any moment s from now, by how long replies of this workload are heard, is at
             most what the machine makes in s
knows cuts   that by how long each will really be heard
clairvoyant  that, and nothing is made which will not be heard
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import liveserve
import numpy as np

from antiphon.bench import provenance
from antiphon.core.facts import Floats
from antiphon.latency.costs import ProfiledCodec, ProfiledDecoder
from antiphon.latency.models import ArModel, CodecModel
from antiphon.latency.profile import Profile
from antiphon.metrics.recorder import fold

RATE, SEEDS = 0.209, (0, 1, 2, 3, 4)
"""0.95 of what the best baseline completes, as liveserve.py found it."""
FRAME_S, REPLY_S, LEAST_S = 0.08, 40.0, 0.5
FIRST, CHUNK = 4, 4
"""Frames of the first chunk of sound, and of those after it."""
CONTEXT = 300
"""Tokens that a row has before it, on average."""
THINKING = 0.09
"""The thinker's share of the machine at this load."""
SLOWER = 1.05, 1.12
"""Than by the profile: with streams that are not decoded together, and what is not modelled. Between them the
baseline waits as long, and has as many gaps, as in the simulator."""
ROWS = 16
AT_ONCE = 8
"""Rows that run in a step where the policy chooses them."""
GAP_S = 0.1
MOMENTS_S = np.array((0.5, 1, 1.5, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 30, 40))


class Machine:
    """How long a step of so many rows takes, seconds, and what one of AT_ONCE rows makes in a second."""

    def __init__(self, profile: Profile, slower: float) -> None:
        talker, vocoder = (profile.stages[name].model for name in ("talker", "code2wav"))
        assert isinstance(talker, ArModel)
        assert isinstance(vocoder, CodecModel)
        decoder, codec = ProfiledDecoder(talker), ProfiledCodec(vocoder)
        self._step_s = [0.0]
        for n in range(1, ROWS + 1):
            rows = np.ones(n, np.int64)
            busy_s = decoder.seconds(rows, rows * CONTEXT) + codec.seconds(rows * CHUNK, rows) / CHUNK
            busy_s += profile.decide_s * (1 + 1 / CHUNK)
            self._step_s.append(slower * busy_s / (1 - THINKING))
        self.makes = AT_ONCE * FRAME_S / self._step_s[AT_ONCE]

    def step_s(self, rows: int) -> float:
        return self._step_s[rows]


class Turns(NamedTuple):
    """When they were complete, seconds, and how much of each reply was heard, seconds of sound; [n] each."""

    at_s: Floats
    heard_s: Floats


Door = Callable[[Floats, Floats, Floats], bool]
"""Whether the newcomer is let in. Of all that are being made and of it, which is the last one: how far each
is ahead of its listener, how much of it is made, and how much is wanted, seconds of sound, [n] each."""


def anybody(lead_s: Floats, made_s: Floats, wanted_s: Floats) -> bool:
    return True


def known(makes: float) -> Door:
    """By how much is wanted of each; `makes` seconds of sound in one."""

    def door(lead_s: Floats, made_s: Floats, wanted_s: Floats) -> bool:
        lacks_s = wanted_s - made_s
        moments_s = np.concatenate((lead_s, lead_s + lacks_s))
        moments_s = moments_s[moments_s > 1e-9]
        needed_s = np.clip(moments_s[:, None] - lead_s, 0, lacks_s).sum(1)
        return bool((needed_s <= makes * moments_s + 1e-9).all())

    return door


def expected(makes: float, barge_in: float = 0.5) -> Door:
    """By how long replies of this workload are heard: a share of them is cut at any moment."""
    lengths_s = np.arange(0.0, REPLY_S + 0.5, 0.5)
    cut = np.clip((lengths_s - LEAST_S) / (REPLY_S - LEAST_S), 0, 1)
    lasts = 1 - barge_in * cut
    up_to_s = np.concatenate(([0.0], np.cumsum((lasts[1:] + lasts[:-1]) / 4)))

    def door(lead_s: Floats, made_s: Floats, wanted_s: Floats) -> bool:
        until_s = np.minimum(made_s + np.maximum(MOMENTS_S[:, None] - lead_s, 0), REPLY_S)
        needed_s = np.interp(until_s, lengths_s, up_to_s) - np.interp(made_s, lengths_s, up_to_s)
        needed_s /= np.interp(made_s, lengths_s, lasts)
        return bool((needed_s.sum(1) <= makes * MOMENTS_S).all())

    return door


class Play:
    """One run. made_s, played_s, lost_s: of each reply, what is made and played of it, and how long its
    listener had nothing to play after its first sound, [n]. `urgent`: those ahead least run first."""

    def __init__(self, machine: Machine, turns: Turns, rows: int, at_once: int, urgent: bool) -> None:
        self._machine, self._turns, self._rows, self._at_once = machine, turns, rows, at_once
        self._urgent = urgent
        num = len(turns.at_s)
        self.made_s, self.played_s, self.lost_s = np.zeros(num), np.zeros(num), np.zeros(num)
        self.first_at_s = np.full(num, np.nan)
        self._whole_s = np.full(num, REPLY_S)
        self._heard = np.zeros(num, np.bool_)

    def run(self, door: Door, wanted_s: Floats, spares: bool) -> dict[str, float]:
        """`wanted_s`: of each reply, what the door knows. `spares`: nothing is made beyond it."""
        at_s, running, now, come = self._turns.at_s, list[int](), 0.0, 0
        whole_s = self._whole_s = wanted_s if spares else self._whole_s
        while not self._heard.all():
            while come < len(at_s) and at_s[come] <= now and len(running) < self._rows:
                beside = np.array([*running, come])
                if running and not door(self._leads_s(beside), self.made_s[beside], wanted_s[beside]):
                    break
                running.append(come)
                come += 1
            chosen = np.array(running[: self._at_once], np.int64)
            if self._urgent and running:
                beside = np.array(running)
                chosen = beside[np.argsort(self._leads_s(beside), kind="stable")[: self._at_once]]
            took_s = self._machine.step_s(len(chosen)) if len(chosen) else FRAME_S / 4
            self.made_s[chosen] = np.minimum(self.made_s[chosen] + FRAME_S, whole_s[chosen])
            self._listen(took_s)
            now += took_s
            begins = np.isnan(self.first_at_s) & (self.made_s >= np.minimum(FIRST * FRAME_S, whole_s) - 1e-9)
            self.first_at_s[begins] = now
            running = [
                one for one in running if not self._heard[one] and self.made_s[one] < whole_s[one] - 1e-9
            ]
        waited_s = self.first_at_s - at_s
        return {
            "p50_s": round(float(np.median(waited_s)), 3),
            "p90_s": round(float(np.percentile(waited_s, 90)), 3),
            "smooth": round(float((self.lost_s <= GAP_S).mean()), 4),
            "unheard": round(float(1 - self.played_s.sum() / self.made_s.sum()), 4),
        }

    def _leads_s(self, ones: Any) -> Floats:
        return np.where(np.isnan(self.first_at_s[ones]), 0.0, self.made_s[ones] - self.played_s[ones])

    def _listen(self, seconds: float) -> None:
        plays = ~np.isnan(self.first_at_s) & ~self._heard
        frames = np.round(self.made_s / FRAME_S)
        in_chunks_s = (frames - (frames - FIRST) % CHUNK) * FRAME_S
        sent_s = np.where(self.made_s >= self._whole_s - 1e-9, self.made_s, in_chunks_s)
        there_s = np.minimum(sent_s, self._turns.heard_s) - self.played_s
        played_s = np.where(plays, np.clip(there_s, 0, seconds), 0.0)
        self.played_s += played_s
        self._heard |= plays & (self.played_s >= self._turns.heard_s - 1e-9)
        self.lost_s += np.where(plays & ~self._heard, seconds - played_s, 0.0)


def simulated(seed: int, work: Path) -> tuple[Turns, dict[str, float]]:
    """Turns of the simulated baseline, and what came of them there."""
    point = liveserve.Point(liveserve.System((), 9, FIRST), RATE, seed)
    point.system.write(work)
    found = provenance.once(work / f"{point.name}.json", lambda: came(point, work))
    return Turns(*map(np.array, zip(*found["replies"], strict=True))), found["told"]


def came(point: liveserve.Point, work: Path) -> dict[str, Any]:
    events = liveserve.events_of(point, work, liveserve.PROFILE)
    heard = [(one.turn_ended_s, min(float(one.heard_s), REPLY_S)) for one in fold(events).responses]
    told = liveserve.run_figures(events)
    figures = {"p50_s": "ttfp_s.p50", "p90_s": "ttfp_s.p90", "smooth": "smooth", "unheard": liveserve.WASTE}
    return {
        "replies": sorted(one for one in heard if one[1] > 0),
        "told": {name: told[figure] for name, figure in figures.items()},
    }


def compared(machine: Machine, turns: Turns) -> dict[str, dict[str, float]]:
    whole_s = np.full(len(turns.at_s), REPLY_S)

    def played(
        rows: int, at_once: int, door: Door = anybody, wanted_s: Floats = whole_s, spares: bool = False
    ) -> dict[str, float]:
        return Play(machine, turns, rows, at_once, rows != at_once).run(door, wanted_s, spares)

    by_length, by_ear = expected(machine.makes), known(machine.makes)
    return {
        "fcfs, 8 rows": played(8, 8),
        "fcfs, 9 rows": played(9, 9),
        "urgent": played(ROWS, AT_ONCE),
        "expected": played(ROWS, AT_ONCE, by_length),
        "knows cuts": played(ROWS, AT_ONCE, by_ear, turns.heard_s),
        "clairvoyant": played(ROWS, AT_ONCE, by_ear, turns.heard_s, spares=True),
    }


def told(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Means, and P90 of each seed."""
    means: dict[str, Any] = {figure: round(mean(run[figure] for run in runs), 3) for figure in runs[0]}
    return means | {"p90_s of each seed": [round(run["p90_s"], 2) for run in runs]}


def main() -> None:
    args = provenance.parser(__doc__, "liveserve-clairvoyant").parse_args()
    profile = Profile.from_json(liveserve.PROFILE.read_bytes())
    came = [simulated(seed, args.work) for seed in SEEDS]
    result: dict[str, Any] = {"rate": RATE, "simulated": told([found for _, found in came])}
    for slower in SLOWER:
        machine = Machine(profile, slower)
        runs: dict[str, list[dict[str, float]]] = {}
        for turns, _ in came:
            for name, one in compared(machine, turns).items():
                runs.setdefault(name, []).append(one)
        systems = {name: told(ones) for name, ones in runs.items()}
        result[f"steps {slower:g} times as long"] = {"makes": round(machine.makes, 2)} | systems
    provenance.keep(result, args.out)


if __name__ == "__main__":
    main()
