"""How fast a text is read, where its request does not say it in numbers (TokenFlow §2.2, §8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from msgspec import Meta

from antiphon.wire.client_events import Strict

TokensPerS = Annotated[float, Meta(ge=1, le=100)]
"""Below that a text that is sent as it is read would hold its place for hours."""
ReaderClass = Literal["reading", "listening", "auto"]
"""Read by a person, spoken to one by the client, or taken by an agent."""
Rate = TokensPerS | ReaderClass


class Delivery(Strict, frozen=True, kw_only=True):
    """How a streamed text is read: an extension. The preset `tokenflow` keeps it ahead of its reader.

    rate     tokens a second that the reader takes; or reading, listening: as fast as the operator says that
             people read, or listen to a text that the client speaks; auto: no person reads it, and it is made
             as fast as there is room
    deliver  asap: as it is written; paced: no faster than it is read
    """

    rate: Rate = "reading"
    deliver: Literal["asap", "paced"] = "asap"


@dataclass(frozen=True, slots=True)
class ReaderRates:
    """What an operator says of those who read texts.

    most      tokens a second: a request that says more counts as so fast, or one client's word would cost all
              others
    streamed  a text that is streamed, of a request that says nothing; None: nobody is known to read it
    whole     one that is sent once it is there
    """

    reading: float = 12.0
    """Tokens a second below which readers notice gaps (§2.2)."""
    listening: float = 3.3
    """150 words a minute, of four tokens for three words."""
    most: float = 24.0
    """Nobody reads twice as fast as those whom gaps disturb."""
    streamed: ReaderClass | None = None
    whole: Literal["auto"] | None = None

    def estimated(self) -> ReaderRates:
        """Where the operator says nothing: a person reads what is streamed, an agent takes what is whole."""
        return replace(self, streamed=self.streamed or "reading", whole=self.whole or "auto")

    def of(self, said: Rate | None, *, is_streamed: bool) -> float | Literal["auto"] | None:
        """As the engine is told it."""
        if said is None:
            said = self.streamed if is_streamed else self.whole
        if said == "reading":
            return self.reading
        if said == "listening":
            return self.listening
        return said if said is None or said == "auto" else min(said, self.most)
