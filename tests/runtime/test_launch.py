"""The engine in a process of its own: it answers, it ends what it cannot finish, and it leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import forked
from antiphon import Sampling
from antiphon.core.config import EngineOptions
from antiphon.core.conversation import Item, TextPart
from antiphon.core.errors import AntiphonError
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut
from antiphon.core.snapshot import Snapshot
from antiphon.metrics.names import Metric
from antiphon.runtime import launch, stage_child
from antiphon.runtime.engine_client import COMING_BACK, GONE
from antiphon.runtime.launch import DEATH_CHECK_MS, FORGOTTEN, SNAPSHOT_EVERY_S, EngineProcess, Silence
from antiphon.runtime.messages import Start
from antiphon.runtime.stage_child import MOST_PATIENCE

LONG = {"thinker": Sampling(max_tokens=2000), "talker": Sampling(max_tokens=4000)}
SHORT = {"thinker": Sampling(max_tokens=6), "talker": Sampling(max_tokens=8)}
CPU = EngineOptions(device="cpu", threads=1)
pytestmark = pytest.mark.usefixtures("forked_processes")

POLL_S = 0.02
LOOK_S = DEATH_CHECK_MS / 1000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary folders are made here, where they can be counted."""
    short = Path(tempfile.mkdtemp(prefix="t"))  # ipc paths have room for 107 characters
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    return short


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[EngineProcess]:
    """Not started yet, and stopped whatever happens."""
    engine = EngineProcess()
    yield engine
    await engine.stop()


def silent(what: str, done: int, total: int) -> None:
    pass


async def until(condition: Callable[[], object], within_s: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline, "this takes too long"
        await asyncio.sleep(POLL_S)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # a child nobody has waited for, or whose new parent has not yet, counts as gone
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def sockets() -> int:
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_open(fd)]
    return sum(link.startswith("socket:") for link in links)


def is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def ask(engine: EngineProcess, session: str, sampling: dict[str, Sampling]) -> list[Output]:
    heard: list[Output] = []
    engine.attach(session, heard.append)
    engine.send(SessionOpened(session))
    engine.send(ItemAdded(session, Item("q", "user", (TextPart("hello"),))))
    engine.send(ResponseRequested(session, "r", "i", sampling=sampling))
    return heard


def is_over(heard: list[Output]) -> bool:
    return bool(heard) and isinstance(heard[-1], ResponseEnded)


def end_of(heard: list[Output]) -> ResponseEnded:
    assert isinstance(heard[-1], ResponseEnded)
    return heard[-1]


async def test_answers_and_leaves_nothing(engine: EngineProcess, tiny_checkpoint: Path, folder: Path) -> None:
    before = sockets()
    steps: list[str] = []
    assert not engine.alive
    await engine.start(
        Start(str(tiny_checkpoint), "mine", CPU, str(folder / "a.record")),
        lambda what, *_: steps.append(what),
    )
    assert engine.alive
    assert engine.info.name == "mine"
    assert {"loading thinker", "loading talker", "loading code2wav"} <= set(steps)
    heard = [ask(engine, session, SHORT) for session in ("a", "b")]
    await until(lambda: all(map(is_over, heard)), 20)
    for outputs in heard:
        assert sum(len(o.tokens) for o in outputs if isinstance(o, TokensOut)) == 6
        assert sum(len(np.frombuffer(o.audio, np.float32)) for o in outputs if isinstance(o, AudioOut)) > 0
    engine.send(SessionClosed("a"))
    engine.send(SessionClosed("b"))
    await until(lambda: engine.stats.get(Metric.EMITTED.of("thinker")) == 12, 5)
    await until(lambda: not engine.stats[Metric.SESSIONS], 5)
    assert engine.stats[Metric.EMITTED.of("talker")] == 14
    assert engine.stats[Metric.EMITTED.of("code2wav")] == 0
    pid = engine.pid
    await engine.stop()
    await engine.stop()
    assert not engine.alive
    assert not is_running(pid)
    assert os.listdir(folder) == ["a.record"]
    assert sockets() <= before


async def test_ctrl_c_while_the_process_imports_is_for_its_parent(
    engine: EngineProcess, writer_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", forked.spawned)
    task = asyncio.create_task(engine.start(Start(str(writer_checkpoint), "x", CPU), silent))
    await until(lambda: engine.pid, 5)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(engine.pid, number)
    await task
    assert engine.alive
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "this process hears them"


async def test_a_failed_start_speaks_and_leaves_nothing(engine: EngineProcess, folder: Path) -> None:
    before = sockets()
    with pytest.raises(AntiphonError, match="/no/such/checkpoint"):
        async with asyncio.timeout(20):
            await engine.start(Start("/no/such/checkpoint", "x", CPU), silent)
    assert engine.pid is None
    assert not os.listdir(folder)
    assert sockets() <= before
    await engine.stop()


async def test_a_cancelled_start_leaves_nothing(
    engine: EngineProcess, writer_checkpoint: Path, folder: Path
) -> None:
    task = asyncio.create_task(engine.start(Start(str(writer_checkpoint), "x", CPU), silent))
    await until(lambda: engine.pid, 5)
    pid = engine.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(pid)
    assert not os.listdir(folder)


async def test_a_killed_engine_ends_its_responses(
    engine: EngineProcess,
    writer_checkpoint: Path,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broken listener does not keep the others from hearing of it, broken messages do not kill it, and a
    later life has a record of its own."""
    caplog.set_level("INFO")
    record = tmp_path / "a.record"
    await engine.start(Start(str(writer_checkpoint), "x", CPU, str(record)), silent)

    def broken(output: Output) -> None:
        raise RuntimeError("cannot listen")

    engine._link.orders.send(b"\xc1 no message")
    ask(engine, "broken", LONG)
    engine.attach("broken", broken)
    heard = [ask(engine, session, LONG) for session in ("a", "b")]
    await until(lambda: all(heard), 20)
    assert "cannot listen" in caplog.text
    os.kill(engine.pid, signal.SIGTERM)
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: not engine.alive, 1)
    for outputs in heard:
        assert [o.status for o in outputs if isinstance(o, ResponseEnded)] == ["failed"]
        assert outputs[-1].reason == "engine_gone"
    assert "died: open replies fail" in caplog.text
    assert "is started again in 0.2 s" in caplog.text
    late = ask(engine, "late", SHORT)
    assert not late, "not before the asker has finished asking"
    await until(lambda: late, 1)
    assert (end_of(late).status, end_of(late).message) == ("failed", COMING_BACK)
    assert engine.comes_back
    before = record.read_bytes()
    await until(lambda: engine.alive, 60)
    assert "the engine runs again" in caplog.text
    assert record.read_bytes() == before
    assert (tmp_path / "a.record.2").stat().st_size
    engine.send(ResponseRequested("a", "again", "j"))
    await until(lambda: len([one for one in heard[0] if isinstance(one, ResponseEnded)]) == 2, 1)
    assert (end_of(heard[0]).response, end_of(heard[0]).message) == ("again", FORGOTTEN)
    new = ask(engine, "new", SHORT)
    await until(lambda: is_over(new), 20)
    assert end_of(new).status == "incomplete"
    assert not engine.comes_back
    await engine.stop()
    assert not os.listdir(folder)


async def test_an_engine_that_hangs_is_started_again(
    engine: EngineProcess,
    writer_checkpoint: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that is idle is no such engine."""
    monkeypatch.setattr(launch, "LEAST_SILENCE_S", 0.0)
    options = EngineOptions(device="cpu", threads=1, silence_limit_s=2.5)
    await engine.start(Start(str(writer_checkpoint), "x", options), silent)
    pid = engine.pid
    await asyncio.sleep(3.5)
    assert engine.alive
    heard = ask(engine, "a", LONG)
    await until(lambda: heard, 20)
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: not engine.alive, 6)
    await until(lambda: is_over(heard), 1)
    assert (end_of(heard).status, end_of(heard).reason) == ("failed", "engine_gone")
    assert "the engine's process hangs" in caplog.text
    assert engine.comes_back
    await until(lambda: engine.alive, 60)
    assert not is_running(pid)
    new = ask(engine, "new", SHORT)
    await until(lambda: is_over(new), 20)
    assert end_of(new).status == "incomplete"


def test_a_silent_process_that_computes_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    used_s = [0.0]
    monkeypatch.setattr(launch, "cpu_s", lambda pid: used_s[0])

    def looks(cores: float, until_s: float = 1000.0) -> float:
        silence = Silence(1, 20.0)
        for num in range(1, int(until_s / LOOK_S)):
            used_s[0] += cores * LOOK_S
            if silence.hangs():
                return num * LOOK_S
        return until_s

    assert looks(0.0) == pytest.approx(20.0, abs=2 * LOOK_S)
    assert looks(1.0) == pytest.approx(20.0 * MOST_PATIENCE, abs=2 * LOOK_S)
    spoken = Silence(1, 20.0)
    for num in range(1000):
        assert not spoken.hangs()
        if num % 20 == 0:
            spoken.broken()


async def test_what_keeps_it_from_starting_is_tried_again(
    engine: EngineProcess, writer_checkpoint: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that keeps it; a record of another day stays what it is."""
    record, second = folder / "a.record", folder / "a.record.2"
    await engine.start(Start(str(writer_checkpoint), "x", CPU, str(record)), silent)
    second.write_text("of another day")
    real, left = launch._Link, [OSError("no room for a folder")]

    def link() -> launch._Link:
        if left:
            raise left.pop()
        return real()

    monkeypatch.setattr(launch, "_Link", link)
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: not engine.alive, 2)
    await until(lambda: engine.alive, 60)
    assert not left
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: not engine.alive, 2)
    assert second.read_text() == "of another day"


def test_what_is_loaded_is_logged_once_a_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _ in range(2):
        show = launch.logged_progress()
        for what, done in (("starting thinker", 0), ("starting talker", 0), ("reading weights", 3)) * 5:
            show(what, done, 9)
    assert caplog.messages == ["starting thinker", "starting talker", "reading weights"] * 2


async def test_an_engine_that_dies_again_and_again_stays_away(
    writer_checkpoint: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time, the model is not there any more when it is to be loaded again."""
    monkeypatch.setattr(stage_child, "MOST_DEATHS", 2)
    told: list[str] = []
    engine = EngineProcess(lambda: told.append("died"))
    model = folder / "model"
    shutil.copytree(writer_checkpoint, model)
    try:
        await engine.start(Start(str(model), "x", CPU), silent)
        shutil.rmtree(model)
        os.kill(engine.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            await engine.gone.wait()
        assert told == ["died"]
        assert not engine.alive
        assert not engine.comes_back
        late = ask(engine, "late", SHORT)
        await until(lambda: late, 1)
        assert end_of(late).message == GONE
    finally:
        await engine.stop()
    assert not os.listdir(folder)


SERVER = """
import asyncio, sys
from antiphon.core.config import EngineOptions
from antiphon.runtime.launch import EngineProcess
from antiphon.runtime.messages import Start

source, until, *apart = sys.argv[1:]

class Server(EngineProcess):
    async def _hello(self):
        await super()._hello()
        await self.reach("hello")

    async def _wait_ready(self, progress):
        await self.reach("start")
        await super()._wait_ready(self.show)
        await self.reach("ready")

    def show(self, what, done, total):
        if what == until:
            print(self.pid, flush=True)
            sys.stdin.read()

    async def reach(self, when):
        if when == until:
            print(self.pid, flush=True)
            await asyncio.Event().wait()

options = EngineOptions(device="cpu", threads=1, stages_apart=bool(apart))
asyncio.run(Server().start(Start(source, "x", options), print))
"""


@contextlib.contextmanager
def serving(source: Path, until: str, *apart: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server's process that goes on until then, and its engine's id."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(source), until, *apart],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": tempfile.gettempdir()},
    ) as server:
        try:
            yield server, int(server.stdout.readline())
        finally:
            server.kill()


async def test_an_orphan_ends_before_it_is_told_to_start(writer_checkpoint: Path, folder: Path) -> None:
    with serving(writer_checkpoint, "hello") as (server, pid):
        assert os.listdir(folder)
        server.kill()
        await until(lambda: not is_running(pid), 5)
        assert not os.listdir(folder)


async def test_an_orphan_ends_however_long_it_reads_a_file(tmp_path: Path, folder: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with serving(tmp_path, "start") as (server, pid):
        await until(lambda: not os.listdir(folder), 5)
        assert is_running(pid)
        server.kill()
        await until(lambda: not is_running(pid), 5)


async def test_an_orphan_ends(writer_checkpoint: Path, folder: Path) -> None:
    """The server is killed: its engine notices and ends by itself, and nothing is left."""
    with serving(writer_checkpoint, "ready") as (server, pid):
        assert is_running(pid)
        assert not os.listdir(folder)
        server.kill()
        await until(lambda: not is_running(pid), 5)


async def test_shows_itself_while_somebody_watches(engine: EngineProcess, writer_checkpoint: Path) -> None:
    seen: list[Snapshot] = []
    engine.watch(seen.append)  # it does not live yet: it is told once it does
    await engine.start(Start(str(writer_checkpoint), "mine", CPU), silent)
    heard = ask(engine, "a", SHORT)
    engine.watch(seen.append)
    await until(lambda: is_over(heard) and len(seen) > 4, 20)
    pauses = np.diff([snapshot.at for snapshot in seen])
    assert pauses.min() >= SNAPSHOT_EVERY_S - 0.05
    assert {step.stage for snapshot in seen for step in snapshot.steps} == {"thinker"}
    last = seen[-1].sessions[0]
    assert (last.session, last.stages[0].done, last.is_making) == ("a", 6, False)
    engine.watch(None)
    await asyncio.sleep(3 * SNAPSHOT_EVERY_S)
    seen.clear()
    await asyncio.sleep(3 * SNAPSHOT_EVERY_S)
    assert not seen
    engine._take(seen_late := Snapshot(0.0, (), (), (), 0))
    assert seen_late not in seen, "one that was under way is dropped"
