"""What a step costs in the deciding half: nothing is computed, only decided.

    python benchmarks/deciding.py --rows 256

A node with that many rows in its thinker, each of them decoding, is turned by hand: every step is answered
at once with one token a row. Reported: the round (a view of which every column is read, and the policies'
choice by it), and the whole call of `Node.decide` (fold the step in, account, choose, build the delta),
milliseconds, medians and P99. All rows fill a block in the same steps, one in 16, so that P99 shows them.

With --waiting, instead: a stage of that many rows for which so many more requests of readers wait, under the
preset `tokenflow` and with a host tier. Reported: what a step takes in between rounds (the view and the
policy's choice by it), what a round takes (working set and balancing), and a step with a round, milliseconds
of the processor's time, so that what else the machine does does not count; means, medians and P99. `choices`
is a digest of all that was chosen: two versions that decide alike have the same.

Beside it, what it costs to read who hears what: a session's playback cursor and its phase, of 10,000 that
are in the midst of a reply, microseconds a read; and all cursors at once, milliseconds.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from antiphon.assembly.node import Node
from antiphon.bench import provenance
from antiphon.core.config import ArConfig, EncoderConfig, NodeConfig
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import (
    NO_INTS,
    CopyDone,
    Fact,
    ItemAdded,
    PromptReady,
    ResponseRequested,
    SessionOpened,
    StagePrompt,
    StepDone,
)
from antiphon.core.plans import ArStep, AudioOut, CopyBlocks, Decision, RenderPrompt
from antiphon.core.sampling import Sampling
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor
from antiphon.policy.base import StepView

PROMPT_TOKENS = 300
WATCHED = 10_000
COLUMNS = tuple(StepView.__annotations__)
SECOND = bytes(4 * 24_000)
"""Of audio."""


def node(rows: int, preset: str, steps: int, host: int = 0) -> Node:
    """host: times as many blocks as the device has."""
    blocks = rows * ((PROMPT_TOKENS + steps) // 16 + 4)
    thinker = ArConfig(
        max_rows=rows,
        block_size=16,
        num_blocks=blocks,
        host_blocks=host * blocks,
        step_tokens=rows * PROMPT_TOKENS,
        stop_ids=(1,),
        sampling=Sampling(max_tokens=100_000),
    )
    encoder = {"encoders": EncoderConfig(step_media=1, cached_media=1)}
    return Node(
        NodeConfig(
            graph="qwen3_omni_moe",
            preset=preset,
            ar={"thinker": thinker},
            codec={},
            encoder=encoder,
            end_inputs={},
        )
    )


def asked(rows: int, rate: float | None = None) -> list[Fact]:
    facts: list[Fact] = []
    for row in range(rows):
        session = f"s{row}"
        facts.append(SessionOpened(session))
        facts.append(ItemAdded(session, Item(f"i{row}", "user", (TextPart("x"),))))
        facts.append(ResponseRequested(session, f"r{row}", f"a{row}", speech=False, rate=rate))
    return facts


def answers(decision: Decision, rng: np.random.Generator) -> list[Fact]:
    facts: list[Fact] = []
    for order in decision.orders:
        if isinstance(order, RenderPrompt):
            ids = rng.integers(10, 1000, PROMPT_TOKENS)
            facts.append(
                PromptReady(order.request, {"thinker": StagePrompt(ids, ids, (), len(ids), NO_INTS)})
            )
    return facts


def done(step: ArStep, requests: np.ndarray) -> StepDone:
    emitted = requests[step.rows[step.emits == 1]]
    tokens = np.full((len(emitted), 1), 7, np.int64)
    return StepDone(step.stage, step.step, emitted, tokens, NO_INTS, NO_INTS)


def run(rows: int, preset: str, steps: int) -> dict[str, list[float]]:
    made = node(rows, preset, steps)
    scheduler = made.stages.ar["thinker"]
    decision = made.decide(asked(rows), 0.0)
    facts = answers(decision, np.random.default_rng(0))
    requests = np.zeros(rows, np.int64)
    times: dict[str, list[float]] = {"decide_ms": [], "round_ms": []}
    for turn in range(steps):
        started = time.perf_counter()
        decision = made.decide(facts, turn * 0.01)
        took_ms = (time.perf_counter() - started) * 1e3
        facts = answers(decision, np.random.default_rng(turn))
        for order in decision.orders:
            if isinstance(order, ArStep):
                for join in order.joins:
                    requests[join.row] = join.request
                facts.append(done(order, requests))
                if len(order.rows) == rows and not order.joins:
                    times["decide_ms"].append(took_ms)
        started = time.perf_counter()
        scheduler.tell_time(turn * 0.01)
        view, _ = scheduler.choose(turn * 0.01)
        for column in COLUMNS:
            getattr(view, column)
        times["round_ms"].append((time.perf_counter() - started) * 1e3)
    return times


def crowded(rows: int, waiting: int, steps: int) -> dict[str, Any]:
    """What a choice takes while readers wait for rows and memory."""
    made = node(rows, "tokenflow", steps, host=4)
    scheduler = made.stages.ar["thinker"]
    policy: Any = made.stages.ar["thinker"]._policies.step.policy  # type: ignore[attr-defined]
    rounds, chosen = TimedRounds(policy), hashlib.sha256()
    facts, rng = asked(rows + waiting, 15.0), np.random.default_rng(0)
    requests = np.zeros(rows, np.int64)
    times: dict[str, list[float]] = {"between_rounds_ms": [], "round_ms": [], "with_round_ms": []}
    for turn in range(steps):
        now = turn * 0.02
        scheduler.tell_time(now)
        rounds.took_ms = 0.0
        started = time.thread_time()
        view, choice = scheduler.choose(now)
        took_ms = (time.thread_time() - started) * 1e3
        for column in (view.request, choice.order, choice.preempt):
            chosen.update(column.tobytes())
        if rounds.took_ms:
            times["round_ms"].append(rounds.took_ms)
            times["with_round_ms"].append(took_ms)
        elif times["round_ms"]:
            times["between_rounds_ms"].append(took_ms)
        decision = made.decide(facts, now)
        facts = answers(decision, rng)
        for order in decision.orders:
            if isinstance(order, ArStep):
                for join in order.joins:
                    requests[join.row] = join.request
                facts.append(done(order, requests))
            elif isinstance(order, CopyBlocks):
                facts.append(CopyDone(order.stage, order.ticket, 0.001))
    return {
        "steps": steps,
        "preempted": policy.events["preempted"],
        "brought": policy.events["brought"],
        **{name: {"mean": round(mean(values), 4), **shares(values)} for name, values in times.items()},
        "choices": chosen.hexdigest()[:16],
    }


class TimedRounds:
    """In the place of a policy's rounds. took_ms: of the last one; 0: there was none since that was set."""

    def __init__(self, policy: Any) -> None:
        self.took_ms = 0.0
        self._decide = policy._rounds.decide
        policy._rounds.decide = self.decide

    def decide(self, *about: Any) -> Any:
        started = time.thread_time()
        plan = self._decide(*about)
        self.took_ms = (time.thread_time() - started) * 1e3
        return plan


def reads() -> dict[str, dict[str, float]]:
    """Views of many sessions, in an order of no use to any cache."""
    monitor, names = Monitor(Frontier(3, 0.08)), [f"s{n}" for n in range(WATCHED)]
    for name in names:
        monitor.observe(SessionOpened(name), 0.0)
        monitor.observe(ResponseRequested(name, f"r-{name}", "item"), 0.0)
        monitor.hear([AudioOut(name, f"r-{name}", SECOND)], 0.1)
    mixed = [names[n] for n in np.random.default_rng(0).permutation(WATCHED)]
    some = parts(mixed)
    cursor = spans([partial(each, lambda name: monitor.buffer_s(name, 0.5), part) for part in some])
    phase = spans([partial(each, lambda name: monitor.phase(name, 0.5), part) for part in some])
    return {
        "read_cursor_us": shares([1e6 * span / 100 for span in cursor]),
        "read_phase_us": shares([1e6 * span / 100 for span in phase]),
    }


def parts(names: list[str]) -> list[list[str]]:
    """A hundred at a time: the clock costs about as much as a read."""
    return [names[first : first + 100] for first in range(0, len(names), 100)]


def each(read: Callable[[str], object], names: list[str]) -> None:
    for name in names:
        read(name)


def spans(calls: list[Callable[[], object]]) -> list[float]:
    """Seconds of each."""
    out: list[float] = []
    for call in calls:
        started = time.perf_counter()
        call()
        out.append(time.perf_counter() - started)
    return out


def shares(values: list[float]) -> dict[str, float]:
    return {f"p{p}": round(float(np.percentile(values, p)), 4) for p in (50, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--waiting", type=int, help="readers that wait for a row")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--preset", default="baseline")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    gc.freeze()  # as the engine does once a model is loaded
    if arguments.waiting is not None:
        found = crowded(arguments.rows, arguments.waiting, arguments.steps)
        provenance.keep({"rows": arguments.rows, "waiting": arguments.waiting, **found}, arguments.out)
        return
    times = run(arguments.rows, arguments.preset, arguments.steps)
    result = {
        "rows": arguments.rows,
        "preset": arguments.preset,
        **{name: shares(values) for name, values in times.items()},
        "watched_sessions": WATCHED,
        **reads(),
    }
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
