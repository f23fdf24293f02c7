"""Lanes: a device's work in the order given, one step beside the deciding half (depth 1).

An executor launches a step and gets a landing, which waits for the step and gives its fact. At depth 0 an
executor lands at once. At depth 1 a lane lands: all stages of a device share one, and so do the orders that
move payloads, so that work is carried out in the order in which it was decided.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import torch

from antiphon.core.facts import Fact, Ints, StepFailed, timed
from antiphon.core.plans import DropMedia, DropPayload, Handoff, SendMedia, Step
from antiphon.core.ports import PayloadMover

log = logging.getLogger(__name__)

Landing = Callable[[], Fact]
"""Waits for a step that was launched and gives its fact. Called once; never raises."""

Begun = tuple[torch.device, Callable[[], Fact]]
"""The device that computes a step, and the step's fact, asked for once the device is done."""


class Launcher(Protocol):
    """What an executor offers to a lane."""

    def launch(self, step: Step) -> Landing:
        """Begin a step; on CUDA it may still run when this returns. Never raises."""
        ...


def landing(begin: Callable[[], Landing], failed: Callable[[Exception], Fact]) -> Landing:
    """What `begin` launches; an exception, of `begin` or while it lands, becomes the fact `failed` makes."""
    try:
        lands = begin()
    except Exception as error:
        return partial(_given, failed(error))

    def land() -> Fact:
        try:
            return lands()
        except Exception as error:
            return failed(error)

    return land


@torch.inference_mode()
def _launch(begin: Callable[[], Begun]) -> Landing:
    device, report = begin()
    wait = mark(device)

    def land() -> Fact:
        wait()
        return report()

    return land


def mark(device: torch.device) -> Callable[[], None]:
    """Waits until what has been asked of the device so far is done; on a CPU it is done already.

    CUDA: unverified, has not run on an accelerator.
    """
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event.synchronize


class InlineExecutor(ABC):
    """The shell of every executor: launches a step, and reports its results or its failure.

    Lands every step when it is submitted (depth 0). Implements `core.ports.Executor`, and is a `Launcher`
    for what lands steps otherwise.
    """

    depth = 0

    def __init__(self) -> None:
        self._done: list[Fact] = []

    @abstractmethod
    def launch(self, step: Step) -> Landing: ...

    def launched(
        self, step: Step, begin: Callable[[], Begun], lost: Callable[[], tuple[Ints, Ints]]
    ) -> Landing:
        """`begin` launches the step's work without gradients; `lost` names, if it fails, the requests and the
        media that fail with it."""

        def failed(error: Exception) -> StepFailed:
            log.exception("step %d of stage %s failed", step.step, step.stage)
            return StepFailed(step.stage, step.step, *lost(), f"{type(error).__name__}: {error}")

        return landing(partial(_launch, begin), failed)

    def submit(self, step: Step) -> None:
        began = time.perf_counter()
        fact = self.launch(step)()
        self._done.append(timed(fact, time.perf_counter() - began))

    def poll(self) -> list[Fact]:
        done, self._done = self._done, []
        return done


class Lane:
    """A CPU's lane: one thread launches and lands each step, and carries out the orders between.

    Implements `core.ports.Wakeup`.
    """

    def __init__(self) -> None:
        # torch counts threads per thread that calls it: a new one would begin with the machine's own number
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, "antiphon-lane", torch.set_num_threads, (threads,))
        self._trouble: deque[Exception] = deque()
        self._ears, self._bell = os.pipe()
        for end in (self._ears, self._bell):
            os.set_blocking(end, False)
            weakref.finalize(self, os.close, end)

    def run(self, launcher: Launcher, step: Step, report: Callable[[Fact], None]) -> None:
        """Let the step run after all that came before it; `report` is called in the lane's thread."""

        def land() -> None:
            began = time.perf_counter()
            fact = launcher.launch(step)()
            report(timed(fact, time.perf_counter() - began))

        self._queue(land)

    def carry_out(self, work: Callable[[], None]) -> None:
        """After all that came before it. What it raises comes out of `clear`."""
        self._queue(work)

    def fileno(self) -> int:
        return self._ears

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._ears, 512):
                pass
        if self._trouble:
            raise self._trouble.popleft()

    def _queue(self, work: Callable[[], None]) -> None:
        self._pool.submit(self._do, work)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._trouble.append(error)
        # full after thousands of steps of which none was looked at: it rings already
        with contextlib.suppress(BlockingIOError):
            os.write(self._bell, b"!")


class StreamLane(Lane):
    """A GPU's lane: the caller launches, stream order keeps the order, and the thread only waits.

    Unverified: has not run on an accelerator.
    """

    def __init__(self) -> None:
        super().__init__()
        self._landed_at = 0.0

    def run(self, launcher: Launcher, step: Step, report: Callable[[Fact], None]) -> None:
        launched_at = time.perf_counter()
        lands = launcher.launch(step)

        def land() -> None:
            fact = lands()
            began, self._landed_at = max(launched_at, self._landed_at), time.perf_counter()
            report(timed(fact, self._landed_at - began))

        self._queue(land)

    def carry_out(self, work: Callable[[], None]) -> None:
        work()


class LanedExecutor:
    """An executor whose steps run in a lane. Implements `core.ports.Executor`."""

    depth = 1

    def __init__(self, inner: Launcher, lane: Lane) -> None:
        self.inner = inner
        self._lane = lane
        self._done: deque[Fact] = deque()

    def submit(self, step: Step) -> None:
        self._lane.run(self.inner, step, self._done.append)

    def poll(self) -> list[Fact]:
        done: list[Fact] = []
        while self._done:
            done.append(self._done.popleft())
        return done


class LanedPayloads:
    """Moves payloads in a lane, between the steps. Implements `core.ports.PayloadMover`."""

    def __init__(self, inner: PayloadMover, lane: Lane) -> None:
        self._inner = inner
        self._lane = lane

    def handoff(self, order: Handoff) -> None:
        self._lane.carry_out(partial(self._inner.handoff, order))

    def drop_payload(self, order: DropPayload) -> None:
        self._lane.carry_out(partial(self._inner.drop_payload, order))

    def drop_media(self, order: DropMedia) -> None:
        self._lane.carry_out(partial(self._inner.drop_media, order))

    def send_media(self, order: SendMedia) -> None:
        self._lane.carry_out(partial(self._inner.send_media, order))


def _given(fact: Fact) -> Fact:
    return fact
