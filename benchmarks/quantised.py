"""Decode steps and prompts of one model in several kinds of weights, by turns in one process.

    python benchmarks/quantised.py checkpoints/talk/thinker some-Q8_0.gguf some-Q4_1.gguf

The first is what others are compared with. All compute in fp32, as `--dtype float32` does; where the CPU
has AVX512-BF16 and the first is stored in bf16, it comes once more in bf16 arithmetic, as `--dtype auto`
takes it.

weights_mib  of panels, tables and norms in memory
steps        decode steps of so many rows with 128 cached tokens each: the fastest of `--repeats`
prompts      one prompt, from the first layer to the score of its last token
spread       the median over the fastest: how loaded the machine was
"""

from __future__ import annotations

import antiphon  # noqa: F401  # isort: skip  # before torch: it says how OpenMP's threads wait

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from bf16 import CACHED, Model, spans_by_turns
from torch import Tensor

from antiphon.bench import provenance
from antiphon.nn.cpu import has_pairs

STEP_ROWS = 1, 2, 4, 8, 16
PROMPTS = 64, 256

Work = Callable[[], Any]


def held_mib(model: Model) -> float:
    """Of weights, each tensor's memory once."""
    stack, table = model.decoder.stack, model.thinker._embedding
    tensors: list[Tensor | None] = [stack.head, stack.norm, table._weight]
    for layer in stack.layers:
        tensors += [layer.qkv, layer.qkv_bias, layer.o, layer.gate_up, layer.down]
    held = {tensor.data_ptr(): tensor.nbytes for tensor in tensors if tensor is not None}
    return round(sum(held.values()) / 2**20, 1)


def by_turns(works: Sequence[Work], repeats: int) -> list[tuple[float, float]]:
    """Milliseconds of each one's fastest run, and its median over that."""
    spans = spans_by_turns(works, repeats)
    return [(min(taken), statistics.median(taken) / min(taken)) for taken in spans]


def measured(ways: dict[str, tuple[Model, str]], new: list[int], cached: list[int], repeats: int) -> Any:
    """A step whose rows have so many new tokens behind those cached."""
    works: list[Work] = []
    for model, way in ways.values():
        ids, pages = torch.tensor(model.ids[: sum(new)]), model.pages(len(new), max(new) + max(cached))
        works.append(lambda m=model, w=way, i=ids, p=pages: m.run(w, i, new, cached, p))
        works[-1]()
    found = by_turns(works, repeats)
    first = found[0][0]
    return {
        "rows": len(new),
        "tokens": sum(new),
        **{
            name: {
                "ms": round(fastest, 2),
                "tokens_per_s": round(1e3 * sum(new) / fastest, 1),
                "over_first": round(first / fastest, 2),
                "spread": round(spread, 2),
            }
            for name, (fastest, spread) in zip(ways, found, strict=True)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = {"threads": arguments.threads}
    with torch.inference_mode():
        models = {path.name: Model(path) for path in arguments.checkpoints}
        ways = {name: (model, "cpu") for name, model in models.items()}
        name, first = next(iter(models.items()))
        if has_pairs() and first.decoder.layers[0].qkv.dtype is torch.bfloat16:
            ways[f"{name} in bf16"] = first, "cpu-bf16"
        result["weights_mib"] = {name: held_mib(model) for name, model in models.items()}
        result["steps"] = [
            measured(ways, [1] * rows, [CACHED] * rows, arguments.repeats) for rows in STEP_ROWS
        ]
        result["prompts"] = [
            measured(ways, [tokens], [0], max(arguments.repeats // 4, 3)) for tokens in PROMPTS
        ]
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
