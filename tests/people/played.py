"""A person's generators on a clock that is set by hand: what they do between two waits, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from antiphon.metrics.log import Event
from antiphon.people.acts import Act, Doing, Send, Wait
from antiphon.people.downlink import Downlink, ReceivedError, ReceivedEvent, ReceivedResponse
from antiphon.people.seat import Seat


@dataclass
class HandLog:
    """Implements people.acts.Journal."""

    now: float = 0.0
    events: list[Event] = field(default_factory=list)

    def now_s(self) -> float:
        return self.now

    def write(self, event: Event) -> None:
        self.events.append(event)


class HandHelper:
    """Implements people.acts.Helper."""

    def __init__(self, doing: Doing, played: Played) -> None:
        self.is_over = False
        self.doing = doing
        self._played = played
        self.go_on()

    def go_on(self) -> None:
        self.is_over = self.is_over or self._played.step(self.doing) is None

    def stop(self) -> None:
        self.is_over = True
        self.doing.close()


class Played:
    """One session: its log, its downlink, and what was sent and said."""

    def __init__(self, has_vad: bool = False, reading_tokens_per_s: float | None = 5.0) -> None:
        self.log = HandLog()
        self.downlink = Downlink("ann", self.log, reading_tokens_per_s)
        self.acts: list[Act] = []
        self.helpers: list[HandHelper] = []
        self.num_received = 0
        self.seat = Seat(
            self.downlink,
            self.log,
            has_vad,
            10.0,
            lambda w, h: f"picture:{w}x{h}",
            lambda clip: (f"clip:{clip.seed}",) * clip.num_frames,
            self._beside,
            self._received,
        )

    def step(self, doing: Doing) -> Wait | None:
        """Until it waits: for what; None: it is over."""
        for act in doing:
            if isinstance(act, Wait):
                return act
            self.acts.append(act)
        return None

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [act.event for act in self.acts if isinstance(act, Send)]

    def get(self, kind: str, response: str = "", **fields: Any) -> None:
        """An event comes, now."""
        made = ReceivedResponse(response, **fields.pop("answer", {})) if response else None
        event = ReceivedEvent(kind, response_id=response or None, response=made, **fields)
        self.downlink.receive(event, self.log.now)

    def refuse(self, event_id: str) -> None:
        self.get("error", error=ReceivedError("not now", "busy", None, event_id))

    def _beside(self, doing: Doing) -> HandHelper:
        self.helpers.append(HandHelper(doing, self))
        return self.helpers[-1]

    def _received(self) -> None:
        self.num_received += 1
