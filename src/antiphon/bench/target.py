"""Which server is driven, and how: what is the same for every session of a run."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, quote_plus, urlsplit

from antiphon.core.errors import ConfigError

TIMEOUT_S = 5.0
MAX_SHOWN_CHARS = 200
SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
"""Of a server's URL; each with that of its plain HTTP."""


@dataclass(frozen=True, slots=True)
class DrivenServer:
    """A realtime server. `url` is http(s)://host[:port], with or without /v1; `label` names it in the log."""

    url: str
    model: str
    api_key: str = ""
    label: str = "server"
    acks: Literal["auto", "always", "never"] = "auto"
    all_metrics: bool = False

    @property
    def root(self) -> str:
        """http(s)://host:port/prefix, without /v1."""
        return root(self.url)

    @property
    def realtime_uri(self) -> str:
        """ws(s) URI of a session."""
        return f"ws{self.root.removeprefix('http')}/v1/realtime?model={quote_plus(self.model)}"


@dataclass(frozen=True, slots=True)
class Pace:
    """How many people come, and how they take turns.

    concurrency     closed loop: so many sessions are kept open; None: open loop, each comes at its arrival_s
    frees_early     a place is free when its session's last reply has come, not been heard
    duration_s      the run ends then, whatever is in progress; None: when the scripts are over
    max_concurrency open loop: at most so many sessions are open, the next wait for a place; None: no bound
    num_sessions    at most so many scripts are played
    turn_detection  manual: the client commits; server_vad: the microphone is always open, the server decides
    patience_s      for so long a person waits for the next sign of a reply before they give up
    lost_after_s    a server that refuses connections for so long is lost, and the run ends
    voices          a directory of recordings to speak with; None: synthetic voices
    """

    concurrency: int | None = None
    frees_early: bool = False
    max_concurrency: int | None = None
    duration_s: float | None = None
    num_sessions: int | None = None
    turn_detection: Literal["manual", "server_vad"] = "manual"
    patience_s: float = 60.0
    lost_after_s: float = 5.0
    voices: Path | None = None


def root(url: str) -> str:
    """Raises ConfigError for what is not an http or ws URL."""
    parts = server_parts(url)
    if parts is None:
        raise ConfigError(f"url: {url!r} is not http(s)://host:port")
    path = parts.path.rstrip("/").removesuffix("/realtime").removesuffix("/v1")
    return f"{SCHEMES[parts.scheme]}://{parts.netloc}{path}"


def server_parts(url: str) -> SplitResult | None:
    """The parts of a server's URL; None for what is not an http or ws URL with a host and, if any, a port."""
    try:
        parts = urlsplit(url)
        has_address = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or brackets around what is no address
        return None
    return parts if parts.scheme in SCHEMES and has_address else None


async def model_of(url: str, api_key: str = "", advice: str = "") -> str:
    """The first model that the server lists. Raises ConfigError; `advice` says what else the user can do."""
    where = f"{root(url)}/v1/models"
    try:
        models = json.loads(await asyncio.to_thread(get, where, api_key))["data"]
        if not models:
            raise ConfigError(
                f"{where} lists no model yet: the server is loading; try again once /ready says 200"
            )
        return str(models[0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{where} names no model: {error}. Check the URL, and that a server runs there{advice}"
        ) from error


def get(url: str, api_key: str = "") -> bytes:
    """Body of a GET, blocking. Raises OSError, also for HTTP errors and for an answer that is not HTTP."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.read()
    except HTTPException as error:
        raise OSError(f"no HTTP answer, {error!r:.{MAX_SHOWN_CHARS}}") from error
