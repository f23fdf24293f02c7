"""Every error a person may meet.

AntiphonError
├── ConfigError          a value the operator wrote is wrong
├── CheckpointError      model files are missing, broken, unsupported or too large
├── ProtocolError        a client's event or request is wrong (code, param)
├── LimitExceeded        an explicit limit was passed (limit, allowed, got)
├── Overloaded           no room now; come back later (retry_after_s)
├── Throttled            asked too often; come back later (retry_after_s)
├── NoCredit             a channel's window is full; ask `can_send` first (channel)
├── ConnectorClosed      this end of a link is closed, or the other one is
│   └── PeerLost         the other end went without saying so, or said what cannot be read
├── EngineLost           a process that the engine needs has ended, and the engine with it
├── SessionGone          the session named does not exist any more
└── StageFailed          a stage could not carry out a step (stage, requests)

An assertion is our bug; an exception is the caller's or the world's.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from math import ceil, isinf

MIN_BEGINNING_CHARS = 4
"""Fewer begin too many names."""


class AntiphonError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(AntiphonError):
    """A value the operator wrote is wrong; the text says where, what is allowed, what to do."""


class CheckpointError(AntiphonError):
    """Model files are missing, broken, unsupported, or need more memory than there is."""


class ProtocolError(AntiphonError):
    """A client's event or request is wrong. The connection stays open.

    `code` is the wire code clients match on, `param` the field.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_value",
        param: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.kind = kind


class LimitExceeded(AntiphonError):
    """An explicit limit was passed. `limit` is its name, `allowed` and `got` are in its unit; `param` is the
    field that went over it, where it is known. `said`: its words, where `got` is only how far it was counted.
    """

    def __init__(self, limit: str, allowed: float, got: float, hint: str = "", said: str = "") -> None:
        said = said or _over(allowed, got)
        # a hint that is no sentence of its own tells what is meant
        link = "" if not hint else ": " if hint[0].islower() else ". "
        super().__init__(f"{limit}: {said}{link}{hint}")
        self.limit = limit
        self.param: str | None = None
        self.allowed = allowed
        self.got = got

    @property
    def over(self) -> float:
        """How many times what is allowed."""
        return self.got / self.allowed if self.allowed else 1.0


class Overloaded(AntiphonError):
    """No room now; try again after `retry_after_s` seconds. `code` is the wire code clients match on."""

    def __init__(self, message: str, retry_after_s: float, code: str = "server_overloaded") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.code = code


class Unavailable(Overloaded):
    """No request can be served now: the model is loading, its engine is gone, or the server shuts down."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s, "server_unavailable")


class Throttled(AntiphonError):
    """A client asks more often than it may; the next time is after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoCredit(AntiphonError):
    """The receiver has not released what was sent before on this channel."""

    def __init__(self, channel: str) -> None:
        super().__init__(f"channel {channel!r} has no credit left: ask can_send before sending")
        self.channel = channel


class ConnectorClosed(AntiphonError):
    """This end of a link is closed, or the peer has closed the other."""


class PeerLost(ConnectorClosed):
    """The process at the other end of a link is gone, or says what cannot be read."""


class EngineLost(AntiphonError):
    """A process that the engine cannot do without has ended; the engine ends too."""


class SessionGone(AntiphonError):
    """The session named does not exist (any more)."""


class StageFailed(AntiphonError):
    """A stage could not carry out a step; only the requests of that step are lost."""

    def __init__(self, stage: str, requests: tuple[int, ...], message: str) -> None:
        super().__init__(f"stage {stage}: {message}")
        self.stage = stage
        self.requests = requests


def _over(allowed: float, got: float) -> str:
    if isinf(got):  # it was not counted to its end
        return f"over the limit of {_written(allowed)}"
    return f"{_written(got)} is over the limit of {_written(allowed)}"


def _written(number: float) -> str:
    """Whole numbers as a deployment's file has them; others to a thousandth, rounded up, so that what is over
    a limit never reads like it."""
    return str(int(number)) if number == int(number) else f"{ceil(round(number * 1000, 6)) / 1000:.10g}"


def system_words(error: Exception) -> str:
    """What the system says of it, without its number and the file's name; or what the error itself says."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`: the name that begins so, or the one that is most like it. Nothing if none is."""
    names = list(known)
    longer = [one for one in names if len(name) >= MIN_BEGINNING_CHARS and one.startswith(name)]
    close = longer or get_close_matches(name, names, 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""


def no_such(what: str, name: str, known: Iterable[str], more: str = "") -> str:
    """`no WHAT 'name'`, with the name that is nearest to it and all that there are, to which `more` adds."""
    names = list(known)
    return f"no {what} {name!r}{nearest(name, names) or '.'} There are {', '.join(names) or 'none'}{more}"
