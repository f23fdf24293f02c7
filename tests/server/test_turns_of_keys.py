"""Threads that API keys take in turns."""

from __future__ import annotations

import asyncio
import threading

import pytest

from antiphon.core.errors import Overloaded
from antiphon.server.turns_of_keys import TurnsOfKeys


class Work:
    """Jobs that wait until they may go on."""

    def __init__(self, num_threads: int = 1, most_waiting: int = 64) -> None:
        self.turns = TurnsOfKeys(num_threads, "test", "Too many.", 1.0, most_waiting)
        self.begun: list[str] = []
        self.may_go_on = threading.Event()

    def ask(self, name: str, key: int | None) -> asyncio.Task[str]:
        return asyncio.create_task(self.turns.run(key, self._do, name))

    def _do(self, name: str) -> str:
        self.begun.append(name)
        assert self.may_go_on.wait(20)
        if name == "broken":
            raise ValueError(name)
        return name.upper()


async def until(work: Work, num_begun: int) -> None:
    for _ in range(400):
        if len(work.begun) >= num_begun:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"only {work.begun} have begun")


async def test_keys_take_turns() -> None:
    work = Work()
    flood = [work.ask(f"a{at}", 0) for at in range(3)]
    await until(work, 1)
    other = [work.ask(f"b{at}", 1) for at in range(2)]
    await asyncio.sleep(0)
    work.may_go_on.set()
    assert await asyncio.gather(*flood, *other) == ["A0", "A1", "A2", "B0", "B1"]
    assert work.begun == ["a0", "a1", "b0", "a2", "b1"]
    assert not work.turns.num_waiting


async def test_what_is_given_up_leaves_its_place_and_what_runs_keeps_its_thread() -> None:
    work = Work(num_threads=2)
    first, second, third, fourth = (work.ask(name, 0) for name in ("first", "second", "third", "fourth"))
    await until(work, 2)
    first.cancel()
    third.cancel()
    await asyncio.gather(first, third, return_exceptions=True)
    assert work.begun == ["first", "second"], "both threads are still busy"
    work.may_go_on.set()
    assert await asyncio.gather(second, fourth) == ["SECOND", "FOURTH"]
    assert work.begun == ["first", "second", "fourth"]


async def test_too_many_of_one_key_are_refused_and_errors_are_told() -> None:
    work = Work(most_waiting=1)
    running, left = work.ask("broken", 0), work.ask("left", 0)
    await until(work, 1)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert not work.turns.num_waiting
    waiting = work.ask("waits", 0)
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match=r"Too many\."):
        await work.ask("refused", 0)
    other = work.ask("other", 1)
    work.may_go_on.set()
    with pytest.raises(ValueError, match="broken"):
        await running
    assert await asyncio.gather(waiting, other) == ["WAITS", "OTHER"]
