"""The engine in a process of its own: it answers, it ends what it cannot finish, and it leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from antiphon import Sampling
from antiphon.core.config import EngineOptions
from antiphon.core.conversation import Item, TextPart
from antiphon.core.errors import AntiphonError
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut
from antiphon.core.snapshot import Snapshot
from antiphon.metrics.names import Metric
from antiphon.runtime.launch import SNAPSHOT_EVERY_S, EngineProcess
from antiphon.runtime.messages import Start

LONG = {"thinker": Sampling(max_tokens=2000), "talker": Sampling(max_tokens=4000)}
SHORT = {"thinker": Sampling(max_tokens=6), "talker": Sampling(max_tokens=8)}
CPU = EngineOptions(device="cpu", threads=1)
POLL_S = 0.02


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
    engine: EngineProcess, tiny_checkpoint: Path, folder: Path
) -> None:
    task = asyncio.create_task(engine.start(Start(str(tiny_checkpoint), "x", CPU), silent))
    await until(lambda: engine.pid, 5)
    pid = engine.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(pid)
    assert not os.listdir(folder)


async def test_a_killed_engine_ends_its_responses(
    engine: EngineProcess, tiny_checkpoint: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a broken listener does not keep the others from hearing of it, nor do broken messages kill it."""
    await engine.start(Start(str(tiny_checkpoint), "x", CPU), silent)

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
    assert "died: open replies fail, and the server has to be restarted" in caplog.text
    late = ask(engine, "late", SHORT)
    assert not late, "not before the asker has finished asking"
    await until(lambda: late, 1)
    assert late[-1].status == "failed"
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


async def test_an_orphan_ends_before_it_is_told_to_start(tiny_checkpoint: Path, folder: Path) -> None:
    with serving(tiny_checkpoint, "hello") as (server, pid):
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


async def test_an_orphan_ends(tiny_checkpoint: Path, folder: Path) -> None:
    """The server is killed: its engine notices and ends by itself, and nothing is left."""
    with serving(tiny_checkpoint, "ready") as (server, pid):
        assert is_running(pid)
        assert not os.listdir(folder)
        server.kill()
        await until(lambda: not is_running(pid), 5)


async def test_shows_itself_while_somebody_watches(engine: EngineProcess, tiny_checkpoint: Path) -> None:
    seen: list[Snapshot] = []
    engine.watch(seen.append)  # too early: it does not live yet
    await engine.start(Start(str(tiny_checkpoint), "mine", CPU), silent)
    heard = ask(engine, "a", SHORT)
    engine.watch(seen.append)
    await until(lambda: is_over(heard) and len(seen) > 4, 20)
    pauses = np.diff([snapshot.at for snapshot in seen])
    assert pauses.min() >= SNAPSHOT_EVERY_S - 0.05
    assert {step.stage for snapshot in seen for step in snapshot.steps} >= {"thinker", "talker", "code2wav"}
    last = seen[-1].sessions[0]
    assert (last.session, last.stages[0].done, last.is_making) == ("a", 6, False)
    engine.watch(None)
    await asyncio.sleep(3 * SNAPSHOT_EVERY_S)
    seen.clear()
    await asyncio.sleep(3 * SNAPSHOT_EVERY_S)
    assert not seen
    engine._take(seen_late := Snapshot(0.0, (), (), (), 0))
    assert seen_late not in seen, "one that was under way is dropped"
