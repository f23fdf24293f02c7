"""Captured work: a function over static tensors, recorded once per number of rows and replayed from then on.

A launch costs the host more than a small kernel costs the device; a graph is launched once. A step's rows
are padded to the next bucket, so that a few captures serve every batch. How work is captured is given: on
CUDA a CUDA graph; elsewhere whatever keeps the promise of `Capture`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of rows that are captured."""

WARM_UPS = 2
"""Runs before a capture: libraries choose their kernels and make their workspaces in the first."""


@dataclass(frozen=True, slots=True)
class Captured:
    """Work that has been captured: `replay` computes `outputs` anew, in place."""

    replay: Callable[[], None]
    outputs: Outputs


Capture = Callable[[Callable[[], Outputs]], Captured]
"""Captures a function that reads and writes tensors that stay where they are, and never asks the host what is
in them. Its outputs hold anything until the first replay."""


def bucket_of(rows: int, buckets: tuple[int, ...]) -> int | None:
    """The least bucket, of ascending ones, that holds so many rows; None if none does."""
    place = bisect_left(buckets, rows)
    return buckets[place] if place < len(buckets) else None


def fill(buffer: Tensor, values: Tensor) -> None:
    """The first rows of a static buffer; the padding after them keeps what it had, which is finite."""
    buffer[: len(values)].copy_(values)


class Bucketed:
    """A function of tensors [rows, ...] to tensors [rows, ...], every row by itself, captured per bucket.

    Outputs are views of static tensors: the next call overwrites them.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        capture: Capture,
        buckets: tuple[int, ...] = BUCKETS,
    ) -> None:
        self._function = function
        self._capture = capture
        self._buckets = buckets
        self._known: dict[int, tuple[Outputs, Captured]] = {}

    def __call__(self, *inputs: Tensor) -> Outputs:
        """More rows than the largest bucket holds take turns in it.

        The function is called with the most rows before anything is captured, and never with more: tensors of
        its own that grow with the rows stay where a graph has seen them.
        """
        most = self._buckets[-1]
        if not self._known:
            self._function(*repeated(inputs, most))
        if len(inputs[0]) <= most:
            return self._replayed(inputs)
        turns = zip(*(values.split(most) for values in inputs), strict=True)
        parts = [tuple(output.clone() for output in self._replayed(turn)) for turn in turns]
        return tuple(torch.cat(outputs) for outputs in zip(*parts, strict=True))

    def _replayed(self, inputs: Outputs) -> Outputs:
        rows = len(inputs[0])
        bucket = bucket_of(rows, self._buckets)
        assert bucket is not None, "no more rows than the largest bucket"
        if bucket not in self._known:
            buffers = repeated(inputs, bucket)
            self._known[bucket] = buffers, self._capture(lambda: self._function(*buffers))
        buffers, captured = self._known[bucket]
        for buffer, values in zip(buffers, inputs, strict=True):
            fill(buffer, values)
        captured.replay()
        return tuple(output[:rows] for output in captured.outputs)


def repeated(inputs: Outputs, rows: int) -> Outputs:
    """So many copies of the first row: zeros may be nothing that a function takes."""
    return tuple(values[:1].expand(rows, *values.shape[1:]).clone() for values in inputs)


def cuda_capture(device: torch.device) -> Capture:
    """Captures CUDA graphs that share one pool of memory: they must be replayed in one stream.

    All are captured in one stream of their own, since libraries keep a workspace for every stream they have
    seen. Other threads may go on using CUDA while one captures. Unverified: has not run on an accelerator.
    """
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def capture(work: Callable[[], Outputs]) -> Captured:
        with torch.cuda.device(device):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                outputs = work()
        return Captured(graph.replay, outputs)

    return capture
