"""The loads of TokenFlow's evaluation: who comes, to which machines. Those of its table 1, and crowds as in
public traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from antiphon.latency.finding import find_costs
from antiphon.latency.models import ArModel
from antiphon.latency.profile import Profile
from antiphon.latency.shapes import find_shape
from antiphon.workload.fitted import QUANTILES
from antiphon.workload.laws import at_percentile

FITTED = Path(__file__).parent / "results" / "tokenflow-calibration.json"
STAGE = "thinker"
SPREAD = 1.2
"""The 90th percentile of a length as a multiple of its median."""


def about(median: float) -> dict[str, Any]:
    return {"lognormal": {"median": median, "p90": SPREAD * median}}


def fixed(name: str) -> dict[str, Any]:
    """A law fitted to a public trace (`workload/fitted.py`)."""
    return {"fitted": name}


MIXED = {"choice": {"values": [15, 20], "weights": [0.4, 0.6]}}
"""Tokens a second that are read, in figure 19."""
UNLIKE = {"choice": {"values": [8, 20], "weights": [0.5, 0.5]}}
"""Readers of whom no two need to be alike."""
USUAL = {"constant": 15}
"""Half of the 30 tokens a second that the paper's baseline makes for each reader: its figure 2."""


def usual(law: dict[str, Any]) -> int:
    """Its median."""
    if "lognormal" in law:
        return int(law["lognormal"]["median"])
    return int(at_percentile(QUANTILES[law["fitted"]], 50))


class Load(msgspec.Struct, frozen=True):
    """Who comes, and to what.

    arrivals     as a workload has it
    prompt       and `reply`: laws of lengths in tokens
    rate         law of the tokens a second that are read
    kv_tokens    for which the device has room
    more_ms      that every step takes beyond the datasheet's time
    link         GB/s to the host; None: as the datasheet has it
    told_of      figures are of those who read so many tokens a second; None: of all
    agents       that come beside the readers, for each of them: requests like theirs, in the same tier
    agents_say   what an agent's client says of its rate
    """

    name: str
    hardware: str
    arrivals: dict[str, Any]
    sessions: int
    kv_tokens: int
    prompt: dict[str, Any] = msgspec.field(default_factory=lambda: about(512))
    reply: dict[str, Any] = msgspec.field(default_factory=lambda: about(1024))
    rate: dict[str, Any] = msgspec.field(default_factory=lambda: USUAL)
    model: str = "llama-3-8b"
    more_ms: float = 0.0
    link: float | None = None
    told_of: float | None = None
    agents: float = 0.0
    agents_say: Literal["auto"] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "load.open.arrivals": self.arrivals,
            "load.open.sessions": self.sessions,
            "people.reader.typing": {"words": self._words, "words_per_s": 0},
            "people.reader.max_output_tokens": self.reply,
            "people.reader.reading_tokens_per_s": self.rate,
            "people.reader.tells_rate": True,
            **({"jobs.agent": self._agent} if self.agents else {}),
        }

    @property
    def _agent(self) -> dict[str, Any]:
        call = {"words": self._words, "max_output_tokens": self.reply}
        return {"share": self.agents, "tier": "latency", "rate": self.agents_say, "call": call}

    @property
    def _words(self) -> dict[str, Any]:
        law = self.prompt.get("lognormal")
        if law is None:
            return {"fitted": self.prompt["fitted"].replace("_tokens", "_words")}
        return {"lognormal": {name: value / 1.3 for name, value in law.items()}}

    @property
    def profile(self) -> Profile:
        found = find_costs(self.hardware, find_shape(self.model))
        if self.link is not None:
            found = found.with_host_link(self.link * 1e9)
        stage = found.stages[STAGE]
        assert isinstance(stage.model, ArModel)
        slower = msgspec.structs.replace(stage.model, step_s=stage.model.step_s + self.more_ms / 1000)
        stages = {**found.stages, STAGE: msgspec.structs.replace(stage, model=slower)}
        return msgspec.structs.replace(found, stages=stages)


KIB = 1024
POOL_4090 = 40 * KIB
"""Tokens of Llama3-8B for which a 4090 has room: 24 GB, 16 of them weights."""
POOL_H200 = 196 * KIB
"""The same of an H200, where weights and KV have three tenths of its memory (§7.3)."""
LONG_IN, LONG_OUT = about(1024), about(2048)


def burst(size: int) -> dict[str, Any]:
    return {"bursts": {"size": size, "every_s": 36_000}}


def poisson(rate: float) -> dict[str, Any]:
    return {"poisson": {"rate_per_s": rate}}


def table_1(more_ms: float = 0.0) -> dict[str, Load]:
    """On the 4090. How many come as Poisson the paper does not say: 80 here."""

    def on_4090(name: str, arrivals: dict[str, Any], sessions: int, **laws: dict[str, Any]) -> Load:
        return Load(name, "RTX-4090", arrivals, sessions, POOL_4090, more_ms=more_ms, **laws)

    long = {"prompt": LONG_IN, "reply": LONG_OUT}
    return {
        "a": on_4090("(a): burst of 60, S/S", burst(60), 60),
        "b": on_4090("(b): burst of 80, L/L", burst(80), 80, **long),
        "c": on_4090("(c): Poisson 2/s, S/S", poisson(2), 80),
        "d": on_4090("(d): Poisson 4/s, S/S", poisson(4), 80),
        "d, mixed": on_4090("(d), half read 8 and half 20", poisson(4), 80, rate=UNLIKE),
        "a, long": on_4090("(a), replies of 2,048", burst(60), 60, reply=LONG_OUT),
    }


def table_1_on_h200() -> tuple[Load, ...]:
    """The bursts. Replies are twice as long there."""
    short = Load("H200 (a): burst of 400, S/S", "H200", burst(400), 400, POOL_H200, reply=about(2048))
    long = {"prompt": LONG_IN, "reply": about(4096)}
    return short, Load("H200 (b): burst of 200, L/L", "H200", burst(200), 200, POOL_H200, **long)


def fitted_ms() -> float:
    """What benchmarks/tokenflow_calibration.py found."""
    return float(json.loads(FITTED.read_text())["more_ms"])


BURSTGPT = {"prompt": fixed("burstgpt_first_tokens"), "reply": fixed("burstgpt_output_tokens")}
AZURE = {"prompt": fixed("azure_conv_input_tokens"), "reply": fixed("azure_conv_output_tokens")}


def clustered(rate: float, cv: float) -> dict[str, Any]:
    """Arrivals whose gaps have this coefficient of variation."""
    return {"gamma": {"rate_per_s": rate, "cv": cv}}


CROWDS = (
    Load("A6000, Qwen2-7B, burst of 40", "RTX-A6000", burst(40), 40, 20 * KIB, model="qwen2-7b", rate=MIXED),
    Load(
        "A6000, Qwen2-7B, as in BurstGPT, 5/s",
        *("RTX-A6000", clustered(5, 2.9), 150, 16 * KIB),
        model="qwen2-7b",
        **BURSTGPT,
    ),
    Load(
        "H200, Qwen2.5-32B, as in BurstGPT, 8/s",
        *("H200", clustered(8, 2.9), 200, 16 * KIB),
        model="qwen2.5-32b",
        **BURSTGPT,
    ),
    Load("H200, Llama3-8B, as in Azure, 10/s", "H200", clustered(10, 1.1), 200, 24 * KIB, **AZURE),
    Load("RTX 4090, Llama3-8B, half the load", "RTX-4090", poisson(0.5), 40, POOL_4090, rate=MIXED),
)
"""The last is the control: memory is never short."""
