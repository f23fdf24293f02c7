"""What one long prompt costs the replies beside it: gaps between their tokens with and without the bound on a
step's time, by turns.

    antiphon checkpoint demo DIR --model qwen3 --size medium
    python benchmarks/long_prompt.py DIR
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from antiphon import Omni, Request
from antiphon.core.plans import Output, TokensOut
from antiphon.core.sampling import Sampling
from antiphon.metrics.names import Metric

CONTEXT = 8192
TEMPLATE = 40
"""More than the chat template adds to a prompt."""
WARM = 24, 100, 300, 60
"""Tokens of prompts that come beside a reply before anything is measured."""


class Timed(Omni):
    """Notes when each session's tokens came."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.came_at: defaultdict[str, list[float]] = defaultdict(list)
        super().__init__(*args, **options)

    def _collect(self, outputs: tuple[Output, ...]) -> None:
        for output in outputs:
            if isinstance(output, TokensOut):
                self.came_at[output.session].append(time.perf_counter())
        super()._collect(outputs)


class Side:
    """An engine with one bound, and what was measured of it."""

    def __init__(self, arguments: argparse.Namespace, step_s: float | None) -> None:
        self.name = f"step_s {'by default' if step_s is None else f'{step_s:g}'}"
        self.omni = Timed(
            arguments.checkpoint,
            device="cpu",
            dtype=arguments.dtype,
            threads=arguments.threads,
            kv_tokens=4 * CONTEXT,
            max_context_tokens=CONTEXT,
            step_s=step_s,
        )
        self._tokenizer = Tokenizer.from_file(str(Path(arguments.checkpoint) / "tokenizer.json"))
        self._ends = tuple(self.omni.engine.node.ar["thinker"].stop_ids)
        self._arguments = arguments
        self.gaps_s: list[float] = []
        self.first_s: list[float] = []

    def measure(self, prompts: tuple[int, ...]) -> None:
        """Replies run; once all have begun the prompts come one after the other, each when the one before it
        has its first token. Gaps count from the first prompt to the last one's first token."""
        omni, before = self.omni, set(self.omni.came_at)
        streams = [omni.stream(self._request(30 + i, 4000)) for i in range(self._arguments.streams)]
        for stream in streams:
            next(stream)
        names = set(omni.came_at) - before
        began = time.perf_counter()
        for number, length in enumerate(prompts):
            asked = time.perf_counter()
            next(omni.stream(self._request(length, 1, first=1000 + number)))
            self.first_s.append(time.perf_counter() - asked)
        for name in names:
            times = np.array(omni.came_at[name])
            after = times[np.searchsorted(times, began) - 1 :]
            self.gaps_s += np.diff(after).tolist()
        for stream in streams:
            stream.close()

    def _request(self, length: int, most: int, first: int = 0) -> Request:
        """Of about so many tokens, unlike all others from its first word on."""
        words = " ".join(str(first + number * number) for number in range(length))
        text = self._tokenizer.decode(self._tokenizer.encode(words).ids[: max(length - TEMPLATE, 1)])
        return Request(text, max_tokens=most, sampling={"thinker": Sampling(suppress=self._ends)})

    def told(self) -> str:
        gaps_ms = np.array(self.gaps_s) * 1e3
        p50, p99 = np.percentile(gaps_ms, [50, 99])
        stats = self.omni.driver.stats()
        cut, unknown = (int(stats[name.of("thinker")]) for name in (Metric.STEPS_CUT, Metric.STEPS_UNTIMED))
        return (
            f"{self.name:18} gaps P50 {p50:6.1f} ms  P99 {p99:7.1f} ms  longest {gaps_ms.max():7.1f} ms  "
            f"first token of the prompt {np.median(self.first_s):5.2f} s  (steps cut {cut}, times unknown "
            f"{unknown})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--prompt", type=int, default=8000, help="tokens of the long prompt")
    parser.add_argument("--streams", type=int, default=2, help="replies beside it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=4, help="0: measure the first prompts after a start")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--step-s", type=float, default=None, help="bound; by default the server's own")
    arguments = parser.parse_args()
    sides = [Side(arguments, 0.0), Side(arguments, arguments.step_s)]
    for side in sides:
        if arguments.warm:
            side.measure(WARM * arguments.warm)
            side.gaps_s.clear()
            side.first_s.clear()
    for number in range(arguments.rounds):
        for side in sides[:: 1 if number % 2 else -1]:
            side.measure((arguments.prompt,))
    for side in sides:
        sys.stdout.write(f"{side.told()}\n")


if __name__ == "__main__":
    main()
