"""A decoder stage's requests, and what steps bring them."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.core.facts import NO_INTS, Ints, StagePrompt
from antiphon.core.graph import Survives
from antiphon.core.sampling import Sampling
from antiphon.kv.prefix import Prefix
from antiphon.kv.sequences import Sequence
from antiphon.stage.growing import GrowingInts


@dataclass(slots=True)
class ArRequest:
    """A request of this stage. It has a row and a sequence while it runs, and loses them when preempted.

    inputs  upstream tokens received
    media   keys whose features are at hand until the request ends; None: this stage reads none
    order   smaller is older; who is best effort counts as younger than all who are not
    cached  tokens found cached when it first joined
    tokens  confirmed tokens, each int64 [width], the stop token left out
    prefix  what identifies prompt and tokens to the KV, while it waits
    known   keys of the prompt and of tokens drawn, as far as they were asked for
    fresh   keys of tokens drawn since
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
    known: GrowingInts | None = None
    fresh: list[int] = field(default_factory=list[int])

    @property
    def owner(self) -> str:
        """Whose idle KV it continues: the session's, which a best-effort request leaves alone."""
        return "" if self.is_best_effort else self.session

    def draw(self, tokens: Ints, key: int) -> None:
        """One more confirmed token, int64 [width], known to the KV by its first number."""
        self.tokens.append(tokens)
        self.fresh.append(key)

    def keys(self, survives: Survives) -> Ints:
        """Keys of the prompt, and of what was drawn where a later prompt may show that again."""
        if survives is not Survives.ALL:
            return self.prompt.keys
        if self.known is None:
            self.known = GrowingInts(self.prompt.keys)
        self.known.extend(self.fresh)
        self.fresh.clear()
        return self.known.view

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
