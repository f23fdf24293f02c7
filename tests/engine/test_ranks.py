"""Tensor parallelism over processes: what ranks tell each other, and that they live and die together."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from pathlib import Path

import pytest

import forked
from antiphon import Omni, Request, Sampling
from antiphon.core.config import EngineOptions
from antiphon.core.errors import ConfigError, EngineLost
from antiphon.engine import leader
from antiphon.engine.leader import Followers, check_place
from antiphon.engine.ranks import BeginRank, Forward, Logits, NewPages, Order, read_order, write_order

pytestmark = pytest.mark.usefixtures("forked_processes")

BRIEF = {"thinker": Sampling(max_tokens=8), "talker": Sampling(max_tokens=8)}


def followers_of(omni: Omni) -> Followers:
    return omni.engine.check.__self__


@pytest.mark.parametrize(
    "order",
    [
        BeginRank("path", EngineOptions(tensor_parallel=2), 1, "store", 3),
        NewPages("thinker", 8, 16),
        Forward("thinker", (1, 5), (3, 0), 16, b"\0" * 16, 64, 2, 3),
        Logits("talker", 2, 64),
    ],
    ids=lambda order: type(order).__name__,
)
def test_orders_cross_a_pipe(order: Order) -> None:
    pipe = io.BytesIO()
    write_order(pipe, order)
    write_order(pipe, order)
    pipe.seek(0)
    assert [read_order(pipe) for _ in range(3)] == [order, order, None]


@pytest.fixture
def pair(tiny_checkpoint: Path) -> Omni:
    """In the model's usual dtype; tokens are another room's matter."""
    return Omni(tiny_checkpoint, device="cpu", tensor_parallel=2, threads=1, load_format="dummy")


def test_a_dead_rank_ends_the_engine_in_words(pair: Omni) -> None:
    (process,) = followers_of(pair)._processes
    stream = pair.stream(Request("hello", sampling=BRIEF))
    next(stream)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineLost, match=r"rank 1 of the engine has ended \(exit status -9"):
        list(stream)
    followers_of(pair).stop()


def test_a_rank_that_is_told_to_end_while_it_imports_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the whole group, and is for its first process."""
    monkeypatch.setattr(subprocess, "Popen", forked.spawned)
    with leader._start() as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_what_breaks_on_rank_0_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank waits in the middle of a step that will never go on: it must not take what comes."""
    start = ["sleep", "60"]
    monkeypatch.setattr(
        leader, "_start", lambda: subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    )
    followers = Followers("nowhere", EngineOptions(tensor_parallel=2))
    with followers.together():
        followers.check()
    with pytest.raises(ZeroDivisionError), followers.together():
        raise ZeroDivisionError
    with pytest.raises(EngineLost, match="rank 1"):
        followers.check()
    with pytest.raises(EngineLost, match="rank 1"):
        followers.tell(NewPages("thinker", 8, 16))
    followers.stop()


def test_a_rank_that_cannot_load_is_reported(tiny_checkpoint: Path, tmp_path: Path) -> None:
    followers = Followers(str(tmp_path), EngineOptions(device="cpu", tensor_parallel=2))
    with pytest.raises(EngineLost, match=r"rank 1 of the engine has ended \(exit status 1"):
        followers.meet()
    followers.stop()


def test_what_cannot_be_divided_is_refused(tiny_checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="tensor_parallel 3 does not divide the model's num_heads"):
        Omni(tiny_checkpoint, device="cpu", tensor_parallel=3)
    with pytest.raises(ConfigError, match="divided: 'code2wav' is not a decoder; those are thinker, talker"):
        Omni(tiny_checkpoint, device="cpu", tensor_parallel=2, divided=("code2wav",))
    with pytest.raises(ConfigError, match="runs on --device cpu only; on cuda use 1"):
        check_place(EngineOptions(tensor_parallel=2), "cuda")
    with pytest.raises(ConfigError, match="tensor_parallel is 0"):
        EngineOptions(tensor_parallel=0)
