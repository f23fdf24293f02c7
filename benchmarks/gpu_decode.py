"""Full-size Qwen3-Omni on one GPU, random weights: decode steps beside their bandwidth floor, and sessions.

    python benchmarks/gpu_decode.py --attention triton --cuda-graphs --out benchmarks/results/gpu-decode.json
    python benchmarks/gpu_decode.py --dry-run        a tiny model on the CPU: does it run at all?

Nothing is downloaded: the sizes are those of Qwen3-Omni-30B-A3B as released, the weights are made on the
device in bf16 (66 GiB), the tokenizer is the demo checkpoint's. Measured, in this order:

sessions  so many people ask at once for a spoken reply: time to first packet, and the real-time factor
          (seconds from the question to the last sample, by seconds of audio).
steps     milliseconds of a thinker step (with head and argmax) and of a talker step (with the whole frame),
          by attention back-end, with and without CUDA graphs, at 1, 8, 32 and 64 rows. The floor beside it is
          the time to read once what such a step has to read, at the bandwidth of a copy measured here:
          weights (of experts, those that so many tokens are expected to pick), and the keys and values.
peer      transformers' generate() on a model of the same sizes, once ours is gone: batches of as many people.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.bench import provenance
from antiphon.checkpoint.demo import make_demo
from antiphon.core.config import EngineOptions
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import AudioOut, Output, ResponseEnded
from antiphon.core.sampling import Sampling
from antiphon.engine.graphs import FrameGraphs
from antiphon.engine.lanes import LanedExecutor
from antiphon.engine.load import Engine, load_engine, open_source
from antiphon.models.decoder_config import DecoderConfig
from antiphon.nn.attention import PagedBatch, over
from antiphon.nn.backends import BACKENDS, pick_backend
from antiphon.nn.graphs import Capture, Captured, Outputs, cuda_capture
from antiphon.nn.step import StepInputs
from antiphon.runtime.driver import Driver

ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
CONTEXT = {"max_position_embeddings": 65536, "rope_parameters": ROPE, "norm_topk_prob": True}
RELEASED: dict[str, Any] = {
    "thinker_config": {
        "text_config": {
            **CONTEXT, "vocab_size": 152064, "hidden_size": 2048, "intermediate_size": 768,
            "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
            "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        },
        "audio_config": {"output_dim": 2048},
        "vision_config": {"out_hidden_size": 2048},
        "position_id_per_seconds": 13,
    },
    "talker_config": {
        "text_config": {
            **CONTEXT, "vocab_size": 3072, "hidden_size": 1024, "intermediate_size": 2048,
            "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128,
            "moe_intermediate_size": 384, "shared_expert_intermediate_size": 768, "num_experts": 128,
            "num_experts_per_tok": 6,
        },
        "code_predictor_config": {"num_code_groups": 16}, "num_code_groups": 16, "spatial_merge_size": 2,
        "accept_hidden_layer": 24, "codec_bos_id": 2149, "codec_eos_token_id": 2150, "codec_pad_id": 2148,
        "codec_nothink_id": 2155, "codec_think_bos_id": 2156, "codec_think_eos_id": 2157,
        "speaker_id": {"ethan": 2302},
    },
    "code2wav_config": {},
}  # fmt: skip
"""Sizes and codec ids of Qwen3-Omni-30B-A3B; ids of text are the demo tokenizer's."""

BLOCK_SIZE = 16


def write_config(directory: Path) -> None:
    """The released sizes over the demo checkpoint's config.json, whose text ids stay."""
    from transformers import Qwen3OmniMoeConfig

    path = directory / "config.json"
    demo = json.loads(path.read_text())
    full = json.loads(json.dumps(RELEASED))
    for target, source in [
        (full, demo),
        *((full[name], demo[name]) for name in ("thinker_config", "talker_config")),
    ]:
        for name, value in source.items():
            if name.endswith("_token_id") and not name.startswith("codec_"):
                target[name] = value
    path.write_text(json.dumps({**demo, **Qwen3OmniMoeConfig(**full).to_dict()}))


class Bench:
    """One loaded engine and where its figures go."""

    def __init__(self, engine: Engine, options: argparse.Namespace) -> None:
        self.engine = engine
        self.options = options
        self.device = torch.device(engine.info.device)
        self.bytes_per_s = copy_bytes_per_s(self.device, options.copy_bytes)

    def steps(self) -> Iterator[dict[str, Any]]:
        dtype = getattr(torch, self.engine.info.dtype)
        capture = cuda_capture(self.device) if self.device.type == "cuda" else called_again
        for name, backend in BACKENDS.items():
            if backend.obstacle(self.device, dtype):
                continue
            for graphs in (False, True):
                for rows in self.options.rows:
                    for stage in ("thinker", "talker"):
                        yield self._step(stage, name, capture if graphs else None, rows)

    @torch.inference_mode()
    def _step(self, stage: str, attention: str, capture: Capture | None, rows: int) -> dict[str, Any]:
        line: dict[str, Any] = {"stage": stage, "attention": attention, "rows": rows}
        line["graphs"] = capture is not None
        try:
            work, read_bytes = self._work(stage, attention, capture, rows)
            line["ms"] = round(timed_ms(work, self.device, self.options.repeats), 3)
        except Exception as error:
            return {**line, "error": f"{type(error).__name__}: {error}"}
        line["floor_ms"] = round(1000 * read_bytes / self.bytes_per_s, 3)
        line["times_floor"] = round(line["ms"] / line["floor_ms"], 2)
        return line

    def _work(
        self, stage: str, attention: str, capture: Capture | None, rows: int
    ) -> tuple[Callable[[], Any], float]:
        """A step's work, and how many bytes it has to read."""
        executor: Any = self.engine.executors[stage]
        executor = executor.inner if isinstance(executor, LanedExecutor) else executor
        stage_model = executor.runner._model
        if isinstance(stage_model, FrameGraphs):
            stage_model = stage_model._model
        decoder = stage_model.decoder
        stage_model.use_backend(BACKENDS[attention], capture)
        model = stage_model
        if stage == "talker" and capture is not None:
            model = FrameGraphs(stage_model, capture)
        tokens = self.options.context
        width = -(-(tokens + 1) // BLOCK_SIZE)
        tables = np.random.default_rng(0).permutation(rows * width).reshape(rows, width)
        pages = stage_model.new_pages(rows * width, BLOCK_SIZE)
        x = torch.randn(rows, decoder.config.hidden_size, device=self.device).to(
            getattr(torch, self.engine.info.dtype)
        )
        positions = torch.full((3, rows), float(tokens), device=self.device)

        def thinker() -> None:
            batch = PagedBatch.build([1] * rows, [tokens] * rows, tables, BLOCK_SIZE, self.device)
            hidden, _ = model.forward(StepInputs(x, positions, over(pages, batch)))
            model.logits(hidden).argmax(-1)

        def talker() -> None:
            batch = PagedBatch.build([1] * rows, [tokens] * rows, tables, BLOCK_SIZE, self.device)
            hidden, _ = model.forward(StepInputs(x, positions, over(pages, batch)))
            c0 = model.logits(hidden).argmax(-1).clamp(max=model.vocab_size - 1)
            model.frame(hidden, c0, Greedy(rows))

        config = decoder.config
        elements = 2.0 * rows * tokens * config.num_layers * float(np.prod(config.kv_shape))
        elements += config.num_layers * layer_elements(config, rows) + model.vocab_size * config.hidden_size
        if stage == "talker":
            elements += frame_elements(stage_model._talker.config, rows)
        return (thinker if stage == "thinker" else talker), elements * x.element_size()

    def served_with(self) -> dict[str, Any]:
        """How the sessions are served; the steps try every way."""
        options = self.options
        attention = pick_backend(options.attention, self.device, getattr(torch, self.engine.info.dtype))
        return {"attention": attention, "graphs": options.cuda_graphs, "depth": self.engine.depth}

    def sessions(self) -> Iterator[dict[str, Any]]:
        for count in self.options.sessions:
            self._ask(min(count, 2))
            yield self._ask(count)

    def _ask(self, count: int) -> dict[str, Any]:
        """All ask at the same time; the figures of their replies."""
        first: dict[str, float] = {}
        last: dict[str, float] = {}
        seconds: dict[str, float] = {}
        failed: list[str] = []

        def heard(output: Output) -> None:
            if isinstance(output, AudioOut):
                now = time.perf_counter() - started
                first.setdefault(output.session, now)
                last[output.session] = now
                seconds[output.session] = seconds.get(output.session, 0.0) + len(output.audio) / 4 / 24000
            if isinstance(output, ResponseEnded):
                open_sessions.discard(output.session)
                if output.status == "failed":
                    failed.append(output.message)

        def all_heard(outputs: tuple[Output, ...]) -> None:
            for output in outputs:
                heard(output)

        names = [f"s{i}" for i in range(count)]
        open_sessions = set(names)
        driver = Driver(self.engine, all_heard)
        started = time.perf_counter()
        more = driver.advance([fact for name in names for fact in self._facts(name)])
        while open_sessions:
            if not more:
                driver.wait(1.0)
            more = driver.advance([])
        driver.advance([SessionClosed(name) for name in names])
        if failed or not seconds:
            return {"sessions": count, "error": failed[0] if failed else "nobody spoke"}
        rtf = [last[name] / seconds[name] for name in seconds]
        return {
            "sessions": count,
            "audio_s": round(sum(seconds.values()), 2),
            "ttfp_ms": percentiles([1000 * value for value in first.values()]),
            "rtf": percentiles(rtf),
        }

    def _facts(self, name: str) -> list[Any]:
        length = self.options.reply_tokens
        node = self.engine.node.ar
        sampling = {
            stage: Sampling(max_tokens=tokens, suppress=node[stage].stop_ids)
            for stage, tokens in (("thinker", length), ("talker", 4 * length))
        }
        return [
            SessionOpened(name),
            ItemAdded(name, Item("q", "user", (TextPart(f"Tell me a story, {name}."),))),
            ResponseRequested(name, name, "r", sampling=sampling, max_tokens=length),
        ]


class Greedy:
    """Picks the likeliest code; with the columns that a captured frame asks for."""

    def __init__(self, rows: int) -> None:
        self.params = [Sampling()] * rows

    def __call__(self, logits: torch.Tensor, codebook: int) -> torch.Tensor:
        return logits.argmax(-1)


def layer_elements(config: DecoderConfig, rows: int) -> float:
    """Weights of one layer that a step of so many tokens reads: of E experts, those that are picked at least
    once when every token picks k of them at random, E (1 - (1 - k/E)^rows)."""
    hidden = config.hidden_size
    attention = hidden * (sum(config.qkv_rows) + config.qkv_rows[0])
    if not config.is_moe:
        return attention + 3 * hidden * config.intermediate_size
    hit = config.num_experts * (1 - (1 - config.num_picks / config.num_experts) ** rows)
    experts = hidden * (config.num_experts + 3 * hit * config.expert_size)
    return attention + experts + 3 * hidden * config.shared_expert_size


def frame_elements(config: Any, rows: int) -> float:
    """The predictor's layers are read once a pass, one pass a codebook but the first; each head once."""
    predictor, passes = config.predictor, config.num_codebooks - 1
    layers = predictor.num_layers * layer_elements(predictor, rows)
    return passes * (layers + config.predictor_vocab * predictor.hidden_size)


def called_again(work: Callable[[], Outputs]) -> Captured:
    """In the place of a graph where there is none: no faster, but the same way there."""
    outputs = tuple(output.clone() for output in work())

    def replay() -> None:
        for output, value in zip(outputs, work(), strict=True):
            output.copy_(value)

    return Captured(replay, outputs)


def copy_bytes_per_s(device: torch.device, size: int) -> float:
    """Bytes a second that a copy within the device reads and writes."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / (timed_ms(lambda: target.copy_(source), device, 20) / 1000)


def timed_ms(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Milliseconds of a call, from the host to the device's end of it; the median."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    taken = []
    for _ in range(3):
        work()
    for _ in range(repeats):
        wait()
        before = time.perf_counter()
        work()
        wait()
        taken.append(1000 * (time.perf_counter() - before))
    return float(np.median(taken))


def percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{share}": round(float(np.percentile(values, share)), 3) for share in (50, 95)}


def load(directory: Path, options: argparse.Namespace) -> Engine:
    make_demo(directory, size="tiny")
    if not options.dry_run:
        write_config(directory)
    tokens = 64 + 5 * options.reply_tokens
    rows = max(options.sessions)
    chosen = EngineOptions(
        device=options.device,
        dtype="float32" if options.dry_run else "bfloat16",
        attention=options.attention,
        graphs="on" if options.cuda_graphs else "off",
        depth=1,
        max_rows=rows,
        max_context_tokens=tokens,
        kv_tokens=rows * (tokens + BLOCK_SIZE),
        load_format="dummy",
    )
    seen: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        if what not in seen:
            seen.append(what)
            sys.stderr.write(what + "\n")

    return load_engine(open_source(str(directory), chosen, progress), chosen, "full size", progress)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="a tiny model, few repeats")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--attention", default="auto", help="of the sessions; steps try every back-end")
    parser.add_argument("--cuda-graphs", action="store_true", help="of the sessions; steps try both")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--peer-sessions", type=int, nargs="*", default=[1, 8, 32, 64])
    parser.add_argument("--context", type=int, default=2048, help="tokens before the step")
    parser.add_argument("--reply-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.copy_bytes = 2**30
    if options.dry_run:
        options.rows, options.sessions, options.context = [1, 3], [1, 3], 40
        options.peer_sessions = [1, 3]
        options.reply_tokens, options.repeats, options.copy_bytes = 6, 2, 2**22
        options.device = "cpu" if options.device == "auto" else options.device
    return options


def peer(directory: Path, options: argparse.Namespace, place: tuple[torch.device, torch.dtype]) -> list[Any]:
    """transformers' figures; a number of people that it has no memory for is said to be so."""
    from gpu_transformers import Transformers

    model, lines = Transformers(directory, *place), []
    for count in options.peer_sessions:
        try:
            model.ask(count, 2)
            lines.append(model.ask(count, options.reply_tokens))
        except torch.OutOfMemoryError as error:
            lines.append({"sessions": count, "error": str(error).partition("\n")[0]})
    return lines


def measured(directory: Path, options: argparse.Namespace) -> tuple[dict[str, Any], tuple[Any, Any]]:
    """Ours, and where it ran: nothing of it is left after that."""
    bench = Bench(load(directory, options), options)
    result = {
        "model": "tiny (dry run)" if options.dry_run else "Qwen3-Omni-30B-A3B, random weights",
        "context_tokens": options.context,
        "copy_gb_per_s": round(bench.bytes_per_s / 1e9, 1),
        "served_with": bench.served_with(),
        "sessions": list(bench.sessions()),
        "steps": list(bench.steps()),
    }
    return result, (bench.device, getattr(torch, bench.engine.info.dtype))


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        result, place = measured(model, options)
        gc.collect()
        if place[0].type == "cuda":
            torch.cuda.empty_cache()
            result["machine"] = f"{torch.cuda.get_device_name()}, {provenance.machine()}"
        result["peer"] = peer(model, options, place)
    provenance.keep(result, options.out)


if __name__ == "__main__":
    main()
