"""People who talk, report and wait: what a node tells `NextUseTimes` of them."""

from __future__ import annotations

from antiphon.core.facts import Fact, ResponseRequested, SessionOpened
from antiphon.core.plans import AudioOut, Output, ResponseEnded, Usage
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor
from antiphon.interaction.next_use import NextUseTimes


class People:
    """What a node does with facts and outputs."""

    def __init__(self, *sessions: str) -> None:
        self.frontier = Frontier(3, 0.08)
        self.monitor = Monitor(self.frontier)
        self.next_use = NextUseTimes(self.monitor, self.frontier)
        self.order = self.next_use.order()
        for session in sessions:
            self.tell(SessionOpened(session), 0.0)

    def tell(self, fact: Fact, now: float) -> None:
        self.monitor.observe(fact, now)
        self.next_use.observe(fact, now)
        self.next_use.check_integrity()

    def hear(self, output: Output, now: float) -> None:
        self.monitor.hear([output], now)
        self.next_use.hear([output], now)
        self.next_use.check_integrity()

    def ask(self, now: float, session: str = "s", response: str = "r", remember: bool = True) -> None:
        self.tell(ResponseRequested(session, response, f"item-{response}", remember=remember), now)

    def write(self, tokens: int, session: str = "s", response: str = "r") -> None:
        slot = self.monitor.slot(session, response)
        assert slot is not None
        self.frontier.make(0, slot, tokens)

    def sound(self, seconds: float, now: float, session: str = "s", response: str = "r") -> None:
        self.hear(AudioOut(session, response, bytes(4 * round(24_000 * seconds))), now)

    def end(self, now: float, session: str = "s", response: str = "r", status: str = "completed") -> None:
        self.hear(ResponseEnded(session, response, status, "", "", Usage()), now)

    def farthest(self, now: float, *here: str) -> list[str]:
        """Of those `here`, or of all."""
        here = here or tuple(self.monitor.sessions)
        return [*self.next_use.farthest(self.order, here, now)]

    def due_s(self, now: float, session: str = "s") -> float:
        return self.next_use.due_s(session, now)

    def reply(self, now: float, seconds: float, session: str = "s", response: str = "r") -> None:
        """Asked for, and whole at once."""
        self.ask(now, session, response)
        self.sound(seconds, now, session, response)
        self.end(now, session, response)
