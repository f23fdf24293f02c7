"""What one app serves with: the engine, the open sessions, and whether new ones are welcome."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from antiphon.core.counted import counted
from antiphon.core.errors import Overloaded, Unavailable
from antiphon.core.facts import ResponseRequested
from antiphon.core.ids import IdSource
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import AdvisoryAnswered
from antiphon.runtime.engine_client import COMING_BACK, GONE, EngineClient
from antiphon.server.fetch import MediaFetcher
from antiphon.server.gate import GatedEngine, Tier
from antiphon.server.guides import GuideCheck
from antiphon.server.listening import turn_detector
from antiphon.server.media import BoundedMedia
from antiphon.server.media_files import MediaFiles
from antiphon.server.metrics import ServerMetrics
from antiphon.server.replies import ReplyStore
from antiphon.server.settings import ServerSettings
from antiphon.server.stream_reader import StreamReader
from antiphon.server.turns_of_keys import TurnsOfKeys
from antiphon.server.vad import vad_model
from antiphon.wire.advisories import AdvisoryRequest
from antiphon.wire.guides import AskedGuide
from antiphon.wire.ports import DetokeniserFactory, TurnDetectorFactory
from antiphon.wire.reading import Reader

logger = logging.getLogger("antiphon.server")

FRAME_THREADS = 4
DECODING_THREADS = max(os.cpu_count() or 1, 2)
GOING_AWAY, SERVICE_RESTART = 1001, 1012
POLL_S = 0.02
PACED_PER_SESSION = 4
"""Paced texts that may be open for each of `max_sessions`: a row that writes some 50 tokens a second
keeps four readers at 12 supplied. A text that is written holds memory and a socket, and nothing in the
engine."""
GOODBYE_S = 5.0
"""How long closing handshakes may take at the end of a drain."""


class Draining(Protocol):
    """An open session, as a drain sees it."""

    @property
    def is_busy(self) -> bool:
        """A response is running."""
        ...

    @property
    def tier(self) -> Tier:
        """Whose room it takes up."""
        ...

    @property
    def key(self) -> int | None:
        """Of the configured API keys, the one it came with, by its place among them; None: none is."""
        ...

    @property
    def is_paced(self) -> bool:
        """Its text is sent no faster than it is read, and so may be long in sending once it is written."""
        ...

    def hang_up(self, code: int, reason: str) -> None:
        """Send what is queued, then close."""
        ...

    async def abandon(self, code: str, message: str) -> None:
        """End running responses as failed."""
        ...


class Advised(Protocol):
    """An open session, as an advisory sees it."""

    async def advise(self, asked: AdvisoryRequest) -> AdvisoryAnswered | None:
        """Tell the engine; its answer, or None where that takes too long. Raises Throttled, SessionGone."""
        ...


class Serving:
    """Owned by the app, handed to its routes."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.ids = IdSource(secrets.token_hex(8))
        self.media = BoundedMedia(settings.limits)
        self.files = MediaFiles(settings.limits)
        bounds = settings.limits.max_file_bytes, settings.limits.max_body_bytes
        self.fetcher = MediaFetcher(settings.media_hosts, *bounds, settings.media_timeout_s)
        self.replies = ReplyStore(settings.max_kept_replies, settings.reply_ttl_s)
        self.metrics = ServerMetrics(lambda: self.engine.stats if self.engine else {}, self.least_lead_s)
        self.frame_threads = ThreadPoolExecutor(FRAME_THREADS, "frames")
        """For what realtime sessions decode and resample: no turn waits for files, nor for a slow host."""
        self.decoding = TurnsOfKeys(
            DECODING_THREADS,
            "media",
            "Too many requests wait for their media.",
            settings.retry_after_s,
            settings.max_open_responses + settings.max_best_effort_responses,
        )
        """For media of requests over HTTP."""
        self.connections: set[Draining] = set()
        self.sessions: dict[str, Advised] = {}
        """Open realtime sessions by id."""
        self.keys: dict[str, int | None] = {}
        """Which of the configured API keys each open session came with, over HTTP too; None: none is."""
        self.readers: WeakValueDictionary[str, StreamReader] = WeakValueDictionary()
        """Of texts that are streamed, by the completion's id."""
        self.engine: GatedEngine | None = None
        self.loading = ""
        """What of the model is being loaded, in words."""
        self.detokenisers: DetokeniserFactory | None = None
        self.transcript_detokenisers: DetokeniserFactory | None = None
        """Of a transcriber, where the model has one."""
        self.guides: GuideCheck | None = None
        self.detectors: TurnDetectorFactory = turn_detector
        self.is_draining = False
        self._goodbyes: set[asyncio.Future[None]] = set()

    def key_of(self, session: str) -> int | None:
        """The API key of an open session, by its place among them; None of any other session."""
        return self.keys.get(session)

    def _tenant_of(self, session: str) -> str:
        """By its API key, where there are several."""
        return f"key {self.keys.get(session)}" if len(self.settings.api_keys) > 1 else ""

    def attach_engine(
        self,
        engine: EngineClient,
        detokenisers: DetokeniserFactory,
        transcripts: DetokeniserFactory | None = None,
    ) -> None:
        """The model is loaded: from here on the server is ready, its ear included.

        transcripts: detokenisers of its transcriber, where it has one"""
        vad_model()
        settings, limits = self.settings, self.settings.limits
        limit, best_effort = settings.max_open_responses, settings.max_best_effort_responses
        self.engine = GatedEngine(engine, limit, best_effort, self._tenant_of)
        self.engine.pressure.on_gap = self.metrics.gaps.inc
        self.metrics.tell(engine.info)
        self.detokenisers, self.transcript_detokenisers = detokenisers, transcripts
        self.guides = GuideCheck(
            Path(engine.info.path), engine.info.vocab_size, limits.max_guide_s, settings.retry_after_s
        )

    @property
    def info(self) -> ModelInfo:
        """Of the model, which has to be loaded."""
        assert self.engine is not None
        return self.engine.info

    def least_lead_s(self) -> float:
        """The least audio that a live listener had left lately, in seconds; inf where nobody listened."""
        return self.engine.pressure.least_lead_s(time.monotonic()) if self.engine else inf

    def why_not_alive(self) -> str | None:
        """In words, or None: loading and coming back count as alive, an engine that is dead for good or never
        stops deciding does not."""
        if self.engine is None or self.engine.comes_back:
            return None
        return (self.engine.stuck or None) if self.engine.alive else f"{GONE}."

    def condition(self) -> str:
        """In a word: loading, alive, full, strained, draining, restarting, stuck, or dead."""
        if self.engine is None:
            return "loading"
        if self.why_not_alive() is not None:
            return "stuck" if self.engine.alive else "dead"
        if self.engine.comes_back:
            return "restarting"
        if self.is_draining:
            return "draining"
        if self._why_full("latency") is not None:
            return "full"
        return "alive" if self._why_strained() is None else "strained"

    def detail(self) -> str:
        """What the condition leaves open: what is being loaded, which limit is reached, what is wrong, which
        units are lost."""
        if self.engine is None:
            return self.loading
        is_shut = self.condition() in ("full", "strained")
        reason = self.why_not_alive() or (self._why_no_room("latency") if is_shut else None)
        return " ".join(filter(None, (reason, self._what_is_lost())))

    def forsake(self) -> None:
        """The engine has died and will have forgotten every conversation: clients are told so, and their
        sockets are closed so that they connect again."""
        if self.is_draining:
            return
        for connection in list(self.connections):
            goodbye = asyncio.ensure_future(_forsake(connection))
            self._goodbyes.add(goodbye)
            goodbye.add_done_callback(self._goodbyes.discard)

    def why_not_ready(self) -> str | None:
        """In words, or None when sessions are welcome."""
        if self.is_draining:
            return "The server is shutting down and takes no new sessions."
        if self.engine is None:
            return "The model is still loading."
        if self.engine.comes_back:
            return f"{COMING_BACK}."
        return (self.engine.stuck or None) if self.engine.alive else f"{GONE}."

    def _what_is_lost(self) -> str:
        """Units of the engine, each with why, in words; "" where all are there."""
        lost = self.engine.lost if self.engine is not None else {}
        return "; ".join(f"{unit} is lost: {why}" for unit, why in lost.items()) + "." if lost else ""

    def check_ready(self) -> None:
        """Raise Unavailable while there is no engine to serve with."""
        reason = self.why_not_ready()
        if reason is not None:
            raise Unavailable(reason, self.settings.retry_after_s)

    def check_whole(self) -> None:
        """Raise what keeps newcomers from being served in full: Unavailable or Overloaded where they would be
        refused, and Unavailable where a unit is lost. Sessions are still taken then, and fail only where they
        need that unit."""
        self.check_room()
        if lost := self._what_is_lost():
            raise Unavailable(lost, self.settings.retry_after_s)

    def check_room(
        self, tier: Tier = "latency", num_replies: int = 1, key: int | None = None, *, is_paced: bool = False
    ) -> None:
        """Raise Overloaded when a new session of an API key, or a request for so many replies, cannot be
        taken now, and Unavailable when none can be."""
        self.check_ready()
        reason = self._why_no_more_paced(key) if is_paced else None
        reason = reason or self._why_no_room(tier, num_replies, key)
        if reason is not None:
            raise Overloaded(reason, self.settings.retry_after_s)

    def _num_kept(self, key: int | None, most: int, held: Counter[int | None]) -> int:
        """Of so many places, the free ones that are kept for other API keys: each may have its part of a half
        of all. held: places by key."""
        num_keys = len(self.settings.api_keys)
        if key is None or num_keys < 2:
            return 0
        part = most // (2 * num_keys)
        return sum(max(part - held[other], 0) for other in range(num_keys) if other != key)

    def _why_full(self, tier: Tier, num_replies: int = 1, key: int | None = None) -> str | None:
        assert self.engine is not None
        # a paced text that is written leaves its place, though it is still sent
        held = Counter(
            one.key for one in self.connections if one.tier == tier and (one.is_busy or not one.is_paced)
        )
        num_taken = held.total() + num_replies - 1
        if tier == "best_effort":
            most = self.settings.max_best_effort_responses
            if num_taken >= most:
                return f"max_best_effort_responses: all {most} responses are in use."
            return self.engine.why_full(tier, num_replies)
        if num_taken >= self.settings.max_sessions:
            return f"max_sessions: all {self.settings.max_sessions} sessions are in use."
        if num_taken >= self.settings.max_sessions - self._num_kept(key, self.settings.max_sessions, held):
            return "max_sessions: the sessions that are left are kept for other API keys."
        return self.engine.why_full(tier, num_replies)

    def _why_strained(self) -> str | None:
        """In words, or None while nobody who listens live is near to silence."""
        bound_s, least_s = self.settings.min_lead_s, self.least_lead_s()
        if not bound_s or least_s >= bound_s:
            return None
        left_s = max(least_s, 0.0)
        return (
            f"min_lead_s: live listeners are about to run dry: one had {left_s:.2g} s of audio left, "
            f"less than {bound_s:g} s."
        )

    def _why_no_room(self, tier: Tier, num_replies: int = 1, key: int | None = None) -> str | None:
        """In words, or None when so many replies are welcome; best-effort ones give way to who listens."""
        strained = self._why_strained() if tier == "latency" else None
        return self._why_full(tier, num_replies, key) or strained

    def _why_no_more_paced(self, key: int | None) -> str | None:
        """In words, or None when one more paced text of an API key is welcome."""
        most = PACED_PER_SESSION * self.settings.max_sessions
        held = Counter(one.key for one in self.connections if one.is_paced)
        if held.total() < most - self._num_kept(key, most, held):
            return None
        return (
            f"max_sessions: all {most} places for paced texts, {PACED_PER_SESSION} for each session, are in "
            "use or kept for other API keys; send deliver: asap, or come back later."
        )

    def reader_of(
        self, completion: str, requests: Sequence[ResponseRequested], *, is_streamed: bool, is_paced: bool
    ) -> StreamReader | None:
        """Who reads the one text that is streamed, if at a rate that is known: they may report how far they
        are for as long as this is held."""
        rate = requests[0].rate
        if not (is_streamed and len(requests) == 1 and isinstance(rate, float | int)):
            return None
        reader = StreamReader(requests[0].session, requests[0].response, Reader(rate), is_paced)
        self.readers[completion] = reader
        return reader

    async def check_guide(self, asked: AskedGuide, key: int | None) -> None:
        """Raises ProtocolError for a guide that the text cannot follow, and Overloaded where too many of the
        API key's wait."""
        assert self.guides is not None
        await self.guides.check(asked, key)

    async def drain(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Refuse new sessions, let running responses finish within `drain_s`, then close all. `hurry` ends
        the wait."""
        self.is_draining = True
        for reader in list(self.readers.values()):
            reader.hurry()  # a text may take its reader longer than the server has
        deadline = time.monotonic() + self.settings.drain_s
        if self.connections:
            num_sessions = len(self.sessions)
            logger.info(
                "draining: %s and %s open; running replies have %g s to end, a second Ctrl-C cuts them off",
                counted(num_sessions, "session"),
                counted(len(self.connections) - num_sessions, "HTTP reply", "HTTP replies"),
                self.settings.drain_s,
            )
        while self.connections and not hurry() and time.monotonic() < deadline:
            self._hang_up_idle()
            await asyncio.sleep(POLL_S)
        for connection in list(self.connections):
            await connection.abandon("server_shutting_down", "The server is shutting down.")
        deadline = time.monotonic() + GOODBYE_S
        while self.connections and not hurry() and time.monotonic() < deadline:
            self._hang_up_idle()
            await asyncio.sleep(POLL_S)

    def _hang_up_idle(self) -> None:
        for connection in list(self.connections):
            if not connection.is_busy:
                connection.hang_up(GOING_AWAY, "the server is shutting down")


async def _forsake(connection: Draining) -> None:
    await connection.abandon("engine_gone", f"{COMING_BACK}.")
    connection.hang_up(SERVICE_RESTART, "the engine is being started again")
