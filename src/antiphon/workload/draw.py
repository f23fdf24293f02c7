"""From laws to scripts. Every quantity of every turn is drawn from a stream of its own, named by the
quantity, the session and the turn: another law for one leaves all others as they were, and so does a longer
session.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice, repeat, takewhile

from antiphon.core.errors import ConfigError
from antiphon.core.rng import stream
from antiphon.workload.agents import Agents, Call, Jobs, laid_out, width_law
from antiphon.workload.arrivals import Arrivals, Replay
from antiphon.workload.dialogue import Dialogue
from antiphon.workload.laws import Rng, pick
from antiphon.workload.script import JobCall, JobScript, Script
from antiphon.workload.spec import Workload
from antiphon.workload.trace_rows import TraceSession
from antiphon.workload.traces import sessions_of
from antiphon.workload.turns import Dice, person

Group = Dialogue | Jobs | Agents


def draw(workload: Workload, seed: int) -> Iterator[Script]:
    """Scripts in order of arrival. Endless only for a closed load that says no number of sessions.

    Raises ConfigError where the workload's trace can't be read or has no times to replay, when the first
    script is asked for.
    """
    trace = sessions_of(workload.trace) if workload.trace else ()
    sources = [_sharing(workload, seed, trace)]
    sources += [
        _own(workload, name, group, group.arrivals, seed, trace)
        for name, group in [*workload.jobs.items(), *workload.agents.items()]
        if group.arrivals is not None
    ]
    yield from merge(*sources, key=lambda script: script.arrival_s)


def _sharing(workload: Workload, seed: int, trace: tuple[TraceSession, ...]) -> Iterator[Script]:
    """Those who come by the load's own arrivals; which group each belongs to is a draw of its own."""
    groups = list(workload.sharing.items())
    shares = tuple(group.share for _, group in groups)
    for index, arrival_s in enumerate(_load_times(workload, seed, trace)):
        dice = Dice(seed, "load", index)
        name, group = groups[pick(shares, dice.of("group"))]
        said = trace[index % len(trace)] if trace else None
        yield _script(f"{name}-{index}", group, arrival_s, dice, said)


def _own(
    workload: Workload, name: str, group: Group, law: Arrivals, seed: int, trace: tuple[TraceSession, ...]
) -> Iterator[Script]:
    """Those of a group that comes beside the load, while the load lasts."""
    times = _until(_times(law, stream(seed, "arrivals", name), trace), workload.load.duration_s)
    for index, arrival_s in enumerate(times):
        yield _script(f"{name}-{index}", group, arrival_s, Dice(seed, name, index), None)


def _load_times(workload: Workload, seed: int, trace: tuple[TraceSession, ...]) -> Iterator[float]:
    load = workload.load
    if load.open is None:
        return islice(repeat(0.0), load.sessions)
    times = _times(load.open.arrivals, stream(seed, "arrivals", "load"), trace)
    return islice(_until(times, load.duration_s), load.sessions)


def _times(law: Arrivals, rng: Rng, trace: tuple[TraceSession, ...]) -> Iterator[float]:
    if isinstance(law, Replay) and law.replay.times_s is None:
        times_s = tuple(session.arrival_s for session in trace if session.arrival_s is not None)
        if len(times_s) < len(trace):
            raise ConfigError("arrivals are to be replayed, but the workload's trace has no times")
        law = Replay(replay=law.replay.model_copy(update={"times_s": times_s}))
    return law.times(rng)


def _until(times: Iterator[float], duration_s: float | None) -> Iterator[float]:
    return times if duration_s is None else takewhile(lambda time_s: time_s < duration_s, times)


def _script(name: str, group: Group, arrival_s: float, dice: Dice, said: TraceSession | None) -> Script:
    if isinstance(group, Dialogue):
        return person(name, group, arrival_s, dice, said)
    return job(name, group, arrival_s, dice)


def job(name: str, group: Jobs | Agents, arrival_s: float, dice: Dice) -> JobScript:
    """A single call, or the calls of an agent's graph."""
    if isinstance(group, Jobs):
        placed: list[tuple[Call, tuple[int, ...]]] = [(group.call, ())]
    else:
        law = width_law(group.graph)
        placed = laid_out(group.graph, 1 if law is None else dice.whole("width", law))
    calls = tuple(_call(call, after, dice, index) for index, (call, after) in enumerate(placed))
    return JobScript(name, arrival_s, calls, group.tier, group.instructions, group.rate)


def _call(call: Call, after: tuple[int, ...], dice: Dice, index: int) -> JobCall:
    return JobCall(
        prompt=dice.passage(dice.whole("prompt_words", call.words, index), index),
        max_output_tokens=dice.whole("job_output", call.max_output_tokens, index),
        after=after,
        wait_s=dice.draw("tool", call.tool_s, index),
    )
