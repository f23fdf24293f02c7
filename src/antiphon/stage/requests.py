"""A decoder stage's requests, what steps bring them, and the columns of a step's delta."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from antiphon.core.facts import NO_INTS, Ints, StagePrompt
from antiphon.core.graph import Survives
from antiphon.core.plans import BlockDelta
from antiphon.core.sampling import Sampling
from antiphon.kv.prefix import Prefix
from antiphon.kv.sequences import Sequence

Entry = tuple[str, int, int, int]
"""A block table entry: (group, row, index, block)."""


@dataclass(slots=True)
class ArRequest:
    """A request of this stage. It has a row and a sequence while it runs, and loses them when preempted.

    inputs  upstream tokens received
    media   keys whose features are at hand until the request ends; None: this stage reads none
    order   smaller is older; who is best effort counts as younger than all who are not
    cached  tokens found cached when it first joined
    tokens  confirmed tokens, each int64 [width], the stop token left out
    prefix  what identifies prompt and tokens to the KV, while it waits
    is_best_effort  all others go first, and its KV is kept for nobody
    """

    request: int
    session: str
    prompt: StagePrompt
    sampling: Sampling
    first_input: int | None = None
    voice: str | None = None
    residual: Sampling | None = None
    inputs: list[int] = field(default_factory=list[int])
    closed: bool = False
    media: frozenset[int] | None = None
    order: int = 0
    row: int | None = None
    sequence: Sequence | None = None
    cached: int | None = None
    tokens: list[Ints] = field(default_factory=list[Ints])
    prefix: Prefix | None = None
    is_best_effort: bool = False

    @property
    def owner(self) -> str:
        """Whose idle KV it continues: the session's, which a best-effort request leaves alone."""
        return "" if self.is_best_effort else self.session

    def keys(self, survives: Survives) -> Ints:
        """Keys of the prompt, and of what was drawn where a later prompt may show that again."""
        if survives is not Survives.ALL:
            return self.prompt.keys
        return np.concatenate([self.prompt.keys, *(tokens[:1] for tokens in self.tokens)])

    def reusable(self, survives: Survives, filled: int) -> Ints:
        """Keys of those of the `filled` leading positions that another prompt may begin with."""
        if survives is Survives.NONE:
            return NO_INTS
        keys = self.keys(survives)[:filled]
        return keys[: self.prompt.num_stable] if survives is Survives.PROMPT else keys


@dataclass(frozen=True, slots=True)
class Progress:
    """What a reported step brought a request: its new token row, or its end ("stop" or "length")."""

    request: int
    tokens: Ints | None
    end: str | None


@dataclass(frozen=True, slots=True)
class Flight:
    """A step in flight: which request each row works for, how far its KV then reaches, and who joined."""

    rows: Ints
    requests: Ints
    reach: Ints
    joined: tuple[int, ...]


def block_deltas(groups: tuple[str, ...], entries: list[Entry]) -> tuple[BlockDelta, ...]:
    """One column set per group."""
    deltas: list[BlockDelta] = []
    for group in groups:
        mine = np.array([entry[1:] for entry in entries if entry[0] == group], np.int64)
        if len(mine):
            deltas.append(BlockDelta(group, mine[:, 0], mine[:, 1], mine[:, 2]))
    return tuple(deltas)
