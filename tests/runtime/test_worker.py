"""The worker's way out of every trouble, without a process."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq

from antiphon.core.config import EngineOptions
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import ResponseEnded
from antiphon.engine.lanes import Lane
from antiphon.runtime import worker
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.driver import Driver
from antiphon.runtime.messages import Failed, FromEngine, Hello, Outputs, Start, Stop
from antiphon.runtime.record import read_record, replay


def ends(message: object) -> list[ResponseEnded]:
    """Of responses, in a message of the engine's."""
    outputs = message.outputs if isinstance(message, Outputs) else ()
    return [output for output in outputs if isinstance(output, ResponseEnded)]


class Server:
    """The other ends of the sockets; the worker runs in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gone = threading.Event()
        self._context = zmq.Context()
        self._orders, self._events = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        self._orders.bind(f"ipc://{folder}/orders")
        self._events.bind(f"ipc://{folder}/events")
        self._decoder = decoder(FromEngine)

    def employ(self, *messages: object) -> tuple[int, list]:
        """Send these once the worker listens; returns its exit status and what it said."""
        with ThreadPoolExecutor(1) as pool:
            status = pool.submit(worker.main, str(self.folder), self.gone)
            heard = [self._next()]
            for message in messages:
                self._orders.send(message if isinstance(message, bytes) else encode(message))
            while self._events.poll(0 if status.done() else 50) or not status.done():
                if self._events.poll(0):
                    heard.append(self._next())
            return status.result(), heard

    def talk(self, *messages: object) -> list:
        """Send these, hear a response to its end, then stop the worker."""
        with ThreadPoolExecutor(1) as pool:
            status = pool.submit(worker.main, str(self.folder), self.gone)
            heard = [self._next()]
            for message in messages:
                self._orders.send(encode(message))
            while not (isinstance(heard[-1], Failed) or ends(heard[-1])):
                heard.append(self._next())
            self._orders.send(encode(Stop()))
            assert status.result(10) == 0
        return heard

    def _next(self) -> object:
        assert self._events.poll(10_000)
        return self._decoder.decode(self._events.recv())

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(worker, "leave_to_parent", lambda: None)
    monkeypatch.setattr(worker.logging, "basicConfig", lambda **_: None)
    with tempfile.TemporaryDirectory() as folder:  # ipc paths have room for 107 characters
        server = Server(Path(folder))
        yield server
        server.close()


def start(checkpoint: Path, **fields: str) -> Start:
    return Start(str(checkpoint), "x", EngineOptions(device="cpu"), **fields)


def test_runs_until_stopped(server: Server, tmp_path: Path, tiny_checkpoint: Path) -> None:
    """What can't be read is dropped and said; what came with the start is not lost."""
    status, heard = server.employ(start(tiny_checkpoint), b"\xc1", b"", SessionOpened("s"), Stop())
    assert status == 0
    assert isinstance(heard[0], Hello)
    assert any(isinstance(message, ModelInfo) for message in heard)
    assert not any(isinstance(message, Failed) for message in heard)


def test_a_missing_checkpoint_is_said(server: Server, tmp_path: Path) -> None:
    status, heard = server.employ(start(tmp_path / "none"))
    assert status == 1
    assert "none" in heard[-1].message


def test_a_record_that_cannot_be_written_is_said(
    server: Server, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    status, heard = server.employ(start(tiny_checkpoint, record="/no/where/a.record"))
    assert status == 1
    assert "/no/where/a.record" in heard[-1].message


@pytest.mark.parametrize("where", ["load_engine", "advance"])
def test_a_crash_is_logged_and_said(
    server: Server,
    tmp_path: Path,
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(worker if where == "load_engine" else Driver, where, breaks)
    status, heard = server.employ(start(tiny_checkpoint))
    assert status == 1
    last = heard[-1]
    assert isinstance(last, Failed)
    assert "ZeroDivisionError: a bug" in last.message
    assert "the engine crashed" in caplog.text


@pytest.mark.parametrize("when", ["load_engine", "advance"])
def test_an_orphan_ends(
    server: Server,
    tmp_path: Path,
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    """The parent goes while the model is loaded, or before the first step."""
    caplog.set_level(logging.WARNING)
    place = worker if when == "load_engine" else Driver
    goes_on = getattr(place, when)

    def goes(*arguments: object) -> object:
        server.gone.set()
        return goes_on(*arguments)

    monkeypatch.setattr(place, when, goes)
    status, _ = server.employ(start(tiny_checkpoint))
    assert status == 1
    assert "gone" in caplog.text


def test_an_orphan_does_not_wait_for_its_start(server: Server) -> None:
    server.gone.set()
    status, heard = server.employ()
    assert status == 1
    assert heard == [Hello()]
    assert not server.folder.exists()


def test_something_else_than_a_start_ends_it(server: Server, tmp_path: Path) -> None:
    status, _ = server.employ(Stop())
    assert status == 1


def test_the_wait_for_messages_ends_when_a_step_does(tmp_path: Path) -> None:
    """Or at the time asked for, rounded up to whole milliseconds; never before either."""
    with tempfile.TemporaryDirectory() as folder:
        server, lane = Server(Path(folder)), Lane()
        link = worker.Link(folder, server.gone)
        try:
            began = time.monotonic()
            assert link.receive(0.0101, lane) == []
            assert time.monotonic() - began > 0.01
            lane.carry_out(lambda: None)
            assert link.receive(60.0, lane) == []
            lane.clear()
            server._orders.send(encode(SessionOpened("s")))
            assert link.receive(60.0, lane) == [SessionOpened("s")]
            assert time.monotonic() - began < 30.0
        finally:
            link.close()
            server.close()


def test_a_turn_with_a_step_in_flight(server: Server, tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Through the worker's own loop, and what it records decides again the same."""
    record = tmp_path / "record"
    order = Start(str(tiny_checkpoint), "x", EngineOptions(device="cpu", depth=1), str(record))
    asked = ResponseRequested("s", "r", "reply", max_tokens=6)
    facts = [SessionOpened("s"), ItemAdded("s", Item("q", "user", (TextPart("hello"),))), asked]
    heard = server.talk(order, *facts)
    assert [end.status for message in heard for end in ends(message)] == ["incomplete"]
    assert read_record(record)[0].depth == 1
    count, differences = replay(record)
    assert count
    assert not differences
