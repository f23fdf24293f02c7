"""One simulated run: people and jobs against nodes, each in their time, until all are done or time is up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from antiphon.assembly.guard import Observed, Overruled
from antiphon.assembly.node import Node
from antiphon.assembly.preset import readers_of
from antiphon.assembly.watched import Incident
from antiphon.core.errors import ConfigError
from antiphon.core.graph import Stage, StageKind
from antiphon.core.plans import Output
from antiphon.graphs import find_graph
from antiphon.metrics.log import (
    ErrorSeen,
    Event,
    RunEnded,
    RunStarted,
    ServerSampled,
    SessionEnded,
    SessionQueued,
)
from antiphon.people.acts import Wait
from antiphon.people.downlink import GaveUp
from antiphon.people.seat import PLACE_S, RETRY_S, session_started
from antiphon.sim.client import Client
from antiphon.sim.costs import CostModel
from antiphon.sim.devices import Devices
from antiphon.sim.driver import Recorder, SimulatedMachine, StageModel, VirtualDriver
from antiphon.sim.events import Agenda, Rank
from antiphon.sim.executors import ReplyLengths, Talker, Vocoder, WindowedVocoder, Writer
from antiphon.sim.links import Network
from antiphon.sim.log import Log
from antiphon.sim.model import SimEngine, released
from antiphon.sim.process import Process, Waiting
from antiphon.sim.prompter import SimPrompter
from antiphon.sim.reading import ReadingVoice, RecordingEncoder, Transcriber
from antiphon.sim.suited import check_suited
from antiphon.workload.draw import draw
from antiphon.workload.script import Script
from antiphon.workload.spec import Workload

SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated. Raises ConfigError for a workload that the engine cannot serve.

    costs       of the engine's steps, by stage
    patience_s  for so long a person waits for the next sign of a reply before they give up
    recorder    of the node's facts and decisions
    clock       of the host: decisions take as long as they do by it; None: as long as the costs say
    """

    workload: Workload
    costs: CostModel
    seed: int = 0
    engine: SimEngine = field(default_factory=released)
    network: Network = field(default_factory=Network)
    patience_s: float = 60.0
    recorder: Recorder | None = None
    clock: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        check_suited(self.workload, self.engine.node)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run's log as bytes and as events, why it ended, and how much was done for it.

    deciding_share  of its time the node was deciding
    incidents       what policies did wrong
    """

    log: bytes
    events: list[Event]
    reason: str
    num_decisions: int
    deciding_share: float
    incidents: tuple[Incident, ...] = ()
    overruled: tuple[Overruled, ...] = ()
    """Decisions that the baseline took for a policy."""
    refused: dict[str, int] = field(default_factory=dict[str, int])
    """Requests by the policy that refused them."""
    observed: tuple[Observed, ...] = ()
    """How observed policies would have decided."""


def simulate(setup: Setup, started: RunStarted, watch: Callable[[Event], None] | None = None) -> Outcome:
    """Play the workload. `started` is the log's first line; `watch` sees every event as it happens."""
    return Simulation(setup, watch).play(started)


class Simulation:
    """Owner of a run's node, sessions and people."""

    def __init__(
        self,
        setup: Setup,
        watch: Callable[[Event], None] | None = None,
        carrier: SimulatedMachine | None = None,
    ) -> None:
        """carrier: what carries orders out; None: what `machine` makes of the setup."""
        self.agenda = Agenda()
        self.log = Log(self.agenda, watch)
        node = Node(setup.engine.node, setup.engine.depth)
        self.driver = VirtualDriver(node, carrier or machine(setup), self.agenda, self._emit, setup.recorder)
        self._setup = setup
        self._readers = readers_of(node.config.policies, setup.engine.readers)
        self._clients: dict[str, Client] = {}
        self._playing: dict[str, Process] = {}
        self._num_coming = 0
        """Places of a closed loop that are kept filled, or 1 while somebody may still arrive."""
        self._num_free = inf
        """Free places of an open loop."""
        self._queue: deque[tuple[Script, float]] = deque()
        """Who waits for one, and since when."""

    def play(self, started: RunStarted) -> Outcome:
        """Until everybody is done, or the workload's duration is over."""
        load = self._setup.workload.load
        self.log.write(started)
        scripts = islice(draw(self._setup.workload, self._setup.seed), load.sessions)
        if load.concurrency is None:
            self._num_coming = 1
            self._num_free = load.max_concurrency or inf
            self._await_next(scripts)
        else:
            self._num_coming = load.concurrency
            for place in range(load.concurrency):
                self.agenda.at(place * PLACE_S, Rank.PERSON, lambda: self._fill_place(scripts))
        self._sample()
        self.agenda.run(load.duration_s or inf, lambda: self._is_over)
        return self._outcome("finished" if self._is_over else "duration")

    @property
    def _is_over(self) -> bool:
        return not (self._num_coming or self._queue or self._playing)

    def _outcome(self, reason: str) -> Outcome:
        for name in [*self._playing]:
            self._playing.pop(name).stop()
            self._ended(name, "stopped")
        guard = self.driver.node.guard
        overruled = {one.place: one.count for one in guard.overruled}
        self.log.write(RunEnded(t_s=self.log.now_s(), reason=reason, overruled=overruled))
        share = self.driver.decided_s / max(self.agenda.now, SAMPLE_S)
        return Outcome(
            self.log.encoded(),
            self.log.events,
            reason,
            self.driver.num_decisions,
            share,
            tuple(guard.incidents()),
            guard.overruled,
            guard.refused,
            guard.observed,
        )

    # -- arrivals ------------------------------------------------------------------------------------

    def _fill_place(self, scripts: Iterator[Script]) -> None:
        """Closed loop: a session that ends makes room for the next, or one that has received all, where that
        frees places."""
        script = next(scripts, None)
        if script is None:
            self._num_coming -= 1
            return
        self._attend(script, None, lambda: self._fill_place(scripts))

    def _await_next(self, scripts: Iterator[Script]) -> None:
        """Open loop: everybody comes at their time, whatever happened to those before."""
        script = next(scripts, None)
        if script is None:
            self._num_coming = 0
            return

        def come() -> None:
            if not self._num_free:
                self.log.write(SessionQueued(t_s=self.log.now_s(), session=script.name))
            self._queue.append((script, self.agenda.now))
            self._place_next()
            self._await_next(scripts)

        self.agenda.at(max(script.arrival_s, self.agenda.now), Rank.PERSON, come)

    def _place_next(self) -> None:
        """Who came first takes a place, if one is free."""
        if self._queue and self._num_free:
            script, came_s = self._queue.popleft()
            waited_s = None if self._num_free == inf else self.agenda.now - came_s
            self._num_free -= 1
            self._attend(script, script.arrival_s, self._leave_place, waited_s)

    def _leave_place(self) -> None:
        self._num_free += 1
        self._place_next()

    def _attend(
        self,
        script: Script,
        arrival_s: float | None,
        leave_place: Callable[[], None],
        waited_s: float | None = None,
    ) -> None:
        """One session from its start to its end. It leaves its place once: at the end or, where that frees
        places, when all has come."""
        self.log.write(session_started(script, self.log.now_s(), arrival_s, waited_s))
        leave = _once(leave_place)
        process = self._playing[script.name] = Process(self.agenda, leave)
        pause_s = RETRY_S if arrival_s is None else 0.0
        received = leave if self._setup.workload.load.frees_early else _nothing
        process.start(self._visit(script, process, pause_s, received))

    def _visit(
        self, script: Script, process: Process, pause_s: float, received: Callable[[], None]
    ) -> Waiting:
        """pause_s: from when they gave up to the end of their place's turn."""
        setup, name = self._setup, script.name
        has_vad = setup.workload.turn_detection == "server_vad"
        client = self._clients[name] = Client(
            script,
            self.agenda,
            self.log,
            self.driver.tell,
            setup.network,
            setup.seed,
            has_vad,
            self._readers,
            setup.engine.served.max_recording_s,
        )
        reason, message = "done", ""
        try:
            yield from client.play(process, setup.patience_s, received)
        except GaveUp as error:
            reason, message = "failed", str(error)
            gave_up = ErrorSeen(t_s=self.log.now_s(), session=name, code="gave_up", message=message)
            self.log.write(gave_up)
        client.leave(lambda: self._leave(name))
        del self._playing[name]
        self._ended(name, reason, message)
        if reason == "failed" and pause_s:
            yield Wait(self.agenda.now + pause_s)

    def _leave(self, name: str) -> None:
        self._clients.pop(name).session.close()

    def _ended(self, session: str, reason: str, message: str = "") -> None:
        self.log.write(SessionEnded(t_s=self.log.now_s(), session=session, reason=reason, message=message))

    # -- the server ----------------------------------------------------------------------------------

    def _emit(self, output: Output) -> None:
        client = self._clients.get(output.session)
        if client is not None:
            client.session.deliver(output)

    def _sample(self) -> None:
        """The server's counters, once a second."""
        self.log.write(ServerSampled(t_s=self.log.now_s(), values=self.driver.stats()))
        self.agenda.at(self.agenda.now + SAMPLE_S, Rank.SAMPLE, self._sample)


def _nothing() -> None:
    """Done where nothing is left to do."""


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """The call, of which only the first does anything."""
    calls = iter((call,))
    return lambda: next(calls, _nothing)()


def machine(setup: Setup) -> SimulatedMachine:
    """What carries out the orders of the engine's node."""
    engine = setup.engine
    node, graph = engine.node, find_graph(engine.node.graph)
    devices = Devices(setup.costs, node.placed, engine.block_bytes, engine.position_bytes)
    _, *talkers = [stage for stage in graph.reply_stages if stage in node.ar]
    ears = RecordingEncoder()
    limits_all = all(group.max_output_tokens is not None for group in setup.workload.people.values())
    return SimulatedMachine(
        {unit.name: stage_model(engine, graph.stage(unit.stage), ears, limits_all) for unit in node.placed},
        devices,
        SimPrompter(graph, has_voice=bool(talkers)),
        decide_s=setup.costs.decide_s,
        clock=setup.clock,
        inline=engine.inline,
    )


def stage_model(
    engine: SimEngine, stage: Stage, ears: RecordingEncoder, limits_all: bool = False
) -> StageModel:
    """Of one unit of it; `ears` are those of all units. `limits_all`: clients limit every reply. Raises
    ConfigError where nothing says how a codec reads."""
    node = engine.node
    match stage.kind:
        case StageKind.ENCODER:
            return ears
        case StageKind.CODEC:
            served = engine.served
            if stage.reads:
                if served.reading is None:
                    raise ConfigError(
                        f"nothing says how the {stage.name} reads a text aloud; measure the model: "
                        "antiphon profile"
                    )
                return ReadingVoice(served.reading)
            if served.window is not None:
                return WindowedVocoder(served.frame_samples, served.window)
            return Vocoder(served.frame_samples, served.delay_samples)
        case StageKind.AR:
            config = node.ar[stage.name]
            if stage.transcribes:
                return Transcriber(config, ears)
            if stage.conditioned:
                sounds = 0 if node.codec else engine.served.frame_samples
                end_input = node.end_inputs[stage.name]
                return Talker(config, end_input, engine.replies.frames_per_token, sounds)
            default_tokens = None if limits_all else config.sampling.max_tokens
            return Writer(config, ReplyLengths(default_tokens, engine.replies))
