"""A decoder stage's requests: their state, how long they may become, and what steps bring them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.errors import ConfigError
from antiphon.core.facts import NO_INTS, Ints, StagePrompt
from antiphon.core.graph import LAYERS, Stage, Survives
from antiphon.core.ids import content_key
from antiphon.core.sampling import Sampling
from antiphon.interaction.frontier import NOWHERE
from antiphon.kv.sequences import Prefix, Sequence
from antiphon.kv.transfers import KvLease
from antiphon.policy.base import Tier

UNBOUNDED = 1 << 60
"""More tokens than any request draws."""


class GrowingInts:
    """int64 [n]. Appending costs amortised constant time, and what was viewed before stays as it was."""

    __slots__ = ("_buffer", "_size")

    def __init__(self, first: Ints) -> None:
        self._buffer = first
        self._size = len(first)

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> Ints:
        return self._buffer[: self._size]

    def extend(self, values: list[int]) -> None:
        if not values:
            return
        end = self._size + len(values)
        if end > len(self._buffer):
            buffer = np.empty(end + end // 2, np.int64)
            buffer[: self._size] = self.view
            self._buffer = buffer
        self._buffer[self._size : end] = values
        self._size = end


@dataclass(slots=True)
class ArRequest:
    """A request of this stage. It has a row and a sequence while it runs, and loses them when preempted.

    slot    where the frontier knows its response
    inputs  upstream tokens received
    media   keys whose features are at hand until the request ends; None: this stage reads none
    sought  keys that it turned out to lack, and whose features were asked for
    limit   tokens that it may draw, known once it has a row
    order   smaller came earlier
    cached  tokens found cached when it first joined
    tokens  confirmed tokens, each int64 [width], the stop token left out
    prefix  what identifies prompt and tokens to the KV, while it waits
    known   keys of the prompt and of tokens drawn, as far as they were asked for
    fresh   keys of tokens drawn since, their first numbers
    waits_for_payload  what another process hands over for it is still on its way
    granted  tokens that may be drawn in all, as far as its consumer has come
    is_aside  it is beside the conversation: its KV does not replace the session's past
    paused_as  under which name its KV rested when it was preempted and kept it; "": it never did
    found     leading tokens that were on the device at the last look, and `found_used` blocks of them that
              running requests hold
    reload_wait_since_s  since when it could have joined, but for KV that has to come back from the host
    lease     what it has computed at another unit, until it has a row here and is brought it
    draft    tokens that it is expected to draw (`Join.draft`)
    num_retries  how often a step failed that had waited for such KV, and the request began anew
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
    sought: frozenset[int] = frozenset()
    limit: int = 0
    order: int = 0
    row: int | None = None
    sequence: Sequence | None = None
    cached: int | None = None
    tokens: list[Ints] = field(default_factory=list[Ints])
    prefix: Prefix | None = None
    waits_for_payload: bool = False
    granted: int = UNBOUNDED
    tier: Tier = Tier.LATENCY
    slot: int = NOWHERE
    is_aside: bool = False
    paused_as: str = ""
    found: int = 0
    found_used: int = 0
    known: GrowingInts | None = None
    fresh: list[int] = field(default_factory=list[int])
    reload_wait_since_s: float | None = None
    lease: KvLease | None = None
    num_retries: int = 0
    draft: tuple[int, ...] = ()

    @property
    def owner(self) -> str:
        """Under which name its KV rests: the session's, which a request beside the conversation leaves alone,
        or its own if it was preempted and kept it."""
        if self.paused_as:
            return self.paused_as
        return self.own_name if self.is_aside else self.session

    @property
    def has_credit(self) -> bool:
        """May it draw another token?"""
        return len(self.tokens) < self.granted

    @property
    def own_name(self) -> str:
        """A name for KV that is this request's alone."""
        return f"{self.session} #{self.request}"

    def keys(self, survives: Survives) -> Ints:
        """Keys of the prompt, and of what was drawn where a later prompt, or the request itself when it comes
        back to its KV, may show that again."""
        if survives is not Survives.ALL and not self.paused_as:
            return self.prompt.keys
        if self.known is None:
            self.known = GrowingInts(self.prompt.keys)
        if survives is Survives.ALL:
            self.known.extend(self.fresh)
            self.fresh.clear()
        else:
            drawn = len(self.known) - len(self.prompt.keys)
            self.known.extend([self._private_key(i) for i in range(drawn, len(self.tokens))])
        return self.known.view

    def _private_key(self, position: int) -> int:
        """Of a drawn token whose KV no other request can begin with. Keys of content are not negative."""
        return -1 - (self.request << 32) - position

    def reusable(self, survives: Survives, filled: int) -> Ints:
        """Keys of those of the `filled` leading positions that another prompt may begin with."""
        if survives is Survives.NONE:
            return NO_INTS
        if survives is Survives.PROMPT:
            return self.prompt.keys[: min(filled, self.prompt.num_stable)]
        return self.keys(survives)[:filled]


def private_keys(request: int, num_tokens: int) -> Ints:
    """Of a prompt whose KV this request alone may use: all of it is computed. They differ from those of what
    it draws."""
    return -1 - (request << 32) - (1 << 31) - np.arange(num_tokens, dtype=np.int64)


def salted_keys(salt: str, keys: Ints) -> Ints:
    """Of a prompt whose KV only prompts of the same salt may use: a block's name says all keys up to its end,
    so that another first one is enough."""
    salted = keys.copy()
    salted[:1] = content_key(b"cache salt", salt.encode(), keys[:1].tobytes())
    return salted


class RequestProgress(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a reported step brought a request: its new token (int64 [1, width]) and the first number of it, or
    its end ("stop" or "length"), or both. samples, audio: of the token, where the stage makes sound.
    logprobs: of what was drawn, where the request wants any."""

    request: int
    tokens: Ints | None
    first: int
    end: str | None
    samples: int = 0
    audio: bytes = b""
    logprobs: bytes = b""


class RequestSizes:
    """Sizes of requests in a stage of `num_blocks` blocks per KV group."""

    def __init__(self, config: ArConfig, num_blocks: int) -> None:
        self._config = config
        held, most = num_blocks * config.block_size, config.max_context_tokens
        self.capacity = held if most is None else min(most, held)
        """Tokens that one request may have in the KV if it is alone there."""

    def limit(self, request: ArRequest) -> int:
        """Tokens to draw, at most what the context holds beside the prompt.

        A frame stage draws one less than asked: the last code of a cut reply is never spoken.
        """
        most = request.sampling.max_tokens
        most = most if self._config.width == 1 else max(most - 1, 1)
        return min(most, self.capacity - len(request.prompt.token_ids))

    def promise(self, request: ArRequest) -> int:
        """Blocks that must be there for the request to get a row: what it computes at once, and headroom."""
        prompt = len(request.prompt.token_ids)
        first = self._blocks(prompt + len(request.tokens)) + self._config.headroom_blocks
        return min(first, self._blocks(prompt + self.limit(request)))

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._config.block_size)


def kv_groups(stage: Stage, config: ArConfig) -> tuple[str, ...]:
    """Group names in order; raises ConfigError if a configured one is the name of a payload."""
    split = tuple(name for name, _, _ in config.layer_groups) or (LAYERS,)
    beside = tuple(group.name for group in stage.groups if group.name != LAYERS)
    taken = sorted(set(split) & set(beside))
    if taken:
        raise ConfigError(f"layer_groups of stage {stage.name}: {taken} are groups of their own already")
    return (*split, *beside)
