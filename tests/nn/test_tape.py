"""Compiled loops one after the other: in order, whole, on any number of threads; Python's turns between."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

pytest.importorskip("numba")

from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]

from antiphon.nn.cpu.openmp import Loop, floats, job_of, take
from antiphon.nn.cpu.tape import Tape

Job = job_of("x", "size", "factor")


def scale_and_shift(pointer: Any) -> None:
    """x = factor x + 1, number by number."""
    job = carray(pointer, 1)[0]
    x = floats(job.x, 1, job.size)[0]
    item = take(pointer, 1)
    while item < job.size:
        x[item] = job.factor * x[item] + 1
        item = take(pointer, 1)


@pytest.fixture(scope="module")
def loop() -> Loop:
    return Loop(Job, scale_and_shift)


@pytest.fixture(params=[1, 2, 5])
def tape(request: pytest.FixtureRequest) -> Tape:
    """On as many threads; 5 are more than this machine may have."""
    return Tape(request.param)


def job(x: torch.Tensor, factor: float) -> Any:
    return Job(x=x.data_ptr(), size=len(x), factor=factor)


def test_every_loop_sees_what_those_before_it_wrote(tape: Tape, loop: Loop) -> None:
    """Two hundred loops over the same numbers, again and again: x -> 2 x + 1, then x -> x / 2 + 1, …"""
    x = torch.arange(97, dtype=torch.float32)
    expected = x.clone()
    for i in range(200):
        factor = (2.0, 0.5)[i % 2]
        tape.add(loop, job(x, factor))
    for _ in range(20):
        tape.run({})
        for i in range(200):
            expected = (2.0, 0.5)[i % 2] * expected + 1
        torch.testing.assert_close(x, expected)


def test_a_loop_may_be_left_out_of_some_runs(tape: Tape, loop: Loop) -> None:
    x = torch.zeros(31)
    places = [tape.add(loop, job(x, factor)) for factor in (1.0, 3.0, 1.0)]
    for is_used in (True, False, False, True):
        x.zero_()
        tape.use(places[1], is_used)
        tape.run({})
        assert torch.equal(x, torch.full((31,), 5.0 if is_used else 2.0))


def test_threads_that_are_held_up_lose_nothing(tape: Tape, loop: Loop) -> None:
    """Others want the same cores."""
    done = threading.Event()

    def burn() -> None:
        y = torch.randn(64, 64)
        while not done.is_set():
            y = (y @ y).clamp(-1, 1)

    burners = [threading.Thread(target=burn) for _ in range(2 * (os.cpu_count() or 1))]
    for burner in burners:
        burner.start()
    try:
        x, expected = torch.zeros(31), torch.zeros(31)
        for _ in range(50):
            tape.add(loop, job(x, 0.5))
        for _ in range(20):
            tape.run({})
        for _ in range(1000):
            expected = 0.5 * expected + 1
        assert torch.equal(x, expected)
    finally:
        done.set()
        for burner in burners:
            burner.join()


def test_python_has_its_turns_where_they_stand(tape: Tape, loop: Loop) -> None:
    x, seen = torch.zeros(4), []
    tape.mark("before")
    tape.add(loop, job(x, 2.0))
    tape.turn(lambda: seen.append(("always", x[0].item())))
    tape.mark("between")
    tape.add(loop, job(x, 2.0))
    tape.add(loop, job(x, 2.0))
    tape.mark("end")
    tape.run({})
    assert seen == [("always", 1.0)]
    seen.clear()
    x.zero_()
    turns = {
        name: (lambda name=name: seen.append((name, x[0].item()))) for name in ("before", "between", "end")
    }
    tape.run(turns)
    assert seen == [("before", 0.0), ("always", 1.0), ("between", 1.0), ("end", 7.0)]


def test_after_a_turn_that_failed_it_runs_again(tape: Tape, loop: Loop) -> None:
    x = torch.zeros(4)
    tape.add(loop, job(x, 1.0))
    tape.mark("between")
    tape.add(loop, job(x, 1.0))

    def fail() -> None:
        raise RuntimeError("no page came")

    with pytest.raises(RuntimeError, match="no page"):
        tape.run({"between": fail})
    tape.run({})
    assert x.tolist() == [3.0] * 4


def test_an_empty_tape_is_only_turns(tape: Tape) -> None:
    seen: list[int] = []
    tape.turn(lambda: seen.append(1))
    tape.run({})
    assert seen == [1]


def test_who_waits_long_is_woken(loop: Loop) -> None:
    """On more threads than there are cores somebody always waits until another has had its turn."""
    tape = Tape(4 * (os.cpu_count() or 1))
    x = torch.zeros(3)
    for _ in range(300):
        tape.add(loop, job(x, 0.5))
    for _ in range(10):
        tape.run({})
    torch.testing.assert_close(x, torch.full((3,), 2.0))


@pytest.mark.parametrize("said", [None, "7"])
def test_openmp_is_told_how_to_wait_before_torch_loads_it(said: str | None) -> None:
    """GNU's, which says what it was told. What the operator says stands."""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {"OMP_DISPLAY_ENV": "verbose"} | ({"GOMP_SPINCOUNT": said} if said else {})
    command = [sys.executable, "-c", "from antiphon import Omni; Omni"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch has not loaded GNU's OpenMP here")
    assert f"GOMP_SPINCOUNT = '{said or 300}'" in done.stderr
