"""A chat that sends its whole history with every request: time to first token of each turn, with the prefix
cache and without, by turns.

    antiphon checkpoint demo DIR --model qwen3 --size small
    python benchmarks/chat_turns.py DIR --out benchmarks/results/chat-turns.json
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from openai import OpenAI
from served import served

from antiphon.bench import provenance

SIDES = ("on", "off")
REPLY = 32
WORDS = 60
"""Of each message."""


@contextmanager
def serving(arguments: argparse.Namespace, prefix_cache: str, directory: str) -> Iterator[OpenAI]:
    """A server on a free port, until the block ends."""
    path = Path(directory) / f"{prefix_cache}.yaml"
    path.write_text(f"prefix_cache: {prefix_cache}\n")
    options = "--config", str(path), "--name", "small", "--threads", str(arguments.threads)
    with served(Path(directory) / f"{prefix_cache}.log", arguments.checkpoint, *options) as server:
        yield OpenAI(base_url=f"{server.url}/v1", api_key="none")


def message(rng: np.random.Generator) -> dict[str, str]:
    """Unlike all others from its first word on."""
    return {"role": "user", "content": " ".join(str(one) for one in rng.integers(0, 1000, WORDS))}


def chat(client: OpenAI, seed: int, turns: int) -> list[dict[str, float]]:
    """Of each turn: seconds to its first token, and tokens of its prompt and those that were cached."""
    rng, history, told = np.random.default_rng(seed), list[dict[str, str]](), list[dict[str, float]]()
    for _ in range(turns):
        history.append(message(rng))
        asked: Any = {"messages": history, "extra_body": {"ignore_eos": True}, "temperature": 0}
        began, first_s, text = time.perf_counter(), 0.0, ""
        stream = client.chat.completions.create(
            model="small", stream=True, stream_options={"include_usage": True}, max_tokens=REPLY, **asked
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                first_s = first_s or time.perf_counter() - began
                text += chunk.choices[0].delta.content
            if chunk.usage is not None:
                details = chunk.usage.prompt_tokens_details
                cached = (details and details.cached_tokens) or 0
                told.append({"ttft_s": first_s, "prompt": chunk.usage.prompt_tokens, "cached": cached})
        history.append({"role": "assistant", "content": text})
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    measured: dict[str, list[list[dict[str, float]]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as servers:
        clients = {side: servers.enter_context(serving(arguments, side, directory)) for side in SIDES}
        for number in range(-1, arguments.rounds):
            for side in SIDES[:: 1 if number % 2 else -1]:
                told = chat(clients[side], 1 + number, arguments.turns)
                measured[side] += [told] if number >= 0 else []
    best = {
        side: np.array([[turn["ttft_s"] for turn in one] for one in measured[side]]).min(0) for side in SIDES
    }
    result: dict[str, Any] = {
        "rounds": arguments.rounds,
        "ttft_ratio_by_turn": (best["off"] / best["on"]).round(2).tolist(),
    }
    for side in SIDES:
        last = measured[side][-1]
        result[f"prefix_cache {side}"] = {
            "best_ttft_ms_by_turn": (best[side] * 1e3).round(1).tolist(),
            "prompt_tokens_by_turn": [turn["prompt"] for turn in last],
            "cached_tokens_by_turn": [turn["cached"] for turn in last],
        }
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
