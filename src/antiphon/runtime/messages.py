"""What crosses between the server's process and the engine's, beside facts and outputs."""

from __future__ import annotations

import msgspec

from antiphon.core.config import EngineOptions
from antiphon.core.facts import PersonFact
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import Output
from antiphon.core.snapshot import Snapshot


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The engine's process is there and listens."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """The engine's orders at birth: which checkpoint, under which name, how, and where to record."""

    source: str
    name: str
    options: EngineOptions
    record: str | None = None


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Finish the step that runs and exit."""


class WatchOrder(msgspec.Struct, frozen=True, tag=True):
    """Somebody looks, or nobody does any more: send a Snapshot every `every_s` seconds, or none (None)."""

    every_s: float | None


class LoadProgress(msgspec.Struct, frozen=True, tag=True):
    """Loading goes on: `done` of `total` bytes of `what`; total 0 where it isn't known."""

    what: str
    done: int
    total: int


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """All that one decision sends out, in order: a step's tokens cross in one message."""

    outputs: tuple[Output, ...]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine could not start; the text is for people."""

    message: str


class Stats(msgspec.Struct, frozen=True, tag=True):
    """Metrics by name, about once a second."""

    values: dict[str, float]


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The units that are not there now, and why, in words; said whenever that changes."""

    units: dict[str, str]


class Stuck(msgspec.Struct, frozen=True, tag=True):
    """A decision does not return: which, for how long, in words; "" where all is well. Said once a second,
    which tells that the process runs."""

    why: str


ToEngine = PersonFact | Start | Stop | WatchOrder
FromEngine = Outputs | Hello | ModelInfo | LoadProgress | Failed | Stats | Lost | Stuck | Snapshot
