"""Views of a stage that a test writes down: candidates with a column for each, and nothing behind them."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from antiphon.core.playback import Source
from antiphon.policy.base import Place, StepView


def stage(num_rows: int, size: int, **told: Any) -> StepView:
    """`num_rows` candidates with a row, and then others. What is not `told` is as of replies that can all run
    in a stage with blocks to spare."""
    at = np.arange(size)
    columns = {
        "row": np.where(at < num_rows, at, -1),
        "request": 100 + at,
        "tier": np.zeros(size, np.int64),
        "age_s": np.zeros(size),
        "ttft_s": np.full(size, inf),
        "tpot_s": np.full(size, inf),
        "context": np.zeros(size, np.int64),
        "tokens": np.ones(size, np.int64),
        "reading": at >= num_rows,
        "ready": np.ones(size, np.bool_),
        "held": np.ones(size, np.int64),
        "needs": np.zeros(size, np.int64),
        "place": np.full(size, Place.DEVICE),
        "reload_s": np.full(size, nan),
        "lead_s": np.full(size, nan),
        "begun": np.zeros(size, np.bool_),
        "ahead_s": np.zeros(size),
        "source": np.full(size, Source.ACKED),
        "num_gaps": np.zeros(size, np.int64),
        "rate": np.full(size, nan),
    }
    counts = {
        "block_size": 4,
        "num_blocks": 64,
        "num_free": 64,
        "num_pending_free": 0,
        "num_evictable": 0,
        "num_promised": 0,
        "num_free_rows": 8,
        "num_pending_rows": 0,
        "rows_behind": 0.0,
    }
    unknown = told.keys() - columns.keys() - counts.keys() - {"cost"}
    assert not unknown, unknown
    told = {
        name: np.array(value, columns[name].dtype) if name in columns else value
        for name, value in told.items()
    }
    fields = {"unit": "s", "num_rows": num_rows, "cost": None, **columns, **counts, **told}
    return cast("StepView", SimpleNamespace(**fields))


def short(num_rows: int, size: int, **told: Any) -> StepView:
    """The same where every row needs a block and there is none."""
    return stage(num_rows, size, **{"num_free": 0, "context": [4] * size, **told})
