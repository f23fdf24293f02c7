"""The engine behind a gate: counts open responses, measures their audio, and answers for too many of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from antiphon.core.facts import (
    ItemCut,
    PersonFact,
    PlaybackReported,
    ResponseRequested,
    TurnAdvised,
    TurnForeseen,
)
from antiphon.core.plans import (
    AudioOut,
    Output,
    ResponseEnded,
    ResponseOutput,
    TokensOut,
    TurnOutput,
    Usage,
)
from antiphon.core.snapshot import Snapshot
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.runtime.engine_client import EngineClient
from antiphon.server.pressure import Pressure

FLOAT_BYTES = 4
Tier = Literal["latency", "best_effort"]


class GatedEngine:
    """An `EngineClient` that lets so many responses in; one more ends as failed, naming the limit.

    It keeps open responses by tier, for the limits. `EngineProcess` keeps them too, to fail them when its
    process dies. Each reads the outputs that pass it, so both have sinks. They are apart because any other
    `EngineClient` is gated as well, and has no process that could die.

    Every surface sends through it, so sockets and HTTP share one count. Best-effort responses have a limit of
    their own: they give way to live ones in the engine, and so they do here.
    """

    def __init__(
        self,
        engine: EngineClient,
        max_open_responses: int,
        max_best_effort_responses: int,
        tenant_of: Callable[[str], str],
    ) -> None:
        """tenant_of: whom a session is of, in a word; "" where that makes no difference. Requests of one
        tenant find no KV of another's."""
        self.info = engine.info
        self._tenant_of = tenant_of
        self.pressure = Pressure()
        self._engine = engine
        self._limits: dict[Tier, tuple[str, int]] = {
            "latency": ("max_open_responses", max_open_responses),
            "best_effort": ("max_best_effort_responses", max_best_effort_responses),
        }
        self._open: dict[str, dict[str, Tier]] = {}
        self._sinks: dict[str, Callable[[Output], None]] = {}
        self._live: set[str] = set()
        """Sessions whose speech is listened to as it comes."""

    @property
    def alive(self) -> bool:
        return self._engine.alive

    @property
    def comes_back(self) -> bool:
        return self._engine.comes_back

    @property
    def stats(self) -> dict[str, float]:
        return self._engine.stats

    @property
    def lost(self) -> dict[str, str]:
        return self._engine.lost

    @property
    def stuck(self) -> str:
        return self._engine.stuck

    def watch(self, viewer: Callable[[Snapshot], None] | None) -> None:
        self._engine.watch(viewer)

    def num_open(self, tier: Tier) -> int:
        """Responses that have not ended."""
        return sum(one == tier for responses in self._open.values() for one in responses.values())

    def why_full(self, tier: Tier, num_more: int = 1) -> str | None:
        """In words, or None when so many more responses are welcome."""
        limit, most = self._limits[tier]
        if self.num_open(tier) + num_more <= most:
            return None
        if num_more > 1:
            return f"{limit}: of {most} responses fewer than the {num_more} of this request are free."
        return f"{limit}: all {most} responses are in use."

    def attach(self, session: str, sink: Callable[[Output], None], *, is_live: bool = True) -> None:
        """is_live: its speech is listened to as it comes; a file, or an answer that is sent whole, is not."""
        self._sinks[session] = sink
        if is_live:
            self._live.add(session)
        self._open[session] = {}
        self._engine.attach(session, self._on_output)

    def detach(self, session: str) -> None:
        self._engine.detach(session)
        del self._sinks[session]
        del self._open[session]
        self._live.discard(session)
        self.pressure.left(session)

    def send(self, fact: PersonFact) -> None:
        if isinstance(fact, ResponseRequested) and fact.session in self._open:
            reason = self.why_full(fact.tier)
            self._open[fact.session][fact.response] = fact.tier
            if reason is not None:
                end = ResponseEnded(
                    fact.session, fact.response, "failed", "server_overloaded", reason, Usage()
                )
                # later, as the engine's own answers come: who asks is not interrupted by the answer
                asyncio.get_running_loop().call_soon(self._on_output, end)
                return
            if fact.speech and fact.tier == "latency" and fact.session in self._live:
                key, now = _key(fact.session, fact.response), time.monotonic()
                self.pressure.asked(key, now, fact.session, fact.item_id)
        elif isinstance(fact, PlaybackReported):
            self.pressure.reported(_key(fact.session, fact.response), fact.played_s, time.monotonic())
        elif isinstance(fact, ItemCut):
            self.pressure.cut(fact.item_id)
        self._engine.send(_salted(fact, self._tenant_of(fact.session)))

    def _on_output(self, output: Output) -> None:
        sink = self._sinks.get(output.session)
        if sink is None:
            return
        if not isinstance(output, TurnOutput):
            self._follow(output)
        sink(output)

    def _follow(self, output: ResponseOutput) -> None:
        key, now = _key(output.session, output.response), time.monotonic()
        match output:
            case TokensOut():
                self.pressure.wrote(key, now)
            case AudioOut():
                self.pressure.heard(key, len(output.audio) / FLOAT_BYTES / WIRE_SAMPLE_RATE_HZ, now)
            case ResponseEnded():
                self._open[output.session].pop(output.response, None)
                self.pressure.ended(key, now)


def _salted(fact: PersonFact, tenant: str) -> PersonFact:
    """The fact with the tenant in the salt of what it asks for."""
    match fact:
        case ResponseRequested() if tenant:
            return msgspec.structs.replace(fact, cache_salt=f"{tenant} {fact.cache_salt}")
        case TurnAdvised(reply=ResponseRequested() as reply) | TurnForeseen(reply=reply):
            return msgspec.structs.replace(fact, reply=_salted(reply, tenant))
        case _:
            return fact


def _key(session: str, response: str) -> str:
    return f"{session}/{response}"
