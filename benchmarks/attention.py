"""Paged attention of the CPU back-end beside the reference: decode rows, both in one process, in turns.

    python benchmarks/attention.py

Prints milliseconds of one layer's call (median), what a step's preparation takes once, and how many times
faster the back-end is. Tables are laid out in three ways: every row's blocks side by side (just prefilled, or
alone), grown (a prompt side by side, the last quarter dealt out in turns with the other rows, as decoding
together does), and scattered.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from antiphon.nn.attention import PagedBatch, paged_attention
from antiphon.nn.cpu.paged import cpu_attention, prepare

HEADS, KV_HEADS, DIM, BLOCK_SIZE = 16, 4, 64, 16
HEAD = "{:12}{:>6}{:>8}{:>12}{:>10}{:>10}{:>8}\n"
LINE = "{:12}{:6}{:8}{:12.3f}{:10.3f}{:10.3f}{:8.2f}\n"


def tables_of(layout: str, rows: int, width: int) -> np.ndarray:
    """int64 [rows, width]."""
    blocks = np.arange(rows * width)
    if layout == "scattered":
        return np.random.default_rng(0).permutation(blocks).reshape(rows, width)
    grown = width // 4 if layout == "grown" else 0
    prompts = blocks[: rows * (width - grown)].reshape(rows, -1)
    return np.concatenate((prompts, blocks[rows * (width - grown) :].reshape(grown, rows).T), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sys.stdout.write(HEAD.format("layout", "rows", "tokens", "reference", "cpu", "prepare", "gain"))
    for layout in ("side by side", "grown", "scattered"):
        for rows in (1, 4, 16, 64):
            for tokens in (128, 1024):
                compare(layout, rows, tokens, options.repeats)


@torch.inference_mode()
def compare(layout: str, rows: int, tokens: int, repeats: int) -> None:
    width = tokens // BLOCK_SIZE
    batch = PagedBatch.build([1] * rows, [tokens - 1] * rows, tables_of(layout, rows, width), BLOCK_SIZE)
    shape = rows * width, BLOCK_SIZE, KV_HEADS, DIM
    q, k, v = torch.randn(rows, HEADS, DIM), torch.randn(shape), torch.randn(shape)
    torch.testing.assert_close(cpu_attention(q, k, v, batch), paged_attention(q, k, v, batch))
    ways = (
        lambda: paged_attention(q, k, v, batch),
        lambda: cpu_attention(q, k, v, batch),
        lambda: prepare(batch, k),
    )
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, taken in zip(ways, times, strict=True):
            before = time.perf_counter()
            way()
            taken.append(1000 * (time.perf_counter() - before))
    theirs, ours, once = (float(np.median(taken)) for taken in times)
    sys.stdout.write(LINE.format(layout, rows, tokens, theirs, ours, once, theirs / ours))


if __name__ == "__main__":
    main()
