"""Rank 0's side of tensor parallelism: the other ranks' processes, and models that take them along."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antiphon.core.config import EngineOptions
from antiphon.core.errors import ConfigError, EngineLost
from antiphon.engine.family import Pages
from antiphon.engine.ranks import BeginRank, Collective, Forward, Logits, NewPages, Order, write_order
from antiphon.engine.signals import held_back
from antiphon.nn.shard import Shard
from antiphon.nn.step import StepInputs

READY = b"ready\n"
STOP_WAIT_S = 5.0


class Followers:
    """The processes of ranks 1, 2, ...: started here, ended with this object.

    They load while rank 0 loads; `meet` waits for them.
    """

    def __init__(self, source: str, options: EngineOptions) -> None:
        ranks = options.tensor_parallel
        folder = tempfile.TemporaryDirectory(prefix="antiphon-ranks-")
        store = Path(folder.name) / "store"
        self._processes = [_start() for _ in range(1, ranks)]
        self._stop = weakref.finalize(self, _end, self._processes, folder)
        self.collective = Collective(store, 0, ranks)
        self._is_divided = options.is_divided
        self._shard = Shard(0, ranks, self.collective.total)
        for rank, process in enumerate(self._processes, 1):
            self._write(process, BeginRank(source, options, rank, str(store), torch.get_num_threads()))

    def shard_of(self, stage: str) -> Shard | None:
        """Rank 0's part of a stage; None: all of it."""
        return self._shard if self._is_divided(stage) else None

    def meet(self) -> None:
        """Wait until all have loaded. Raises EngineLost."""
        for rank, process in enumerate(self._processes, 1):
            assert process.stdout is not None
            if process.stdout.readline() != READY:
                process.wait()
                raise EngineLost(_gone(rank, process.returncode))
        self.collective.meet()

    def tell(self, order: Order) -> None:
        for process in self._processes:
            self._write(process, order)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What all ranks do at once. If rank 0 cannot end it, the others would take what it says next for the
        rest of it: they are ended, and `check` says so.
        """
        try:
            yield
        except BaseException:
            for process in self._processes:
                process.kill()
                process.wait()
            raise

    def check(self) -> None:
        """Raises EngineLost if one has ended: the model is not whole without it."""
        for rank, process in enumerate(self._processes, 1):
            if process.poll() is not None:
                raise EngineLost(_gone(rank, process.returncode))

    def stop(self) -> None:
        self._stop()

    def _write(self, process: subprocess.Popen[bytes], order: Order) -> None:
        assert process.stdin is not None
        try:
            write_order(process.stdin, order)
        except OSError:
            process.wait()
            self.check()


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "antiphon.engine.follower"]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with held_back():
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )


def _end(processes: list[subprocess.Popen[bytes]], folder: tempfile.TemporaryDirectory[str]) -> None:
    """The end of their input is the end of their work."""
    for process in processes:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
    for process in processes:
        try:
            process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    folder.cleanup()


def _gone(rank: int, status: int) -> str:
    return (
        f"rank {rank} of the engine has ended (exit status {status}; its log says why), and the model is not "
        "whole without it: the engine ends. Start it again"
    )


class LeadingModel:
    """A decoder model (`engine.family`) whose decoder and head run on all ranks. The rest is its own."""

    def __init__(self, model: Any, stage: str, followers: Followers) -> None:
        self._model = model
        self._stage = stage
        self._followers = followers
        self._share = followers.collective.share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def new_pages(self, num_blocks: int, block_size: int) -> Pages:
        self._followers.tell(NewPages(self._stage, num_blocks, block_size))
        return self._model.new_pages(num_blocks, block_size)

    def forward(self, step: StepInputs) -> tuple[Tensor, Tensor | None]:
        """As the model's own; all ranks compute every token. What is captured is rank 0's alone.

        The other ranks are told of one batch for all layers: their KV is in one group and stays where it is.
        """
        batch, wanted = step.kv[0].batch, step.wanted
        assert all(layer.batch is batch for layer in step.kv), "layer groups are not divided among ranks"
        assert all(layer.ready is None for layer in step.kv), "copies are not divided among ranks"
        assert step.transfers is None, "moves of rows are not divided among ranks"
        visual = step.visual
        deep = [] if visual is None else [layer.to(step.x.dtype) for layer in step.deepstack]
        tables = batch.tables.cpu().numpy().tobytes()
        self._followers.tell(
            Forward(
                self._stage,
                batch.query_lens,
                batch.cached_lens,
                batch.block_size,
                tables,
                step.x.shape[1],
                len(visual) if deep and visual is not None else 0,
                len(deep),
            )
        )
        with self._followers.together():
            x, positions = self._share(step.x), self._share(step.positions)
            if deep and visual is not None:
                visual, *deep = (self._share(tensor) for tensor in (visual, *deep))
            whole = replace(step, x=x, positions=positions, wanted=None, deepstack=deep, visual=visual)
            hidden, captured = self._model.forward(whole)
        return (hidden if wanted is None else hidden[wanted]), captured

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 [r, vocab_size]: each rank has an equal part of the vocabulary, or rank 0 has all of it."""
        part = self._model.logits(hidden)
        if part.shape[1] == self._model.vocab_size:
            return part
        self._followers.tell(Logits(self._stage, *hidden.shape))
        with self._followers.together():
            self._share(hidden)
            return self._followers.collective.side_by_side(part)


def check_place(options: EngineOptions, device_type: str) -> None:
    """Raises ConfigError where tensor parallelism has not been made to run."""
    if options.tensor_parallel > 1 and device_type != "cpu":
        raise ConfigError(
            f"tensor_parallel is {options.tensor_parallel}, "
            f"which runs on --device cpu only; on {device_type} use 1"
        )
