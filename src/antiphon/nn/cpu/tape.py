"""Compiled loops one after the other within one parallel region: threads meet between two instead of starting
anew, and none goes back to Python unless something stands there.

Between two loops of a decode step a call from Python costs what a small loop does. Threads meet at a counter
that only grows. One that waits for long sleeps until the last one comes: where others want the cores too, a
thread that spins or yields has used up its share when there is work again, and then the others wait for it.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir  # pyright: ignore[reportMissingImports]
from numba import types  # pyright: ignore[reportMissingImports]
from numba.core import cgutils  # pyright: ignore[reportMissingImports]
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]

from antiphon.nn.cpu.compiler import compiled
from antiphon.nn.cpu.openmp import Loop, integers, intrinsic, job_of

SPINS = 4000
"""So often a waiting thread looks before it sleeps: for about as long as it takes to wake one."""

FUTEX = {"x86_64": 202, "aarch64": 98}
"""The number of Linux's call that sleeps on a word of memory, by architecture."""

SLEEP, WAKE, EVERYBODY = 128, 129, 1 << 30
"""What that call is asked, among threads of one process."""

Turn = Callable[[], None]
"""What Python does between two loops."""

INT32, INT64 = ir.IntType(32), ir.IntType(64)

Job: Any = job_of("sleepers loops team system", "futex first last")
SLEEPERS_AT: int = Job.sleepers.offset
"""Where in a job the number of its sleeping threads lies; `next` counts those that have arrived."""


@intrinsic
def call(typingctx: Any, function: Any, argument: Any) -> Any:
    """Call a function that takes a pointer; both are addresses."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t]).as_pointer()
        function, argument = arguments
        builder.call(builder.inttoptr(function, kind), [builder.inttoptr(argument, cgutils.voidptr_t)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def ask(typingctx: Any, function: Any) -> Any:
    """What a function of no arguments at this address returns, an int of C."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(INT32, []).as_pointer()
        return builder.sext(builder.call(builder.inttoptr(arguments[0], kind), []), INT64)

    return types.int64(types.int64), code


@intrinsic
def ask_system(typingctx: Any, function: Any, number: Any, word: Any, what: Any, value: Any) -> Any:
    """The C library's `syscall`, at this address: call `number` about the memory at `word`; no timeout."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(INT64, [INT64] * 5).as_pointer()
        call = builder.inttoptr(arguments[0], kind)
        return builder.call(call, [*arguments[1:], INT64(0)])

    return types.int64(*[types.int64] * 5), code


@intrinsic
def address_in(typingctx: Any, pointer: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], INT64)

    return types.int64(pointer), code


@intrinsic
def add_to(typingctx: Any, word: Any, value: Any) -> Any:
    """Add to the int64 at this address; what was there before. A thread that sees the
    sum sees what was written before."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = builder.inttoptr(arguments[0], INT64.as_pointer())
        return builder.atomic_rmw("add", counter, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), code


@intrinsic
def look_at(typingctx: Any, word: Any) -> Any:
    """The int64 at this address as it is now."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = builder.inttoptr(arguments[0], INT64.as_pointer())
        return builder.load_atomic(counter, "seq_cst", 8)

    return types.int64(types.int64), code


@intrinsic
def rewind(typingctx: Any, job: Any) -> Any:
    """The job at this address begins at its first item again."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(INT64(0), builder.inttoptr(arguments[0], INT64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), code


@intrinsic
def pause(typingctx: Any) -> Any:
    """Say to the CPU that this thread waits."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), code


@compiled
def wait_for(count: int, arrived: int, sleepers: int, system: int, futex: int) -> None:
    """Return when the counter at `arrived` has come so far; sleep if that takes long, or give the core away
    where there is no such call."""
    for _ in range(SPINS):
        if look_at(arrived) >= count:
            return
        pause()
    while not futex and look_at(arrived) < count:
        ask(system)
    add_to(sleepers, 1)
    seen = look_at(arrived)
    while seen < count:
        ask_system(system, futex, arrived, SLEEP, seen)  # returns at once if there are more by now
        seen = look_at(arrived)
    add_to(sleepers, -1)


def play(pointer: Any) -> None:
    """The body: each thread runs every loop, which shares its items out among those that are there."""
    job = carray(pointer, 1)[0]
    loops = integers(job.loops, job.last, 2)
    arrived = address_in(pointer)
    sleepers = arrived + SLEEPERS_AT
    team = ask(job.team) if job.team else 1
    through = 0
    for place in range(job.first, job.last):
        if not loops[place, 0]:
            continue
        call(loops[place, 0], loops[place, 1])
        through += team
        # the last one knows that all others are through with the loop; the next one is not this one
        if team == 1 or add_to(arrived, 1) == through - 1:
            rewind(loops[place, 1])
            if job.futex and look_at(sleepers):
                ask_system(job.system, job.futex, arrived, WAKE, EVERYBODY)
        else:
            wait_for(through, arrived, sleepers, job.system, job.futex)


@cache
def tape_loop() -> Loop:
    return Loop(Job, play)


class Tape:
    """Loops in the order in which they are added, and what Python does between them.

    Owns the counters of its jobs: a job is on one tape, once.
    """

    def __init__(self, threads: int) -> None:
        futex = FUTEX.get(platform.machine(), 0) if sys.platform == "linux" else 0
        team, system = address_of("omp_get_num_threads"), address_of("syscall" if futex else "sched_yield")
        self._threads = threads if team and system else 1
        self._loops: list[tuple[int, int]] = []
        self._kept: list[tuple[Loop, ctypes.Structure]] = []
        self._stops: list[tuple[int, Turn | None, Hashable]] = []
        self._table: np.ndarray | None = None
        self._left_out: set[int] = set()
        self._job = Job(team=team, system=system, futex=futex)
        self._loop = tape_loop()

    def add(self, loop: Loop, job: ctypes.Structure) -> int:
        """Where it stands. Raises ValueError once the tape has been played."""
        if self._table is not None:
            raise ValueError("a tape that has been played is not added to")
        self._loops.append((loop.address, ctypes.addressof(job)))
        self._kept.append((loop, job))
        return len(self._loops) - 1

    def use(self, place: int, is_used: bool) -> None:
        """From now on the loop that stands there is run, or is not."""
        if (place in self._left_out) == is_used:
            self._left_out ^= {place}
            self._laid_out()[place, 0] = self._loops[place][0] if is_used else 0

    def turn(self, turn: Turn) -> None:
        """Python's turn after what was added last, at every run."""
        self._stops.append((len(self._loops), turn, None))

    def mark(self, name: Hashable) -> None:
        """A place after what was added last, where a run may have Python do something."""
        self._stops.append((len(self._loops), None, name))

    def run(self, turns: Mapping[Any, Turn]) -> None:
        """All of it, with these turns at marked places."""
        self._laid_out()
        done = 0
        for place, turn, name in self._stops:
            turn = turn or turns.get(name)
            if turn is not None:
                self._play(done, place)
                turn()
                done = place
        self._play(done, len(self._loops))

    def _laid_out(self) -> np.ndarray:
        """All loops, as the threads that play them read them: [n, 2], the loop and its job."""
        if self._table is None:
            self._table = np.array(self._loops, np.int64)
            self._job.loops = self._table.ctypes.data
        return self._table

    def _play(self, first: int, last: int) -> None:
        if first < last:
            self._job.first, self._job.last = first, last
            self._loop.run(self._job, self._threads)


@cache
def address_of(name: str) -> int:
    """Of a function of the C library, or of the OpenMP runtime that torch has loaded; 0 if there is none."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):
        return 0
