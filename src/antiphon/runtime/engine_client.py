"""The port through which a server speaks with an engine, whichever process it lives in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from antiphon.core.facts import PersonFact
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import Output
from antiphon.core.snapshot import Snapshot

GONE = "The engine has stopped; the server has to be restarted"
COMING_BACK = "The engine has stopped and is being started again"


class EngineClient(Protocol):
    """Sends facts about people, receives outputs per session. Single-threaded: call it from one event loop.

    `send` never blocks. Sinks are called in order, one call an output, from the loop's thread.
    When the engine dies, every response that is still open gets its ResponseEnded(status="failed").
    """

    info: ModelInfo

    @property
    def alive(self) -> bool: ...

    @property
    def comes_back(self) -> bool:
        """It has died and is being started again; conversations of before are not known to it then."""
        ...

    @property
    def stats(self) -> dict[str, float]:
        """The engine's latest metrics by `metrics.names` name; refreshed about once a second."""
        ...

    @property
    def lost(self) -> dict[str, str]:
        """Units of the engine that are not there, and why, in words; most come back by themselves."""
        ...

    @property
    def stuck(self) -> str:
        """In words, which decision of the engine does not return; "" where all is well."""
        ...

    def attach(self, session: str, sink: Callable[[Output], None]) -> None: ...

    def detach(self, session: str) -> None: ...

    def send(self, fact: PersonFact) -> None: ...

    def watch(self, viewer: Callable[[Snapshot], None] | None) -> None:
        """Show the engine's sessions and steps to `viewer`, some four times a second; to nobody when None.

        The engine takes note of nothing while nobody watches.
        """
        ...
