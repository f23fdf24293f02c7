"""The engine's snapshots, for as many viewers as there are. Knows no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from antiphon.core.snapshot import Snapshot
from antiphon.runtime.engine_client import EngineClient


def seen_by(snapshot: Snapshot, owns: Callable[[str], bool]) -> Snapshot:
    """Without the sessions that are not the viewer's own, and their names. Steps and stages stay whole."""
    sessions = tuple(one for one in snapshot.sessions if owns(one.session))
    steps = tuple(
        msgspec.structs.replace(step, sessions=tuple(filter(owns, step.sessions))) for step in snapshot.steps
    )
    return msgspec.structs.replace(snapshot, sessions=sessions, steps=steps)


class Viewer:
    """Holds the one snapshot that was not read yet: who reads slowly sees fewer, never older ones."""

    def __init__(self, owns: Callable[[str], bool] | None) -> None:
        self.owns = owns
        self._latest: bytes | None = None
        self._changed = asyncio.Event()

    def put(self, event: bytes) -> None:
        self._latest = event
        self._changed.set()

    async def get(self) -> bytes:
        """The next snapshot, JSON."""
        while self._latest is None:
            self._changed.clear()
            await self._changed.wait()
        event, self._latest = self._latest, None
        return event


class Feed:
    """Watches the engine while it has a viewer, and only then."""

    def __init__(self, engine: Callable[[], EngineClient | None]) -> None:
        self._engine = engine
        self._viewers: set[Viewer] = set()

    def join(self, owns: Callable[[str], bool] | None = None) -> Viewer:
        """A viewer, to be given back with `leave`. The engine must be there. `owns`: which sessions it may
        see; None: all."""
        viewer = Viewer(owns)
        self._viewers.add(viewer)
        if len(self._viewers) == 1:
            self._watch(self._show)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        if not self._viewers:
            self._watch(None)

    def _watch(self, show: Callable[[Snapshot], None] | None) -> None:
        engine = self._engine()
        assert engine is not None, "who watches was admitted to a server with an engine"
        engine.watch(show)

    def _show(self, snapshot: Snapshot) -> None:
        whole = msgspec.json.encode(snapshot)
        for viewer in self._viewers:
            owns = viewer.owns
            viewer.put(whole if owns is None else msgspec.json.encode(seen_by(snapshot, owns)))
