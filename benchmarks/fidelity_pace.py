"""How fast the machine is just now, beside its profile.

Shared machines, and cores that clock as they like, drift by a quarter within minutes: a profile says what a
step took when it was made. So before and after every run an engine beside it gives a few replies, and their
steps are compared with what the profile says of them. The twin of that run takes its times at this pace.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from fidelity_twin import Around

from antiphon.core.conversation import Item
from antiphon.core.facts import Fact, ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import CopyBlocks, Output, ResponseEnded, Step
from antiphon.core.ports import Executor
from antiphon.core.rng import stream
from antiphon.engine.load import Engine
from antiphon.latency.profile import Profile
from antiphon.runtime.driver import Driver
from antiphon.runtime.stage_times import Stopwatch
from antiphon.runtime.synthetic_steps import recording

CONVERSATIONS, TURNS, REPLY_TOKENS = 3, 4, 14
VOICE_S, PAUSE_S = 1.0, 0.1


@dataclass(frozen=True, slots=True)
class Paced:
    """A profile whose times all take `pace` times as long. Implements `sim.costs.CostModel`."""

    profile: Profile
    pace: float

    @property
    def decide_s(self) -> float:
        return self.pace * self.profile.decide_s

    def step_s(self, step: Step, stage: str | None = None) -> float:
        return self.pace * self.profile.step_s(step, stage)

    def copy_s(self, order: CopyBlocks, num_bytes: float) -> float:
        return self.pace * self.profile.copy_s(order, num_bytes)

    def host_s(self, num_bytes: float) -> float:
        return self.pace * self.profile.host_s(num_bytes)

    def send_s(self, num_bytes: float) -> float:
        return self.pace * self.profile.send_s(num_bytes)


class Probed:
    """An executor whose steps are timed."""

    def __init__(self, inner: Executor, profile: Profile, sums: list[float]) -> None:
        self.depth = inner.depth
        self._inner, self._profile, self._sums = inner, profile, sums
        self._watch = Stopwatch()

    def submit(self, step: Step) -> None:
        self._watch.start()
        self._inner.submit(step)
        self._sums[0] += self._watch.stop()
        self._sums[1] += self._profile.step_s(step)

    def poll(self) -> list[Fact]:
        return self._inner.poll()


def pace(engine: Engine, profile: Profile) -> float:
    """Seconds that the steps of some replies take, by those that the profile says."""
    sums, ended = [0.0, 0.0], list[ResponseEnded]()

    def emit(outputs: tuple[Output, ...]) -> None:
        ended.extend(output for output in outputs if isinstance(output, ResponseEnded))

    executors = {name: Probed(one, profile, sums) for name, one in engine.executors.items()}
    driver = Driver(replace(engine, executors=executors), emit)
    for number in range(CONVERSATIONS):
        session = f"pace-{number}"
        driver.advance([SessionOpened(session)])
        for turn in range(TURNS):
            time.sleep(PAUSE_S)
            name, count = f"{session}-{turn}", len(ended)
            voice = recording(stream(0, "pace", name), VOICE_S)
            item = Item(name, "user", (voice,))
            asked = ResponseRequested(session, name, f"reply-{name}", max_tokens=REPLY_TOKENS)
            driver.advance([ItemAdded(session, item), asked])
            while len(ended) == count:
                driver.advance([])
        driver.advance([SessionClosed(session)])
    while driver.advance([]):
        pass
    return sums[0] / sums[1]


def at_pace(around: Around, pace: float) -> Around:
    joins = {stage: pace * taken for stage, taken in around.joins_s.items()}
    return Around(pace * around.render_s, pace * around.handoff_s, joins)
