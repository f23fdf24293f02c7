"""The process of a rank other than 0: loads its part of the decoders, then runs them when it is told to.

Started as `python -m antiphon.engine.follower` by `engine.leader`, whose orders come on standard input.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from antiphon.core.errors import AntiphonError
from antiphon.engine.family import FollowerModel, Pages
from antiphon.engine.leader import READY
from antiphon.engine.load import load_followers
from antiphon.engine.ranks import BeginRank, Collective, Forward, Logits, NewPages, read_order
from antiphon.engine.signals import leave_to_parent
from antiphon.engine.touching import Touching
from antiphon.nn.attention import PagedBatch, over
from antiphon.nn.shard import Shard
from antiphon.nn.step import StepInputs

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Rank:
    """What a rank has: its parts of the models by stage, and their pages."""

    models: dict[str, FollowerModel]
    dtype: torch.dtype
    collective: Collective
    pages: dict[str, Pages] = field(default_factory=dict[str, Pages])
    touching: dict[str, Touching] = field(default_factory=dict[str, Touching])

    def new_pages(self, order: NewPages, step_tokens: int) -> None:
        pages = self.models[order.stage].new_pages(order.num_blocks, order.block_size)
        tensors = (tensor for layer in pages for tensor in layer)
        self.touching[order.stage] = Touching(tensors, -(-step_tokens // order.block_size))
        self.pages[order.stage] = pages

    def forward(self, order: Forward) -> None:
        share = self.collective.share
        count = sum(order.query_lens)
        x = share(torch.empty(count, order.hidden_size, dtype=self.dtype))
        positions = share(torch.empty(3, count))
        visual = share(torch.empty(order.num_visual, dtype=torch.int64)) if order.num_deep else None
        rows = order.num_visual, order.hidden_size
        deepstack = [share(torch.empty(rows, dtype=self.dtype)) for _ in range(order.num_deep)]
        tables = np.frombuffer(order.tables, np.int64).reshape(len(order.query_lens), -1)
        self.touching[order.stage].reach(int(tables.max(initial=0)))
        batch = PagedBatch.build(order.query_lens, order.cached_lens, tables, order.block_size)
        model = self.models[order.stage]
        kv = over(self.pages[order.stage], batch)
        model.forward(StepInputs(x, positions, kv, deepstack=deepstack, visual=visual))

    def logits(self, order: Logits) -> None:
        hidden = self.collective.share(torch.empty(order.rows, order.hidden_size, dtype=self.dtype))
        self.collective.side_by_side(self.models[order.stage].logits(hidden))


def main() -> int:
    """Run until rank 0 says no more. Returns the process's exit status."""
    leave_to_parent()  # the end of the input is what ends a rank
    logging.basicConfig(format="%(asctime)s %(levelname)s rank %(name)s: %(message)s", level=logging.INFO)
    try:
        with torch.inference_mode():
            _follow()
    except AntiphonError as error:
        log.error("%s", error)
        return 1
    except RuntimeError:
        log.exception("this rank cannot go on")
        return 1
    return 0


def _follow() -> None:
    begin = read_order(sys.stdin.buffer)
    if not isinstance(begin, BeginRank):
        return
    torch.set_num_threads(begin.threads)
    collective = Collective(Path(begin.store), begin.rank, begin.options.tensor_parallel)
    shard = Shard(begin.rank, begin.options.tensor_parallel, collective.total)
    models, dtype = load_followers(begin.source, begin.options, shard)
    rank = Rank(models, dtype, collective)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    collective.meet()
    while (order := read_order(sys.stdin.buffer)) is not None:
        match order:
            case NewPages():
                rank.new_pages(order, begin.options.of(order.stage).step_tokens)
            case Forward():
                rank.forward(order)
            case Logits():
                rank.logits(order)
            case BeginRank():
                raise RuntimeError("a rank begins once")


if __name__ == "__main__":
    sys.exit(main())
