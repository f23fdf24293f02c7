"""bf16 arithmetic beside fp32, of a text checkpoint that is stored in bf16, on a CPU that has both.

    antiphon checkpoint talk checkpoints/talk
    python benchmarks/bf16.py checkpoints/talk/thinker

Both compute by turns in one process from the same weights: `cpu` widens them to fp32, as `--dtype float32`
does, `cpu-bf16` is what `--dtype auto` takes. Times are the fastest of `--repeats`, in ms; with `--shared`
those of one thread's own running time, for a machine that others use too.

shapes     single products of many rows, by AMX where there is one, in pairs (AVX512-BF16) and torch's faster
           one, plain or packed
products   all layers' gate and up, weights from memory; torch's as above
prompts    one prompt, from the first layer to the score of its last token, in pairs too, and of that the
           products alone
steps      decode steps of so many rows with 128 cached tokens each, in pairs too
agreement  how often the highest score is the same token's and how far scores lie from fp32's: in fp32's own
           greedy replies to QUESTIONS, all of them in one batch, and in a text that it did not write, 64
           tokens a step; each token is scored behind the same ones
"""

from __future__ import annotations

import antiphon  # noqa: F401  # isort: skip  # before torch: it says how OpenMP's threads wait

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.bench import provenance
from antiphon.core.config import EngineOptions
from antiphon.engine.load import Loader, open_source
from antiphon.models.decoder_stage import Thinker
from antiphon.models.vocabulary import load_template, load_tokenizer
from antiphon.nn.attention import PagedBatch, over
from antiphon.nn.backends import BACKENDS
from antiphon.nn.cpu import panels
from antiphon.nn.step import StepInputs, Steps

WAYS = "cpu", "cpu-bf16"
PAIRS = "cpu-bf16 in pairs"
TIMED = *WAYS, PAIRS
SHAPES = (
    *((576, 1536), (1536, 576), (576, 576), (576, 49152)),
    *((1024, 1024), (1024, 4096), (4096, 1024), (4096, 4096)),
)
"""Inputs and outputs."""

SHAPE_BYTES = 8 << 20
"""Of as many weights as are multiplied one after the other, each with the same rows: a core's second cache
does not hold them, as it does not in a model."""

SHAPE_ROWS = 128, 512, 1024, 2048
BLOCK = 16
PRODUCT_ROWS = 1, 8, 16, 32, 64, 128, 512, 1024, 2048
PROMPTS = 64, 128, 512, 1024, 2048
STEP_ROWS = 1, 8, 16, 32, 64
CACHED = 128
QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Explain in a few sentences how a bicycle stays upright.",
    "Write a short letter to a friend who moved to another city.",
    "How do I cook rice so that it does not stick?",
    "Tell me a story about a lighthouse keeper and a storm.",
    "What is the difference between weather and climate?",
    "Give me five tips for sleeping better.",
    "Why is the sky blue during the day and red in the evening?",
    "Describe the water cycle to a child.",
    "Which planets of the solar system have rings?",
    "Plan a weekend in the mountains for two people.",
    "What should I ask a doctor about headaches?",
    "Summarise what photosynthesis does.",
    "How does a computer store a picture?",
    "Write a poem of two verses about autumn.",
    "What are good habits for learning a language?",
)
TEXT = Path(__file__).parents[1] / "docs" / "measuring.md"


clock = time.perf_counter


@contextmanager
def without_amx() -> Iterator[None]:
    """Products and attention made within are in pairs, as on a CPU without it."""
    has_amx, panels.has_amx = panels.has_amx, lambda: False
    try:
        yield
    finally:
        panels.has_amx = has_amx


def spans_by_turns(works: Sequence[Callable[[], Any]], repeats: int) -> list[list[float]]:
    """Milliseconds of each one's runs."""
    spans: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, taken in zip(works, spans, strict=True):
            started = clock()
            work()
            taken.append(1e3 * (clock() - started))
    return spans


def by_turns(works: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Milliseconds of each one's fastest run, after one that isn't timed."""
    for work in works:
        work()
    return [round(min(taken), 3) for taken in spans_by_turns(works, repeats)]


class Model:
    """A checkpoint's decoder, whose steps are computed in either way."""

    def __init__(self, checkpoint: Path) -> None:
        opened = open_source(str(checkpoint), EngineOptions(device="cpu"), lambda *_: None)
        self.thinker: Thinker = Loader(opened, lambda *_: None).decoder("thinker")
        self.decoder, self.stops = self.thinker.decoder, torch.tensor(opened.node.ar["thinker"].stop_ids)
        self.steps: dict[str, Steps] = {way: BACKENDS[way].steps_for(self.decoder.stack) for way in WAYS}
        self.steps[PAIRS] = BACKENDS["cpu-bf16"].steps_for(self.decoder.stack)
        tokenizer = load_tokenizer(opened.checkpoint.path)
        self.ids = tokenizer(TEXT.read_text(encoding="utf-8")).input_ids
        template = load_template(opened.checkpoint.path, tokenizer)
        self.questions = [
            tokenizer(template([{"role": "user", "content": question}], None, {})).input_ids
            for question in QUESTIONS
        ]

    def pages(self, rows: int, tokens: int) -> list[tuple[Tensor, Tensor]]:
        """For so many rows of so many tokens at most."""
        return self.decoder.new_pages(rows * -(-tokens // BLOCK), BLOCK)

    def run(
        self, way: str, ids: Tensor, new: list[int], cached: list[int], pages: Any, *, last: bool = True
    ) -> Tensor:
        """The scores of each row's last token or of all; rows have `new` tokens behind those `cached`."""
        width = len(pages[0][0]) // len(new)
        tables = [list(range(row * width, (row + 1) * width)) for row in range(len(new))]
        places = torch.cat([torch.arange(c, c + n) for n, c in zip(new, cached, strict=True)])
        wanted = torch.tensor(new).cumsum(0) - 1 if last else None
        batch = PagedBatch.build(new, cached, tables, BLOCK)
        step = StepInputs(self.thinker.embed(ids), places, over(pages, batch), wanted)
        self.decoder.steps = self.steps[way]
        with without_amx() if way == PAIRS else nullcontext():
            return self.decoder.logits(self.decoder.forward(step)[0])


class Products:
    """Rows of zeros times each of these weights in panels, in order. Weights of one size share the memory
    that is read and written, as those of a decoder do."""

    def __init__(self, weights: Sequence[Tensor], rows: int, *, rounds: bool) -> None:
        self._threads = torch.get_num_threads()
        depths, widths = {w.shape[1] for w in weights}, {16 * len(w) for w in weights}
        rows_of = {depth: torch.zeros(rows, depth) for depth in depths}
        sums_of = {width: torch.empty(rows, width) for width in widths}
        self._held = [(rows_of[w.shape[1]], sums_of[16 * len(w)], w) for w in weights]
        self._jobs = [panels.product_job(x, w, out, self._threads, rounds=rounds) for x, out, w in self._held]
        for job in self._jobs:
            job.rows = rows

    def __call__(self) -> None:
        for job in self._jobs:
            panels.product_loop().run(job, self._threads)


def torchs(sizes: tuple[int, int], count: int, rows: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Torch's products in bf16 of so many rows with `count` weights [out, in], as they are and packed."""
    plain = [torch.zeros(*sizes).bfloat16() for _ in range(count)]
    x = torch.zeros(rows, sizes[1]).bfloat16()
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in plain]

    def torchs_packed() -> None:
        for weight in packed:
            torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    def torchs_plain() -> None:
        for weight in plain:
            F.linear(x, weight)

    return torchs_plain, torchs_packed


def shape(sizes: tuple[int, int], rows: int, repeats: int) -> dict[str, Any]:
    depth, out = sizes
    count = -(-SHAPE_BYTES // (2 * out * depth))
    weights = [panels.lay_out(torch.zeros(out, depth)) for _ in range(count)]
    ours = Products(weights, rows, rounds=True)
    with without_amx():
        pairs = Products(weights, rows, rounds=True)
    bf16, in_pairs, *others = by_turns((ours, pairs, *torchs((out, depth), count, rows)), repeats)
    return {
        "sizes": list(sizes),
        "weights": count,
        "rows": rows,
        **beside_torch(bf16, in_pairs, min(others), rows * out * depth * count),
        "over_pairs": round(in_pairs / bf16, 2),
    }


def beside_torch(bf16_ms: float, pairs_ms: float, torch_ms: float, terms: int) -> dict[str, float]:
    """Of products of so many terms in all."""
    return {
        "bf16_ms": bf16_ms,
        "pairs_ms": pairs_ms,
        "torch_bf16_ms": torch_ms,
        "of_torchs_speed": round(torch_ms / bf16_ms, 2),
        "gflop_per_s": round(2e-6 * terms / bf16_ms),
    }


def products(model: Model, rows: int, repeats: int) -> dict[str, Any]:
    weights = [layer.gate_up for layer in model.decoder.layers]
    out, depth = 16 * len(weights[0]), weights[0].shape[1]
    ours = [Products(weights, rows, rounds=rounds) for rounds in (False, True)]
    with without_amx():
        ours.append(Products(weights, rows, rounds=True))
    others = torchs((out, depth), len(weights), rows)
    fp32, bf16, in_pairs, *others = by_turns((*ours, *others), repeats)
    return {
        "rows": rows,
        "fp32_ms": fp32,
        **beside_torch(bf16, in_pairs, min(others), rows * out * depth * len(weights)),
        "gain": round(fp32 / bf16, 2),
    }


def gained(spans: Sequence[float], tokens: int) -> dict[str, Any]:
    """Of so many tokens, milliseconds by the ways of TIMED."""
    fp32, bf16, in_pairs = spans
    return {
        "fp32_ms": fp32,
        "bf16_ms": bf16,
        "pairs_ms": in_pairs,
        "gain": round(fp32 / bf16, 2),
        "tokens_per_s": round(1e3 * tokens / bf16),
    }


def prompts(model: Model, tokens: int, repeats: int) -> dict[str, Any]:
    ids, pages = torch.tensor(model.ids[:tokens]), model.pages(1, tokens)
    works = [lambda way=way: model.run(way, ids, [tokens], [0], pages) for way in TIMED]
    weights = [w for layer in model.decoder.layers for w in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    *spans, alone = by_turns([*works, Products(weights, tokens, rounds=True)], repeats)
    return {
        "tokens": tokens,
        **gained(spans, tokens),
        "over_products_alone": round(spans[1] / alone, 2),
    }


def steps(model: Model, rows: int, repeats: int) -> dict[str, Any]:
    ids, pages = torch.tensor(model.ids[:rows]), model.pages(rows, CACHED + 1)
    works = [lambda way=way: model.run(way, ids, [1] * rows, [CACHED] * rows, pages) for way in TIMED]
    return {"rows": rows, **gained(by_turns(works, repeats), rows)}


class Agreement:
    """What scores of both ways have in common, added up over steps."""

    def __init__(self) -> None:
        self._scored, self._same, self._farthest, self._squares = 0, 0, 0.0, 0.0

    def add(self, fp32: Tensor, bf16: Tensor) -> None:
        apart = fp32 - bf16
        self._scored += len(apart)
        self._same += int((fp32.argmax(1) == bf16.argmax(1)).sum())
        self._farthest = max(self._farthest, float(apart.abs().max()))
        self._squares += float(apart.square().mean(1).sum())

    def told(self, what: str) -> dict[str, Any]:
        return {
            "of": what,
            "tokens": self._scored,
            "same_top_1": round(self._same / self._scored, 4),
            "farthest": round(self._farthest, 3),
            "rms": round((self._squares / self._scored) ** 0.5, 4),
        }


def on_replies(model: Model, tokens: int) -> dict[str, Any]:
    """Of so many tokens each at most."""
    rows, found = len(QUESTIONS), Agreement()
    lengths = [len(ids) for ids in model.questions]
    caches = {way: model.pages(rows, max(lengths) + tokens) for way in WAYS}
    ids, new, cached = torch.tensor([i for row in model.questions for i in row]), lengths, [0] * rows
    goes_on = torch.ones(rows, dtype=torch.bool)
    for _ in range(tokens):
        fp32, bf16 = (model.run(way, ids, new, cached, caches[way]) for way in WAYS)
        found.add(fp32[goes_on], bf16[goes_on])
        goes_on &= ~torch.isin(fp32.argmax(1), model.stops)
        ids, new, cached = fp32.argmax(1), [1] * rows, [a + b for a, b in zip(new, cached, strict=True)]
    return found.told("its own replies")


def on_text(model: Model, tokens: int, chunk: int = 64) -> dict[str, Any]:
    ids, found = torch.tensor(model.ids[:tokens]), Agreement()
    caches = {way: model.pages(1, tokens) for way in WAYS}
    for first in range(0, tokens, chunk):
        mine = ids[first : first + chunk]
        found.add(*(model.run(w, mine, [len(mine)], [first], caches[w], last=False) for w in WAYS))
    return found.told("a text of others")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--most", type=int, default=2048, help="no more rows or tokens are timed")
    parser.add_argument("--tokens", type=int, default=2048, help="scored for the agreement, each way")
    parser.add_argument("--only", nargs="*", default=("shapes", "products", "prompts", "steps", "agreement"))
    parser.add_argument("--shared", action="store_true", help="of one thread, on a machine that others use")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.shared:
        global clock
        arguments.threads, clock = 1, time.thread_time
    torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = {"checkpoint": arguments.checkpoint.name, "threads": arguments.threads}
    with torch.inference_mode():
        if "shapes" in arguments.only:
            rows = [rows for rows in SHAPE_ROWS if rows <= arguments.most]
            result["shapes"] = [shape(sizes, r, arguments.repeats) for sizes in SHAPES for r in rows]
        model = Model(arguments.checkpoint)
        for name, work, sizes in (
            ("products", products, PRODUCT_ROWS),
            ("prompts", prompts, PROMPTS),
            ("steps", steps, STEP_ROWS),
        ):
            if name in arguments.only:
                chosen = [size for size in sizes if size <= arguments.most]
                result[name] = [work(model, size, arguments.repeats) for size in chosen]
        if "agreement" in arguments.only:
            of_each = arguments.tokens // len(QUESTIONS)
            result["agreement"] = [on_replies(model, of_each), on_text(model, arguments.tokens)]
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
