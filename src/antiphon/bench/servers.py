"""What is compared: servers by URL, and presets for which a server is started here.

All servers are started once and stay up, and one is driven at a time: an idle server holds memory and takes
no time (its loop sleeps until a socket or a fact wakes it), and a server that stays warm keeps loading and
first steps out of the figures. Where the models don't fit side by side (one GPU, one KV pool each),
`Servers(keep=False)` starts each server for its run alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from antiphon.assembly.preset import preset_label, read_preset
from antiphon.bench.target import server_parts
from antiphon.core.errors import AntiphonError, ConfigError

READY = re.compile(r"is ready: open (https?://[^/\s]+)")
POLL_S = 0.1
STOP_S = 30.0
LAST_LINES = 12

Say = Callable[[str], None]


class Target(msgspec.Struct, frozen=True):
    """One side of a comparison: `url` of a running server, or else a `preset` to start one with, or to
    simulate; `options` of its simulated machine, where they are not everybody's."""

    name: str
    url: str | None = None
    preset: str | None = None
    options: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """A server that answers. `is_fresh`: nobody has used it to the end without an error yet."""

    url: str
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """How servers are started: `antiphon serve MODEL --preset P --port 0 OPTIONS`; their words go to
    `logs`/NAME.log."""

    model: str
    options: tuple[str, ...]
    logs: Path
    start_s: float = 600.0


def parse_target(text: str) -> Target:
    """A URL, or a preset's name or path; `NAME=` before either gives it a name. Raises ConfigError."""
    name, equals, what = text.partition("=")
    if not equals or "://" in name:
        name, what = "", text
    elif not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(f"target {text!r}: a name is letters, digits, '.', '-' and '_'")
    if "://" in what:
        parts = server_parts(what)
        if parts is None:
            raise ConfigError(
                f"target {what!r}: a server's URL is http(s):// or ws(s)://, a host, and a port if it has one"
            )
        return Target(name or re.sub(r"[^\w.-]+", "-", parts.netloc), url=what.rstrip("/"))
    try:
        read_preset(what)
    except ConfigError as error:
        raise ConfigError(f"target {what!r} is no URL, and as a preset: {error}") from None
    return Target(name or preset_label(what), preset=what)


def parse_targets(texts: Sequence[str]) -> tuple[Target, ...]:
    """Two targets or more with names of their own. Raises ConfigError."""
    return distinct(tuple(parse_target(text) for text in texts))


def distinct(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """The targets, which are two or more of different names. Raises ConfigError."""
    if len(targets) < 2:
        raise ConfigError("compare needs two targets or more, for example `baseline peer=http://host:8000`")
    names = [target.name for target in targets]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two targets have one name ({', '.join(names)}): give each its own, such as mine=fcfs or "
            "mine=http://host:8000"
        )
    return targets


class Servers:
    """The servers of a comparison; leaving the context stops every one that was started here."""

    def __init__(self, launch: Launch | None, *, keep: bool = True, say: Say = lambda _: None) -> None:
        self._launch = launch
        self._keep = keep
        self._say = say
        self._running: dict[str, _Server] = {}
        self._served: set[str] = set()

    async def __aenter__(self) -> Servers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(server.stop() for server in self._running.values()))
        self._running.clear()

    def check(self, target: Target) -> None:
        """Raises ConfigError for a preset without a model."""
        if target.preset is not None and self._launch is None:
            raise ConfigError(f"target {target.name!r} is a preset: --model says what to serve with it")

    @contextlib.asynccontextmanager
    async def ready(self, target: Target) -> AsyncIterator[Ready]:
        """The target, answering. Starts its server if it has none or that one has ended.

        Raises ConfigError for a preset without a model, AntiphonError if a server ends before it is ready.
        """
        if target.url is not None:
            yield Ready(target.url, target.name not in self._served)
            self._served.add(target.name)
            return
        server = self._running.get(target.name)
        if server is None or server.has_ended:
            server = await self._start(target)
            self._served.discard(target.name)
        try:
            yield Ready(server.url, target.name not in self._served)
            self._served.add(target.name)
        finally:
            if not self._keep:
                await self._running.pop(target.name).stop()

    def why_ended(self, target: Target) -> str | None:
        """What a server started here said last, if it is gone; None otherwise."""
        server = self._running.get(target.name)
        return server.last_words() if server is not None and server.has_ended else None

    async def _start(self, target: Target) -> _Server:
        self.check(target)
        assert self._launch is not None
        self._say(f"starting a server with preset {target.preset}")
        server = await _Server.start(target, self._launch)
        self._running[target.name] = server
        try:
            await server.wait_ready(self._launch.start_s)
        except BaseException:
            await self._running.pop(target.name).stop()
            raise
        return server


class _Server:
    """A process of `antiphon serve` in a process group of its own: Ctrl-C reaches it through us only."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.url = ""
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, target: Target, launch: Launch) -> _Server:
        assert target.preset is not None
        launch.logs.mkdir(parents=True, exist_ok=True)
        log = launch.logs / f"{target.name}.log"
        command = (sys.executable, "-m", "antiphon", "serve", launch.model, "--preset", target.preset)
        with log.open("wb") as words:
            process = await asyncio.create_subprocess_exec(
                *command,
                *("--port", "0", *launch.options),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )
        return cls(process, log)

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def wait_ready(self, most_s: float) -> None:
        """Until the server says at which address it is ready. Raises AntiphonError."""
        deadline = time.monotonic() + most_s
        while not (found := READY.search(self._log.read_text(errors="replace"))):
            if self.has_ended:
                raise AntiphonError(f"a server ended before it was ready: {self.last_words()}")
            if time.monotonic() > deadline:
                raise AntiphonError(f"a server was not ready within {most_s:g} s: {self.last_words()}")
            await asyncio.sleep(POLL_S)
        self.url = found.group(1)

    def last_words(self) -> str:
        said = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return "\n".join([f"(exit status {self._process.returncode}, log {self._log})", *said[-LAST_LINES:]])

    async def stop(self) -> None:
        """A signal to end, and after `STOP_S` an end by force of all its processes."""
        if self.has_ended:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
