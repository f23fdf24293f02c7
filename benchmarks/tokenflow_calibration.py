"""Step times that make the simulated baseline as slow as the one that TokenFlow measured (its §2.3).

    python benchmarks/tokenflow_calibration.py --out benchmarks/results/tokenflow-calibration.json

Of its baseline the paper's text gives two figures: a request that runs gets 30 tokens a second on average,
twice the reading speed (its figure 2), and under peak load the time to the first token is often over 20 s.
At the datasheet's times a request on the 4090 gets more. One time is added to every step, and fitted to the
first figure: SGLang-like, first come first served with room reserved, in the burst (a) of table 1. The second
is told and tests nothing: it holds at the datasheet's times as well. Our policy has no part in it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenflow import RESERVED, Point, outcome_of
from tokenflow_loads import Load, table_1

from antiphon.bench import provenance
from antiphon.metrics.recorder import fold
from antiphon.metrics.streaming import readings

ROW_PER_S = 30.0
TRIED_MS = 15.0


def speeds(load: Load, work: Path) -> dict[str, float]:
    """Of the baseline: tokens a second of a request that runs, and when the first comes."""
    read = readings(fold(outcome_of(Point(RESERVED, load, 0), work).events).responses)
    rates = [(one.at_s.size - 1) / (one.at_s[-1] - one.at_s[0]) for one in read if one.at_s.size > 1]
    ttft_s = [one.ttft_s for one in read]
    return {
        "row_tokens_per_s": round(float(np.mean(rates)), 2),
        "ttft_s.p99": round(float(np.percentile(ttft_s, 99)), 1),
    }


def fitted(load: Load, work: Path) -> dict[str, Any]:
    """A token takes a row longer by the same for every millisecond a step."""

    def at(more_ms: float) -> dict[str, float]:
        one = msgspec.structs.replace(load, more_ms=more_ms)
        path = work / f"calibration-{load.hardware}-{more_ms:g}.json"
        return provenance.once(path, lambda: speeds(one, work))

    low, high = at(0.0), at(TRIED_MS)
    token_ms = [1000 / found["row_tokens_per_s"] for found in (low, high)]
    more_ms = round(TRIED_MS * (1000 / ROW_PER_S - token_ms[0]) / (token_ms[1] - token_ms[0]), 2)
    return {
        "more_ms": more_ms,
        "datasheet": low,
        "calibrated": at(more_ms),
        "paper": {"row_tokens_per_s": ROW_PER_S, "peak ttft_s": "often over 20"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("evaluation/tokenflow"), help="of what is done")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    RESERVED.write(arguments.work)
    provenance.keep(fitted(table_1()["a"], arguments.work), arguments.out)


if __name__ == "__main__":
    main()
