"""Where somebody sits: their end of a conversation, and what is the same for everybody in a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antiphon.sim.ear import Ear
from antiphon.sim.hearing import Hearing
from antiphon.sim.links import Link
from antiphon.sim.log import Log
from antiphon.sim.process import Doing, Process
from antiphon.sim.sessions import ServerSession


@dataclass(frozen=True, slots=True)
class Seat:
    """A client's ear and log, its link up, and the server's session at the other end of it.

    hearing  None: turns are committed by hand
    beside   begins something that its owner's process does beside all else, and rings it at the end
    received is called when all replies of the script have come
    """

    ear: Ear
    log: Log
    up: Link
    server: ServerSession
    hearing: Hearing | None
    patience_s: float
    beside: Callable[[Doing], Process]
    received: Callable[[], None]

    @property
    def has_vad(self) -> bool:
        return self.hearing is not None
