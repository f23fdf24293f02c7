"""Draws of a token a row from fp32 logits on a CPU, by turns in one process: compiled, and by operators.

    python benchmarks/sampling.py --out benchmarks/results/sampling.json

Logits are normal with a deviation of 3. A frame of a codec draws 15 codes one after another like the first
kind of rows; text draws one.

compiled_ms, operators_ms  the fastest of `--repeats`, a draw of all rows
ratio                      of the two
"""

from __future__ import annotations

import antiphon  # noqa: F401  # isort: skip  # before torch: it says how OpenMP's threads wait

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bf16 import by_turns

from antiphon.bench import provenance
from antiphon.core.sampling import Sampling
from antiphon.engine.graphs import ColumnDraw, columns
from antiphon.engine.sampler import Draw
from antiphon.engine.speech import PREDICTOR_STAGE

ROWS = 1, 8, 32
KINDS = {
    "a residual code (2,048 ids, top_k 50, top_p 0.8)": (
        2048,
        Sampling(temperature=1.0, top_k=50, top_p=0.8),
    ),
    "text (49,152 ids, top_p 0.9)": (49152, Sampling(temperature=0.7, top_p=0.9)),
    "text (151,936 ids, top_k 20, top_p 0.8)": (151936, Sampling(temperature=0.7, top_k=20, top_p=0.8)),
    "text (151,936 ids, nothing cut)": (151936, Sampling(temperature=1.0)),
}


def measured(vocab: int, sampling: Sampling, rows: int, repeats: int) -> dict[str, float]:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * 3
    params, positions = [sampling] * rows, np.arange(rows)
    compiled = partial(Draw(params, PREDICTOR_STAGE, "cpu").at(positions), logits, 1)
    operators = partial(ColumnDraw(*columns(params, positions, logits.device)), logits, 1)
    assert torch.equal(compiled(), operators()), "both ways draw the same"
    compiled_ms, operators_ms = by_turns([compiled, operators], repeats)
    return {
        "rows": rows,
        "compiled_ms": compiled_ms,
        "operators_ms": operators_ms,
        "ratio": round(operators_ms / compiled_ms, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = {
        kind: [measured(vocab, sampling, rows, arguments.repeats) for rows in ROWS]
        for kind, (vocab, sampling) in KINDS.items()
    }
    provenance.keep({"threads": arguments.threads, "draws": found}, arguments.out)


if __name__ == "__main__":
    main()
