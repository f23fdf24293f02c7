"""The twin of an engine that exists: as it was profiled, with what was measured around its steps, and talking
as it was heard to talk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from antiphon.core.config import ArConfig
from antiphon.core.plans import ArStep, CopyBlocks, Step
from antiphon.core.rng import stream
from antiphon.core.sampling import Sampling
from antiphon.latency.features import SpeechFeatures
from antiphon.sim.costs import CostModel
from antiphon.sim.driver import StageModel
from antiphon.sim.executors import ReplyLengths, Talker, Writer
from antiphon.sim.run import Setup, Simulation, machine


@dataclass(frozen=True, slots=True)
class Habits:
    """How a model talks, heard of it: replies that ended by themselves a token drawn, and frames of speech
    beyond one per token of the text, one number a reply."""

    ends_per_token: float
    extra_frames: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Around:
    """What the engine's process does beside what its profile says, in seconds.

    render_s   a prompt rendered; handoff_s: hidden states handed over
    joins_s    by stage, a row that joins, beyond what the profile says of its step
    """

    render_s: float = 0.0
    handoff_s: float = 0.0
    joins_s: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class WithJoins:
    """Costs whose steps take longer by what each row that joins takes. Implements `sim.costs.CostModel`."""

    costs: CostModel
    joins_s: Mapping[str, float]

    @property
    def decide_s(self) -> float:
        return self.costs.decide_s

    def step_s(self, step: Step, stage: str) -> float:
        num_joins = len(step.joins) if isinstance(step, ArStep) else 0
        return self.costs.step_s(step, stage) + num_joins * self.joins_s.get(stage, 0.0)

    def spoken_s(self, features: SpeechFeatures, stage: str) -> float:
        return self.costs.spoken_s(features, stage)

    def copy_s(self, order: CopyBlocks, num_bytes: float) -> float:
        return self.costs.copy_s(order, num_bytes)

    def host_s(self, num_bytes: float) -> float:
        return self.costs.host_s(num_bytes)

    def send_s(self, num_bytes: float) -> float:
        return self.costs.send_s(num_bytes)


@dataclass(frozen=True, slots=True)
class Lengths(ReplyLengths):
    """Of replies that end where they are cut off, or before by chance."""

    ends_per_token: float = 0.0

    def of(self, sampling: Sampling) -> int:
        if not self.ends_per_token:
            return sampling.max_tokens + 1
        return int(stream(sampling.seed, "reply").geometric(self.ends_per_token))


class HabitualTalker(Talker):
    """Speaks a frame a token of the text and some more."""

    def __init__(self, config: ArConfig, end_input: int, extra_frames: tuple[int, ...], seed: int) -> None:
        super().__init__(config, end_input)
        self._extra_frames = extra_frames
        self._seed = seed

    def _num_frames(self, row: int) -> int:
        rng = stream(self._seed, "frames", str(int(self._request[row])))
        extra = self._extra_frames[int(rng.integers(len(self._extra_frames)))]
        return int(self._words[row]) + 1 + extra  # the token with which a text ends is not spoken


def twin(setup: Setup, habits: Habits, around: Around) -> Simulation:
    """A run of the setup's workload on the engine that was profiled, one unit of each stage."""
    node = setup.engine.node
    writer, talker = node.ar
    made = machine(replace(setup, costs=WithJoins(setup.costs, around.joins_s)))
    lengths = Lengths(node.ar[writer].sampling.max_tokens, ends_per_token=habits.ends_per_token)
    talks: dict[str, StageModel] = {
        writer: Writer(node.ar[writer], lengths),
        talker: HabitualTalker(node.ar[talker], node.end_inputs[talker], habits.extra_frames, setup.seed),
    }
    carrier = replace(
        made, models={**made.models, **talks}, render_s=around.render_s, handoff_s=around.handoff_s
    )
    return Simulation(setup, carrier=carrier)
