"""What stages in processes of their own cost one session, and what they gain where eight are served.

Both engines stay loaded in this process and answer the same requests by turns, greedily, all of a round at
once; tokens, frames and waveform are the same. TTFP is from the request to the first audio, per reply; RTF is
seconds per second of audio, over the round. Medians over the rounds. `--threads` is of the inline engine;
apart, each stage's process has one.

    python benchmarks/stages_apart.py checkpoints/demo --out benchmarks/results/stages-apart.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from antiphon import Omni, Sampling
from antiphon.bench.provenance import keep
from antiphon.core.conversation import AudioPart, Item, TextPart
from antiphon.core.facts import Fact, ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import AudioOut, Output, ResponseEnded
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.runtime.driver import Driver

SESSIONS = (1, 8)
TURN_S = 2.0
RATE_HZ = 16_000
FLOAT_BYTES = 4
NEAR = 1e-3
MOST_WAIT_S = 1.0


@dataclass
class Heard:
    """One round's replies: when the first audio of each came, how much came of all, and the bytes."""

    began_s: float = 0.0
    ended_s: float = 0.0
    first_s: dict[str, float] = field(default_factory=dict[str, float])
    audio: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    num_ended: int = 0

    @property
    def ttfp_s(self) -> float:
        return statistics.median(self.first_s.values()) - self.began_s

    @property
    def rtf(self) -> float:
        seconds = sum(map(len, self.audio.values())) / FLOAT_BYTES / WIRE_SAMPLE_RATE_HZ
        return (self.ended_s - self.began_s) / seconds


class Bench:
    """One engine, asked round after round."""

    def __init__(self, model: str, tokens: tuple[int, int], **options: Any) -> None:
        self.omni = Omni(model, device="cpu", **options)
        self._driver = Driver(self.omni.engine, self._hear)
        self._heard = Heard()
        text, frames = tokens
        self._sampling = {"thinker": Sampling(max_tokens=text), "talker": Sampling(max_tokens=frames)}

    def round(self, sessions: int, seed: int) -> Heard:
        """`sessions` people say something of their own at once; until the last reply has ended."""
        rng = np.random.default_rng(seed)
        names = [f"{seed}-{number}" for number in range(sessions)]
        facts = [fact for name in names for fact in self._facts(name, rng)]
        self._heard = Heard(began_s=time.monotonic())
        self._driver.advance(facts)
        while self._heard.num_ended < sessions:
            self._driver.wait(MOST_WAIT_S)
            self._driver.advance([])
        self._heard.ended_s = time.monotonic()
        self._driver.advance([SessionClosed(name) for name in names])
        return self._heard

    def _facts(self, name: str, rng: np.random.Generator) -> list[Fact]:
        samples = rng.normal(0.0, 0.1, int(TURN_S * RATE_HZ)).astype(np.float32)
        item = Item("q", "user", (AudioPart.of(samples.tobytes()), TextPart("What do you hear?")))
        wanted = ResponseRequested(name, name, "reply", sampling=self._sampling)
        return [SessionOpened(name), ItemAdded(name, item), wanted]

    def _hear(self, outputs: tuple[Output, ...]) -> None:
        now = time.monotonic()
        for output in outputs:
            if isinstance(output, AudioOut):
                self._heard.first_s.setdefault(output.session, now)
                self._heard.audio.setdefault(output.session, bytearray()).extend(output.audio)
            elif isinstance(output, ResponseEnded):
                self._heard.num_ended += 1


def sounds_alike(one: bytearray, other: bytearray) -> bool:
    """Whether two waveforms are the same but for fp32's rounding, which depends on who is decoded beside."""
    ours, theirs = (np.frombuffer(each, np.float32) for each in (one, other))
    return len(ours) == len(theirs) and float(np.abs(ours - theirs).max(initial=0.0)) < NEAR


def measure(benches: dict[str, Bench], sessions: int, rounds: int) -> dict[str, Any]:
    """Rounds by turns, one before that is not counted."""
    heard: dict[str, list[Heard]] = {name: [] for name in benches}
    for number in range(rounds + 1):
        for name, bench in benches.items():
            heard[name].append(bench.round(sessions, number))
    alike = [
        sounds_alike(sound, other.audio[name])
        for one, other in zip(*heard.values(), strict=True)
        for name, sound in one.audio.items()
    ]
    figures: dict[str, Any] = {"replies_alike": f"{sum(alike)} of {len(alike)}"}
    for name, said in heard.items():
        figures[name] = {
            "ttfp_s": round(statistics.median(each.ttfp_s for each in said[1:]), 4),
            "rtf": round(statistics.median(each.rtf for each in said[1:]), 4),
        }
    one, other = (figures[name] for name in benches)
    figures["apart / inline"] = {key: round(other[key] / one[key], 3) for key in one}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="checkpoint directory")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of the inline engine")
    parser.add_argument("--text", type=int, default=16, help="tokens of a reply")
    parser.add_argument("--frames", type=int, default=48, help="codec frames of a reply")
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    tokens = asked.text, asked.frames
    benches = {
        "inline": Bench(asked.model, tokens, threads=asked.threads, depth=asked.depth),
        "apart": Bench(asked.model, tokens, stages_apart=True, depth=asked.depth),
    }
    try:
        result = {f"{sessions} sessions": measure(benches, sessions, asked.rounds) for sessions in SESSIONS}
    finally:
        benches["apart"].omni.close()
    about = {"model": Path(asked.model).name, "rounds": asked.rounds, "inline_threads": asked.threads}
    keep({"what": "stages apart against inline", **about, "depth": asked.depth, **result}, asked.out)


if __name__ == "__main__":
    main()
