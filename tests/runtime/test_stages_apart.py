"""Stages in processes of their own, below an engine's: started, killed, stopped, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

import forked
from antiphon.assembly.deployment import Deployment, StageSpec
from antiphon.assembly.placement import Machine
from antiphon.assembly.resolve import resolve
from antiphon.core.config import EngineOptions, LinkOptions, ProcessOptions, Unit
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.core.facts import SessionClosed
from antiphon.core.plans import Output, ResponseEnded
from antiphon.engine.load import Engine
from antiphon.metrics.names import Metric
from antiphon.runtime import stage_processes
from antiphon.runtime.ipc_messages import Arrivals, Begin
from antiphon.runtime.launch import EngineProcess
from antiphon.runtime.loading import load_engine
from antiphon.runtime.messages import Start
from antiphon.runtime.stage_child import FIRST_WAIT_S, MOST_DEATHS, WELL_S, Child, Restarts, cpu_s
from antiphon.runtime.stage_worker import own_options
from fakes.signalled import signalled
from runtime.test_launch import LONG, SHORT, ask, is_over, is_running, serving, silent, sockets, until

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("forked_processes")]

APART = EngineOptions(device="cpu", threads=1, stages_apart=True)
STAGES = ("encoders", "thinker", "talker", "code2wav")
BACK_S = 60
MIB = 1 << 20


SHARED_LOOP = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_checkpoint: Path) -> AsyncIterator[EngineProcess]:
    """For tests that leave all its processes there: to start five of them is what takes long."""
    engine = EngineProcess()
    await engine.start(Start(str(tiny_checkpoint), "x", APART), silent)
    yield engine
    await engine.stop()


@pytest.fixture(scope="module")
def pids(engine: EngineProcess) -> dict[str, int]:
    """Of its stages; a test that has one started again writes down which it is now."""
    return children(engine.pid)


@pytest.fixture(scope="module")
def signalled_engine(writer_checkpoint: Path) -> Iterator[Engine]:
    """Loaded here, its stage apart, which was told to end while it imported: it is no fork."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stage_processes.subprocess, "Popen", signalled)
        engine = load_engine(str(writer_checkpoint), APART, "x", silent)
    assert engine.processes is not None
    yield engine
    engine.processes.close()


def children(pid: int) -> dict[str, int]:
    """The processes of stages below an engine's, in the order in which they were started."""
    return dict(zip(STAGES, forked.children(pid), strict=True))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def end_of(heard: list[Output]) -> ResponseEnded:
    assert isinstance(heard[-1], ResponseEnded)
    return heard[-1]


async def test_answers_loses_a_stage_that_hangs_and_leaves_nothing(tiny_checkpoint: Path) -> None:
    """A stage is asked whether it is there, with nothing to do as well; the others, which answer, stay."""
    before, shown = sockets(), []
    engine = EngineProcess()
    try:
        start = Start(str(tiny_checkpoint), "x", msgspec.structs.replace(APART, silence_limit_s=1.0))
        await engine.start(start, lambda what, *_: shown.append(what))
        assert {f"loading {stage}" for stage in STAGES} <= set(shown), "of each stage its own progress"
        pids = children(engine.pid)
        heard = [ask(engine, session, SHORT) for session in ("a", "b")]
        await until(lambda: all(map(is_over, heard)), 20)
        assert {end_of(outputs).status for outputs in heard} == {"incomplete"}
        up = [Metric.UNIT_UP.of_unit(stage) for stage in STAGES]
        await until(lambda: all(engine.stats.get(name) == 1 for name in up), 3)
        assert not engine.lost
        os.kill(pids["talker"], signal.SIGSTOP)
        lost = ask(engine, "c", LONG)
        await until(lambda: is_over(lost), 10)
        assert (end_of(lost).status, end_of(lost).reason) == ("failed", "stage_lost")
        assert "its process hangs: no answer for 1 s" in end_of(lost).message
        stay = {pids[stage] for stage in STAGES if stage != "talker"}
        await until(lambda: not engine.lost and stay < set(forked.children(engine.pid)), BACK_S)
        pids["talker, again"] = forked.children(engine.pid)[-1]
    finally:
        await engine.stop()
    assert not [pid for pid in pids.values() if is_running(pid)]
    assert sockets() <= before


@SHARED_LOOP
@pytest.mark.parametrize("victim", ["thinker", pytest.param("talker", marks=pytest.mark.slow)])
async def test_a_killed_stage_ends_its_responses_and_comes_back(
    engine: EngineProcess, pids: dict[str, int], victim: str
) -> None:
    heard = [ask(engine, session, LONG) for session in ("a", "b")]
    await until(lambda: all(heard), 20)
    os.kill(pids[victim], signal.SIGKILL)
    await until(lambda: all(map(is_over, heard)), 1)
    for outputs in heard:
        assert (end_of(outputs).status, end_of(outputs).reason) == ("failed", "stage_lost")
        assert "was killed (SIGKILL)" in end_of(outputs).message
    await until(lambda: "it is starting again" in engine.lost.get(victim, ""), 1)
    await until(lambda: engine.stats.get(Metric.UNIT_UP.of_unit(victim)) == 0, 3)
    for session in ("a", "b"):
        engine.send(SessionClosed(session))
    await until(lambda: not engine.lost, BACK_S)
    pids[victim] = forked.children(engine.pid)[-1]
    again = ask(engine, "c", SHORT)
    await until(lambda: is_over(again), 20)
    assert end_of(again).status == "incomplete"
    await until(lambda: engine.stats.get(Metric.UNIT_UP.of_unit(victim)) == 1, 3)
    assert engine.stats[Metric.UNIT_RESTARTS.of_unit(victim)] == 1
    engine.send(SessionClosed("c"))


@pytest.mark.slow
async def test_a_storm_of_deaths_is_capped(tiny_checkpoint: Path) -> None:
    """The others go on; nothing is started any more, and why is told."""
    engine = EngineProcess()
    try:
        await engine.start(Start(str(tiny_checkpoint), "x", APART), silent)
        for _ in range(MOST_DEATHS):
            os.kill(forked.children(engine.pid)[-1], signal.SIGKILL)
            await until(lambda: engine.lost, 2)
            if "stays away" in engine.lost["code2wav"]:
                break
            await until(lambda: not engine.lost, BACK_S)
        assert "died 5 times, each time before it was up for 60 s, and stays away" in engine.lost["code2wav"]
        await asyncio.sleep(1)
        assert len(forked.children(engine.pid)) == 3
    finally:
        await engine.stop()


@SHARED_LOOP
async def test_a_stopped_stage_holds_memory_down_and_goes_on(
    engine: EngineProcess, pids: dict[str, int]
) -> None:
    warm = ask(engine, "warm", SHORT)
    await until(lambda: is_over(warm), 20)
    before = {pid: resident_bytes(pid) for pid in (engine.pid, *pids.values())}
    os.kill(pids["talker"], signal.SIGSTOP)
    try:
        heard = [ask(engine, f"s{number}", SHORT) for number in range(24)]
        await asyncio.sleep(2)
        grown = {pid: resident_bytes(pid) - size for pid, size in before.items()}
        assert max(grown.values()) < 64 * MIB, grown
    finally:
        os.kill(pids["talker"], signal.SIGCONT)
    await until(lambda: all(map(is_over, heard)), 60)
    assert {end_of(outputs).status for outputs in heard} == {"incomplete"}


@pytest.mark.parametrize(
    ("model", "num_stages", "when", "victim"),
    [
        ("tiny_checkpoint", 4, "loading thinker", "server"),
        ("writer_checkpoint", 1, "ready", "engine"),
        pytest.param("tiny_checkpoint", 4, "loading thinker", "engine", marks=pytest.mark.slow),
        pytest.param("tiny_checkpoint", 4, "ready", "engine", marks=pytest.mark.slow),
        pytest.param("tiny_checkpoint", 4, "ready", "server", marks=pytest.mark.slow),
    ],
)
async def test_orphans_end(
    request: pytest.FixtureRequest, model: str, num_stages: int, when: str, victim: str
) -> None:
    """Whoever is killed above them, no process is left."""
    with serving(request.getfixturevalue(model), when, "apart") as (server, pid):
        pids = [pid, *forked.children(pid)]
        assert len(pids) == 1 + num_stages
        assert all(map(is_running, pids))
        os.kill(server.pid if victim == "server" else pid, signal.SIGKILL)
        await until(lambda: not any(map(is_running, pids)), 5)


def test_who_is_late_is_named(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They import for longer than they have."""
    monkeypatch.setattr(subprocess, "Popen", forked.spawned)
    before = forked.children(os.getpid())
    options = EngineOptions(device="cpu", threads=1, stages_apart=True, start_limit_s=0.05)
    with pytest.raises(AntiphonError, match=r"'\w+' of \w+ was not ready within 0.05 s \(it has not begun"):
        load_engine(str(tiny_checkpoint), options, "x", silent)
    assert forked.children(os.getpid()) == before


def test_who_cannot_start_is_named(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them end at once: the one that is noticed first."""
    monkeypatch.setattr(stage_processes.sys, "executable", "/bin/false")
    stage = "(encoders|thinker|talker|code2wav)"
    with pytest.raises(AntiphonError, match=rf"'{stage}' of \1 could not start: has ended \(exit status 1"):
        load_engine(str(tiny_checkpoint), APART, "x", silent)


def test_who_is_told_to_end_while_it_imports_goes_on(signalled_engine: Engine) -> None:
    """Ctrl-C reaches the whole group, and is for its first process."""
    pids = signalled_engine.processes.processes.pids
    assert set(pids) == {"thinker"}
    assert all(map(is_running, pids.values()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"processes": (ProcessOptions("mouth"),)},
            "no unit lives in 'mouth'; units name code2wav, encoders",
        ),
        ({"links": (LinkOptions("thinker", "mouth"),)}, "'mouth' is not a stage; stages are code2wav"),
        ({"links": (LinkOptions("thinker", "code2wav"),)}, "this model has no thinker -> code2wav"),
        ({"links": (LinkOptions("thinker", "thinker"),)}, "this model has no thinker -> thinker"),
        ({"links": (LinkOptions("talker", "code2wav"),)}, "goes through the process that decides"),
        ({"tensor_parallel": 2}, "not divided among ranks"),
        ({"units": (Unit("thinker", "thinker"),)}, "both say where"),
        ({"start_limit_s": 0.0}, "start_limit_s is 0; it must be over 0 seconds"),
        ({"silence_limit_s": 0.0}, "silence_limit_s is 0; it must be over 0 seconds"),
    ],
)
def test_what_cannot_be_is_said(tiny_checkpoint: Path, options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_engine(str(tiny_checkpoint), EngineOptions(stages_apart=True, **options), "x", silent)


def living(program: str) -> Child:
    child = Child("x", ("x",))
    child.process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    child.asked(time.monotonic())
    return child


BUSY = "while True: pass"
BUSY_BELOW = f"import subprocess, sys; subprocess.run(['timeout', '6', sys.executable, '-c', {BUSY!r}])"


@pytest.mark.parametrize("program", [BUSY, BUSY_BELOW])
def test_who_computes_has_longer_to_answer_than_who_sleeps(program: str) -> None:
    sleeps, computes = living("input()"), living(program)
    try:
        began = time.monotonic()
        assert computes.process is not None
        for child in (sleeps, computes):
            while child is computes and cpu_s(computes.process.pid) < 0.5:
                assert time.monotonic() < began + 20
                time.sleep(0.01)
            child.asked(began)
        while cpu_s(computes.process.pid) - computes.used_s < 0.3:
            assert time.monotonic() < began + 40
            time.sleep(0.01)
        now = began + 0.5  # on a machine that has a core for it
        assert sleeps.hangs(now, 0.2)
        assert not sleeps.hangs(now, 1.0)
        assert not computes.hangs(now, 0.2)
        assert computes.hangs(now, 0.01), "not for ever"
    finally:
        assert sleeps.end() == computes.end() == -signal.SIGKILL
    assert cpu_s(1 << 30) == 0.0


def test_no_room_to_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is for good, the first start says so."""

    def full(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(stage_processes.subprocess, "Popen", full)
    options = EngineOptions(stages_apart=True)
    made = stage_processes.StageProcesses({"x": ("x",)}, {}, lambda *_: Begin("", options, "x", 0), options)
    made.start()
    assert "had no room to start ([Errno 24] Too many open files); it is starting again" in made.lost["x"]
    with pytest.raises(AntiphonError, match="the process 'x' of x could not start: had no room"):
        made.wait_until_ready(silent)
    made.close()


def test_threads_of_a_process() -> None:
    """Without a word of a deployment's, one; by the options torch's default may be had."""
    quiet = resolve(Deployment(stages={"talker": StageSpec(process="voice")}), None, Machine()).sound
    said = resolve(
        Deployment(stages={"talker": StageSpec(process="voice", threads=3)}), None, Machine()
    ).sound
    assert (own_options(quiet, "voice").threads, own_options(said, "voice").threads) == (1, 3)
    assert quiet.threads == said.threads == 0
    default = msgspec.structs.replace(quiet, processes=(ProcessOptions("voice", 0),))
    assert own_options(default, "voice").threads == 0


@pytest.mark.parametrize("start_s", [0.0, 16.0, 120.0])
@pytest.mark.parametrize("gets_ready", [True, False])
def test_waits_double_and_end_however_long_a_start_takes(start_s: float, gets_ready: bool) -> None:
    restarts, now, waits = Restarts(), 0.0, []
    for _ in range(MOST_DEATHS):
        now += start_s
        if gets_ready:
            restarts.ready(now)
            now += WELL_S - 1
        waits.append(restarts.wait_s(now))
    assert waits == [0.2, 0.4, 0.8, 1.6, None]


def test_deaths_before_a_long_life_are_forgotten() -> None:
    restarts = Restarts()
    for _ in range(MOST_DEATHS - 1):
        restarts.wait_s(0.0)
    restarts.ready(5.0)
    assert restarts.wait_s(5.0 + WELL_S) == FIRST_WAIT_S
    assert restarts.wait_s(5000.0) == 2 * FIRST_WAIT_S, "it was never there again"


def test_a_drop_may_overtake_what_it_is_about() -> None:
    arrivals = Arrivals(born=3)
    assert not arrivals.arrives("old", 2), "sent to a process that is gone"
    assert arrivals.drop("medium", 7)
    assert not arrivals.arrives("medium", 5), "dropped while it was on its way"
    assert arrivals.arrives("medium", 9), "sent again"
    assert not arrivals.drop("medium", 8), "an order that comes late does not drop what is new"
    assert arrivals.drop("medium", 10)


def test_time_is_not_spent_waiting(signalled_engine: Engine) -> None:
    """The engine's process sleeps while its stages work."""
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < 0.5:
        signalled_engine.wakeup.clear()
        time.sleep(0.05)
    assert time.process_time() - used < 0.1
