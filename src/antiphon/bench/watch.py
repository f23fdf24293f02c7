"""Tells a connection that broke from a server that is gone."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

KNOCK_S = 0.5
DEFAULT_PORTS = {"http": 80, "https": 443}


class ServerWatch:
    """Once a connection failed, knocks at the server's port until it opens or `lost_after_s` are over."""

    def __init__(self, url: str, lost_after_s: float) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or DEFAULT_PORTS[parts.scheme]
        self._lost_after_s = lost_after_s
        self._is_suspected = asyncio.Event()
        self._is_calm = asyncio.Event()
        self._is_calm.set()
        self.message = ""

    def suspect(self) -> None:
        """A connection failed."""
        self._is_suspected.set()
        self._is_calm.clear()

    async def calm(self) -> None:
        """Returns while the server is not suspected to be gone."""
        await self._is_calm.wait()

    async def lost(self) -> None:
        """Returns when the server has been out of reach for so long; `message` says so."""
        while True:
            await self._is_suspected.wait()
            since_s = time.monotonic()
            while (error := await self._knock()) is not None:
                if time.monotonic() - since_s >= self._lost_after_s:
                    where = f"{self._host}:{self._port}"
                    self.message = f"the server at {where} is gone, for {self._lost_after_s:g} s now: {error}"
                    return
                await asyncio.sleep(min(KNOCK_S, self._lost_after_s / 4))
            self._is_suspected.clear()
            self._is_calm.set()

    async def _knock(self) -> Exception | None:
        try:
            async with asyncio.timeout(KNOCK_S):
                _, writer = await asyncio.open_connection(self._host, self._port)
        except (OSError, TimeoutError) as error:
            return error
        writer.close()
        return None
