"""Measures the copies of KV blocks between an engine's device and its host tier."""

from __future__ import annotations

import time
from itertools import count
from typing import Literal

import numpy as np

from antiphon.core.plans import CopyBlocks
from antiphon.engine.load import Engine, Progress
from antiphon.latency.fit import fit_link
from antiphon.latency.models import LinkModel
from antiphon.runtime.cases import doublings
from antiphon.runtime.stage_times import QUARTILE, block_bytes, pool_of

REPEATS = 9
WAYS: tuple[Literal["host"], Literal["device"]] = ("host", "device")


def measure_links(engine: Engine, progress: Progress) -> dict[str, LinkModel]:
    """Copies of blocks between device and host, both ways; empty without a host tier.

    Out of the device's blocks and back into them: nothing on the device changes.
    """
    samples: dict[str, list[tuple[float, float]]] = {}
    tickets = count()
    for stage, config in engine.node.ar.items():
        for group in pool_of(engine, stage).groups if config.host_blocks else ():
            progress(f"{stage}: copies of {group}", 0, 0)
            for num_blocks in doublings(min(config.host_blocks, config.num_blocks)):
                moved = float(num_blocks * block_bytes(pool_of(engine, stage), group))
                for to, seconds in copied(engine, (stage, group), num_blocks, tickets).items():
                    samples.setdefault(to, []).append((moved, seconds))
    return {to: fit_link(mine) for to, mine in samples.items()}


def copied(engine: Engine, where: tuple[str, str], num_blocks: int, tickets: count[int]) -> dict[str, float]:
    """Seconds of a copy of so many blocks of a (stage, group), by where to."""
    blocks = np.arange(num_blocks)
    taken: dict[str, list[float]] = {to: [] for to in WAYS}
    for _ in range(REPEATS):
        for to in WAYS:
            taken[to].append(_timed(engine, CopyBlocks(*where, to, blocks, blocks, next(tickets))))
    return {to: float(np.percentile(seconds, QUARTILE)) for to, seconds in taken.items()}


def _timed(engine: Engine, order: CopyBlocks) -> float:
    """Seconds from the order of a copy to its report; those in the queue for cores are not told apart."""
    before = time.perf_counter()
    engine.mover.copy(order)
    while not engine.mover.poll():
        time.sleep(0)
    return time.perf_counter() - before
