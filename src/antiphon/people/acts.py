"""Acts: what a person's generators ask of the driver that runs them.

`bench` carries them out with asyncio against a server, `sim` on virtual time.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import Any, NamedTuple, Protocol

from antiphon.metrics.log import Event


class Wait(NamedTuple):
    """Sleep until `until_s`. With `listens`, a ring of the downlink ends it earlier."""

    until_s: float = inf
    listens: bool = False


class Send(NamedTuple):
    """Send this client event."""

    event: dict[str, Any]


class Stretch(NamedTuple):
    """Seconds of voice and of the silence after it. `names` select the piece of the person's voice."""

    speech_s: float
    pause_s: float
    names: tuple[str, ...]


FRAME_S = 0.04
"""A microphone sends audio in frames of this length."""


class Say(NamedTuple):
    """Speak into the microphone. The generator resumes when the last of it was spoken."""

    stretches: tuple[Stretch, ...]

    @property
    def length_s(self) -> float:
        return sum(stretch.speech_s + stretch.pause_s for stretch in self.stretches)


Act = Wait | Send | Say
Doing = Generator[Act, None, None]


class Journal(Protocol):
    """The run's clock and its log."""

    def now_s(self) -> float: ...

    def write(self, event: Event) -> None: ...


class Helper(Protocol):
    """A generator that runs beside the one that began it."""

    @property
    def is_over(self) -> bool: ...

    def stop(self) -> None: ...
