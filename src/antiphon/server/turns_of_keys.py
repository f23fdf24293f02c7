"""Threads that API keys take in turns: what one of them sends in plenty holds up itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from antiphon.core.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")


class TurnsOfKeys:
    """Owner of what waits for a thread."""

    def __init__(
        self, num_threads: int, name: str, refusal: str, retry_after_s: float, most_waiting: int = 64
    ) -> None:
        """refusal: what is told where so many of a key wait."""
        self._refusal, self._retry_after_s, self._most_waiting = refusal, retry_after_s, most_waiting
        self._waiting: dict[int | None, deque[asyncio.Future[None]]] = {}
        """By API key, whose turn is the first one's next; each is told when it may go on."""
        self._num_free = num_threads
        self._threads = ThreadPoolExecutor(num_threads, name)

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def run(self, key: int | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread, once it is the key's turn. Raises Overloaded where too many of the key wait. Where it
        is cancelled it leaves its place; what runs already runs to its end."""
        loop = asyncio.get_running_loop()
        turn, waiting = loop.create_future(), self._waiting.get(key, ())
        if len(waiting) >= self._most_waiting:
            raise Overloaded(self._refusal, self._retry_after_s)
        self._waiting.setdefault(key, deque()).append(turn)
        self._pass_on()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(key, turn)
            else:  # it was given in the same moment
                self._free()
            raise
        job = loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        job.add_done_callback(self._ended)
        return await asyncio.shield(job)

    def _ended(self, job: asyncio.Future[Any]) -> None:
        if not job.cancelled():
            job.exception()  # told to who waits for it, if anybody still does
        self._free()

    def _leave(self, key: int | None, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(key, deque())
        if turn in waiting:
            waiting.remove(turn)
        if not waiting:
            self._waiting.pop(key, None)

    def _free(self) -> None:
        self._num_free += 1
        self._pass_on()

    def _pass_on(self) -> None:
        """It is the next keys' turn."""
        while self._waiting and self._num_free:
            key = next(iter(self._waiting))
            waiting = self._waiting.pop(key)
            turn = waiting.popleft()
            if waiting:
                self._waiting[key] = waiting  # behind all other keys
            if not turn.done():  # one that is just leaving is done
                turn.set_result(None)
                self._num_free -= 1
