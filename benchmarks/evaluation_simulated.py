"""The simulated half of the evaluation: what people meet, what is evicted, how far generation runs ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evaluation_progress import Progress, curves

from antiphon.assembly.node import Node
from antiphon.core.conversation import AudioPart, Item
from antiphon.core.facts import Fact, ItemAdded, ResponseRequested, SessionOpened
from antiphon.core.plans import AudioOut, Output, ResponseEnded
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ
from antiphon.latency.finding import find_costs
from antiphon.latency.profile import Profile
from antiphon.metrics.log import RunStarted, ServerSampled
from antiphon.metrics.names import Metric
from antiphon.metrics.recorder import fold
from antiphon.metrics.samples import parse_key
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.driver import VirtualDriver
from antiphon.sim.events import Agenda
from antiphon.sim.model import SimEngine, engine_of
from antiphon.sim.places import Replicas
from antiphon.sim.run import Outcome, Setup, Simulation, machine
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named
from antiphon.workload.spec import Workload

HARDWARE = "H200"
PROFILE = find_costs(HARDWARE)
SLOW_GB_PER_S = 8.0
"""To and from the host, where copies don't reach what the datasheet says. LiveServe reports 71 ms for one
turn's reload (Figure 16), which at the datasheet's speed would be 3.6 GB."""
SIMULATED_KV_TOKENS = 8192
"""Of a replica: some sixteen conversations of the interactive workload. A whole H200 holds many times more;
what is shown is memory that is short for the load, not a certain machine."""
HOST_TOKENS, ROOMY_KV_TOKENS = 1 << 20, 1 << 19
BURSTGPT_CV = 2.37
"""Of the gaps between sessions' arrivals in BurstGPT: 1 is a Poisson process."""
RATES = {"sharegpt-speech": 1.0, "interactive": 1.8, "mixed": 3.0}
"""Sessions a second."""
SPEAKERS = {"sharegpt-speech": ("talker",), "interactive": ("talker",), "mixed": ("talker", "onlooker")}
TABLE_S = {"sharegpt-speech": 45.0, "interactive": 120.0, "mixed": 45.0}
"""A session of the interactive workload takes a minute or two, of the others less."""
LONG = {"speech": {"seconds": {"uniform": [20, 60]}}, "turns": {"uniform": [6, 12]}}
"""What people of the interactive workload say, if they talk for long: pasts of some 5,000 tokens."""
LONG_KV_TOKENS, LONG_S, LEAD_S = 32768, 600.0, 240.0
NOBODY = RunStarted(
    t_s=0.0, label="", url="", workload="", seed=0, command="", commit="", machine="", version="", unix_s=0.0
)
TOLD = (
    *("ttfp_s.p50", "ttfp_s.p90", "ttfp_s.p99", "jct_s.p90", "jct_s.p99", "rtf.p90", "continuity"),
    *("completed_rps", "turns", "cache_hit_share", "reload_s", "waste_ratio"),
)


def costs(system: str) -> Profile:
    """The hardware; with a slow link to the host for a system that says so."""
    if not system.endswith("slow"):
        return PROFILE
    return PROFILE.with_host_link(SLOW_GB_PER_S * 1e9)


def engine(system: str, *, replicas: int = 1, kv_tokens: int = SIMULATED_KV_TOKENS) -> SimEngine:
    """`fcfs`, `fcfs+lru` with a host tier, `fcfs+lru-slow` with a slow link to it, or `roomy`: `fcfs` whose
    KV is never short."""
    if system == "roomy":
        kv_tokens = ROOMY_KV_TOKENS
    places = Replicas(replicas, replicas, apart=replicas > 1)
    host_tokens = HOST_TOKENS if system.startswith("fcfs+lru") else 0
    return engine_of(costs(system), "fcfs", Sizes(kv_tokens=kv_tokens, host_kv_tokens=host_tokens), places)


def told(outcome: Outcome) -> dict[str, float]:
    found = figures(fold(outcome.events), Slo())
    said = {name: found[name] for name in TOLD if name in found}
    wasted = {key: value for key, value in found.items() if key.startswith("waste_token_ratio")}
    last = [event for event in outcome.events if isinstance(event, ServerSampled)][-1].values
    counted = {
        metric.value: sum(value for key, value in last.items() if parse_key(key)[0] == metric)
        for metric in (Metric.KV_BLOCKS_EVICTED, Metric.KV_BLOCKS_RELOADED, Metric.PREEMPTIONS)
    }
    return {key: round(value, 5) for key, value in (said | wasted | counted).items()}


def play(workload: Workload, made: SimEngine, hardware: Profile = PROFILE) -> Outcome:
    return Simulation(Setup(workload, hardware, 0, made)).play(NOBODY)


def table(workload: str, arrivals: str, barge_in: float, system: str) -> dict[str, float]:
    """LiveServe's machine: four replicas of the thinker, four of the talker."""
    gaps: dict[str, Any] = {"rate_per_s": RATES[workload]}
    law = {"poisson": gaps} if arrivals == "poisson" else {"gamma": gaps | {"cv": BURSTGPT_CV}}
    settings: dict[str, Any] = {"load": {"open": {"arrivals": law, "duration_s": TABLE_S[workload]}}}
    settings |= {f"people.{who}.barge_in.probability": barge_in for who in SPEAKERS[workload]}
    return told(play(changed(named(workload), settings), engine(system, replicas=4)))


def load(system: str, conversations: int) -> dict[str, float]:
    """Figure 5 (a): so many long conversations at a time at one replica."""
    settings: dict[str, Any] = {"load": {"closed": {"concurrency": conversations, "duration_s": LONG_S}}}
    settings |= {f"people.talker.{key}": value for key, value in LONG.items()}
    made = engine(system, kv_tokens=LONG_KV_TOKENS)
    return told(play(changed(named("interactive"), settings), made, costs(system)))


def lead(barge_in: float) -> dict[str, float]:
    """What is generated and never heard, by how often people barge in."""
    settings = {
        "load": {"closed": {"concurrency": 8, "duration_s": LEAD_S}},
        "people.talker.barge_in.probability": barge_in,
    }
    return told(play(changed(named("interactive"), settings), engine("roomy")))


def completion() -> list[dict[str, Any]]:
    """Figure 4: replies to one person after the other."""
    settings = {
        "load": {"closed": {"concurrency": 1, "sessions": 12}},
        "people.talker.think_s": 1.0,
    }
    progress = Progress()
    setup = Setup(changed(named("interactive"), settings), PROFILE, 0, engine("roomy"))
    Simulation(replace(setup, recorder=progress)).play(NOBODY)
    return curves(progress)


class Conversation:
    """One driver, and people who ask by voice one after the other."""

    def __init__(self, made: SimEngine, setup: Setup) -> None:
        self._agenda = Agenda()
        node = Node(made.node, made.depth)
        self.driver = VirtualDriver(node, machine(setup), self._agenda, self._hear)
        self._count = 0
        self._first_s: float | None = None
        self._is_over = False

    def ask(self, session: str, audio_tokens: int) -> float:
        """Says so much, and a short reply; returns its seconds to the first audio."""
        self._count += 1
        self._first_s, self._is_over = None, False
        began_s = self._agenda.now
        name = f"{session}-{self._count}"
        for fact in self._facts(session, name, audio_tokens):
            self.driver.tell(fact)
        self._agenda.run(began_s + 1000.0, lambda: self._is_over)
        assert self._first_s is not None
        return self._first_s - began_s

    def _facts(self, session: str, name: str, audio_tokens: int) -> list[Fact]:
        samples = round(audio_tokens / TOKENS_PER_S * MODEL_SAMPLE_RATE_HZ)
        voice = AudioPart(bytes(4 * samples), self._count)
        return [
            *([SessionOpened(session)] if self._count <= 2 else []),
            ItemAdded(session, Item(name, "user", (voice,))),
            ResponseRequested(session, name, f"reply-{name}", max_tokens=20),
        ]

    def _hear(self, output: Output) -> None:
        if isinstance(output, AudioOut) and self._first_s is None:
            self._first_s = self._agenda.now
        elif isinstance(output, ResponseEnded):
            assert output.status in ("completed", "incomplete"), output.message
            self._is_over = True


TOKENS_PER_S = 13.0
"""Of speech that is heard."""


def reloads(tokens: int) -> dict[str, float]:
    """Figure 5 (b): the first audio of a second turn whose past of so many tokens stayed on the device, went
    to the host, or is gone: another conversation as long had the device in between."""
    found: dict[str, float] = {"tokens": tokens}
    room = tokens * 3 // 2
    for name, system, kv_tokens in (
        ("resident", "fcfs", 4 * tokens + 4096),
        ("reloaded", "fcfs+lru", room),
        ("recomputed", "fcfs", room),
    ):
        made = engine(system, kv_tokens=kv_tokens)
        talk = Conversation(made, Setup(named("smoke"), PROFILE, 0, made))
        talk.ask("a", tokens)
        talk.ask("b", tokens)
        found[f"{name}_ttfp_s"] = round(talk.ask("a", 40), 5)
        stats = talk.driver.stats()
        reload_s = sum(value for key, value in stats.items() if parse_key(key)[0] == Metric.RELOAD_SECONDS)
        found[f"{name}_reload_s"] = round(reload_s, 5)
    return found
