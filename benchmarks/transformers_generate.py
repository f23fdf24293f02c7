"""Against transformers: the same replies, from the same checkpoint, in the same process.

    antiphon checkpoint demo checkpoints/medium --size medium
    python benchmarks/transformers_generate.py checkpoints/medium
    antiphon checkpoint talk checkpoints/talk
    python benchmarks/transformers_generate.py checkpoints/talk/thinker

Greedy, fp32, text prompts, replies of `--tokens` text tokens; with their voice if the model is Qwen3-Omni,
text alone of a text model (the last one is SmolLM2). The checkpoint's own repetition penalty counts for both.
Measured by turns, so that a
noisy machine is noisy for all: one request, 8 requests (ours batched; transformers one by one and as one
batch). A ratio is transformers' time over ours; the median over `--rounds` and its range. Before anything is
measured, every prompt's text and the length of its speech are compared.
"""

from __future__ import annotations

import antiphon  # noqa: F401  # isort: skip  # before torch: it says how OpenMP's threads wait

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon import Omni, Request
from antiphon.bench import provenance
from antiphon.core.sampling import Sampling

PROMPTS = [f"hello number {digit}" for digit in range(1, 9)]
GREEDY_TALKER = {
    "talker_do_sample": False,
    "talker_top_k": None,
    "talker_top_p": None,
    "talker_temperature": None,
    "talker_repetition_penalty": 1.05,
}


Reply = tuple[list[int], int]
"""Text tokens, and samples of speech: 0 of a model without a voice."""


class Ours:
    """Antiphon's Python entry."""

    def __init__(self, checkpoint: Path, tokens: int) -> None:
        self._omni = Omni(str(checkpoint), dtype="float32", max_rows=16)
        thinker = self._omni.engine.node.ar["thinker"]
        self.stop, self.penalty = thinker.stop_ids, thinker.sampling.repetition_penalty
        greedy = Sampling(
            temperature=0.0, max_tokens=tokens, suppress=self.stop, repetition_penalty=self.penalty
        )
        talker = Sampling(temperature=0.0, max_tokens=tokens, repetition_penalty=1.05)
        each = {"thinker": greedy, "talker": talker}
        self._sampling = {stage: each[stage] for stage in each if stage in self._omni.engine.node.ar}

    def run(self, prompts: list[str]) -> list[Reply]:
        replies = self._omni.generate([Request(prompt, sampling=self._sampling) for prompt in prompts])
        return [(reply.token_ids["thinker"][:, 0].tolist(), _samples(reply.audio)) for reply in replies]


def _samples(audio: np.ndarray | None) -> int:
    return 0 if audio is None else len(audio)


class Theirs:
    """transformers' generate(), with its default experts."""

    def __init__(self, checkpoint: Path, tokens: int, ours: Ours) -> None:
        """The ends of a turn, as `ours` has them, are never drawn: all replies are equally long."""
        from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

        model_type = json.loads((checkpoint / "config.json").read_text())["model_type"]
        self._speaks = model_type == "qwen3_omni_moe"
        kind = Qwen3OmniMoeForConditionalGeneration if self._speaks else AutoModelForCausalLM
        self._model = kind.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self._tokens, self._never, self._penalty = tokens, list(ours.stop), ours.penalty

    def run(self, prompts: list[str]) -> list[Reply]:
        """One call of generate() for all of them; they are equally long, so nothing is padded."""
        messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
        ids = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        num_asked = ids["input_ids"].shape[1]
        if not self._speaks:
            sequences = self._model.generate(
                **ids,
                max_new_tokens=self._tokens,
                do_sample=False,
                repetition_penalty=self._penalty,
                suppress_tokens=self._never,
            )
            return [(text, 0) for text in sequences[:, num_asked:].tolist()]
        sequences, speech = self._model.generate(
            **ids,
            thinker_max_new_tokens=self._tokens,
            talker_max_new_tokens=self._tokens,
            thinker_do_sample=False,
            thinker_suppress_tokens=self._never,
            **GREEDY_TALKER,
        )
        texts = sequences[:, num_asked:].tolist()
        return [(text, wave.shape[-1]) for text, wave in zip(texts, speech, strict=True)]


def check_alike(ours: Ours, theirs: Theirs) -> None:
    """Every prompt, one at a time there and all together here: the same text, as much speech."""
    for prompt, mine in zip(PROMPTS, ours.run(PROMPTS), strict=True):
        yours = theirs.run([prompt])[0]
        if mine != yours:
            sys.exit(f"{prompt!r} is answered otherwise: {mine} here, {yours} by transformers")


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ratio(theirs: list[float], ours: list[float]) -> dict[str, float]:
    values = np.array(theirs) / np.array(ours)
    return {
        name: round(float(f(values)), 2)
        for name, f in (("median", np.median), ("min", np.min), ("max", np.max))
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ours = Ours(arguments.checkpoint, arguments.tokens)
    theirs = Theirs(arguments.checkpoint, arguments.tokens, ours)
    check_alike(ours, theirs)
    times: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for name, work in {
            "ours_1": lambda: ours.run(PROMPTS[:1]),
            "theirs_1": lambda: theirs.run(PROMPTS[:1]),
            "ours_8": lambda: ours.run(PROMPTS),
            "theirs_8_one_by_one": lambda: [theirs.run([prompt]) for prompt in PROMPTS],
            "theirs_8_batched": lambda: theirs.run(PROMPTS),
        }.items():
            times.setdefault(name, []).append(timed(work))
    result = {
        "checkpoint": arguments.checkpoint.name,
        "tokens": arguments.tokens,
        "same_text_and_length": len(PROMPTS),
        "one_request": ratio(times["theirs_1"], times["ours_1"]),
        "8_against_one_by_one": ratio(times["theirs_8_one_by_one"], times["ours_8"]),
        "8_against_batched": ratio(times["theirs_8_batched"], times["ours_8"]),
        "seconds": {name: [round(value, 3) for value in values] for name, values in times.items()},
        "threads": arguments.threads,
    }
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
