"""How a stage draws its tokens: part of a request, never of a policy."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from antiphon.core.errors import ConfigError
from antiphon.core.logprobs import MOST_TOP

MOST_COUNTED = 1 << 31
"""Of ids that are kept, and of tokens that are drawn at least."""
LEAST_TEMPERATURE, LEAST_TOP_P = 1e-5, 1e-6
"""Below them fp32 knows no difference between a draw and the likeliest."""
MAX_SEED = 1 << 63
"""Seeds are 64-bit two's complement integers: they cross process borders."""


class Guide(msgspec.Struct, frozen=True):
    """What a text has to match, from its first drawn token to its end.

    kind  json: `text` is a JSON schema; regex: a regular expression; grammar: one in Lark's notation, or in
          that of GBNF
    calls  the rule `calls` in Lark's notation: what the text may be instead; "": nothing. Not of a grammar
    """

    kind: Literal["json", "regex", "grammar"]
    text: str
    calls: str = ""


class Sampling(msgspec.Struct, frozen=True):
    """One stage's sampling parameters.

    temperature  0 is greedy, and so is less than 1e-5
    top_k        0 keeps all
    top_p        1.0 keeps all; less than 1e-6 is 1e-6
    repetition_penalty  over the set of ids seen so far; 1.0 is none (kept under greedy, as transformers does)
    seed         one seed, one output, whatever else is in the batch
    suppress     ids never drawn, beside those the model itself never draws; unknown ids mean nothing
    min_tokens   so many tokens are drawn before one that ends the reply may be
    ignore_eos   tokens that end the reply are tokens like any other: it ends at its length
    logprobs     so many of the likeliest tokens are told with each drawn one, with log-probabilities; 0: the
                 drawn one alone; None: nothing is told
    prompt_logprobs  the same is told of the prompt's tokens, with the first drawn one: all of it is computed
    bias         (id, what is added to its logit) before all else that shapes a draw; unknown ids mean nothing
    guide        tokens that the text cannot go on with are never drawn; only a decoder of text has guides
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    max_tokens: int = 256
    seed: int = 0
    suppress: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: bool = False
    bias: tuple[tuple[int, float], ...] = ()
    guide: Guide | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; it must be in (0, 1]")
        if not 0 <= self.top_k <= MOST_COUNTED:
            raise ConfigError(f"top_k is {self.top_k}; it must be 0 (all) to {MOST_COUNTED}")
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigError(f"repetition_penalty is {self.repetition_penalty}; it must be more than 0")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; it must be 1 or more")
        if not 0 <= self.min_tokens <= MOST_COUNTED:
            raise ConfigError(f"min_tokens is {self.min_tokens}; it must be 0 to {MOST_COUNTED}")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_TOP:
            raise ConfigError(f"logprobs is {self.logprobs}; it must be 0 to {MOST_TOP}, or none")
        if any(token < 0 or not math.isfinite(value) for token, value in self.bias):
            raise ConfigError(f"bias is {self.bias}; it must be token ids, 0 or more, with finite numbers")
        if not -MAX_SEED <= self.seed < MAX_SEED:
            raise ConfigError(f"seed is {self.seed}; it must fit into 64 signed bits")
        if any(token < 0 for token in self.suppress):
            raise ConfigError(f"suppress is {self.suppress}; it must be token ids, 0 or more")
        if self.temperature < LEAST_TEMPERATURE:
            msgspec.structs.force_setattr(self, "temperature", 0.0)
        if self.top_p < LEAST_TOP_P:
            msgspec.structs.force_setattr(self, "top_p", LEAST_TOP_P)
