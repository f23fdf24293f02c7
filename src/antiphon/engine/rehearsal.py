"""Decode steps of no request, run before anybody is served: what is captured when a number of rows is
first met, or built by a library then, is there when the first request comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from antiphon.engine.kv_pool import KvPool
from antiphon.nn.graphs import BUCKETS

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total); units are bytes where weights are read ("loading ..."), steps where they
are rehearsed ("rehearsing ...")."""


class Rehearsing(Protocol):
    """A step runner, before its first step."""

    pool: KvPool

    def rehearse(self, num_rows: int) -> None:
        """Run a decode step of so many rows of no request; it writes to the first block only."""
        ...


@torch.inference_mode()
def rehearse(runners: Mapping[str, tuple[Rehearsing, int]], progress: Progress) -> None:
    """Every stage's runner in every bucket that its rows, at most so many, may ever need; the largest first,
    so that the others find their memory in its pool. `progress` counts steps.
    """
    for stage, (runner, max_rows) in runners.items():
        what, buckets = f"rehearsing {stage}", buckets_for(max_rows)
        for done, bucket in enumerate(reversed(buckets)):
            progress(what, done, len(buckets))
            runner.rehearse(bucket)
        runner.pool.blank(0)
        progress(what, len(buckets), len(buckets))


def buckets_for(max_rows: int) -> tuple[int, ...]:
    """The buckets that steps of up to `max_rows` rows take."""
    return tuple(bucket for bucket, below in zip(BUCKETS, (0, *BUCKETS), strict=False) if below < max_rows)
