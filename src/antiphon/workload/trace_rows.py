"""One neutral row for every trace format, and the sessions that rows make."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from antiphon.core.errors import ConfigError


class Row(msgspec.Struct, frozen=True):
    """One request of a trace; None is what the format doesn't say.

    arrival_s      from the trace's first request
    session        requests with the same one are turns of a conversation, in file order
    input_tokens   of the prompt: with the conversation so far where `has_history`, else of the new turn alone
    elapsed_s      until the reply's last token, as the trace's server took it
    think_s        from the previous reply's end
    speech_s       how long the turn was spoken
    """

    arrival_s: float | None = None
    session: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    has_history: bool = True
    elapsed_s: float | None = None
    think_s: float | None = None
    speech_s: float | None = None
    text: str | None = None


class TraceTurn(msgspec.Struct, frozen=True):
    """A turn of a trace's session. `user_tokens`: what the person adds, None where it can't be told (clients
    that trim the history)."""

    think_s: float | None
    user_tokens: int | None
    output_tokens: int | None
    speech_s: float | None = None
    text: str | None = None


class TraceSession(msgspec.Struct, frozen=True):
    """`is_whole`: it has as many turns as here, and not as many as a law says."""

    arrival_s: float | None
    turns: tuple[TraceTurn, ...]
    is_whole: bool = True


class TracePosition(msgspec.Struct, frozen=True):
    """Where in a file a value stands, for errors."""

    file: Path
    line: int

    def wrong(self, what: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.file}:{self.line}: {what}; expected {expected}")

    def count(self, name: str, value: Any) -> int:
        """A whole number of 0 or more, as text or number. Raises ConfigError."""
        number = self.number(name, value)
        if number != int(number):
            raise self.wrong(f"{name} is {value!r}", "a whole number")
        return int(number)

    def number(self, name: str, value: Any, *, signed: bool = False) -> float:
        """A finite number, 0 or more unless `signed`. Raises ConfigError."""
        expected = "a number" if signed else "a number of 0 or more"
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise self.wrong(f"{name} is {value!r}", expected) from None
        if isinstance(value, bool) or number - number != 0 or (number < 0 and not signed):
            raise self.wrong(f"{name} is {value!r}", expected)
        return number


def sessions_from(rows: Iterable[Row]) -> tuple[TraceSession, ...]:
    """Rows grouped by session (a row without one is its own), in order of arrival, or of the file where the
    trace has no times."""
    groups: dict[str | int, list[Row]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(index if row.session is None else row.session, []).append(row)
    sessions = [TraceSession(group[0].arrival_s, tuple(_turns(group))) for group in groups.values()]
    if all(session.arrival_s is not None for session in sessions):
        sessions.sort(key=lambda session: session.arrival_s or 0.0)
    return tuple(sessions)


def _turns(rows: list[Row]) -> Iterable[TraceTurn]:
    before: Row | None = None
    for row in rows:
        yield TraceTurn(
            _think_s(before, row), _user_tokens(before, row), row.output_tokens, row.speech_s, row.text
        )
        before = row


def _think_s(before: Row | None, row: Row) -> float | None:
    """Time between two requests less the time the reply took; a reply of unknown time takes none."""
    if row.think_s is not None:
        return row.think_s
    if before is None or before.arrival_s is None or row.arrival_s is None:
        return None
    return max(0.0, row.arrival_s - before.arrival_s - (before.elapsed_s or 0.0))


def _user_tokens(before: Row | None, row: Row) -> int | None:
    """A prompt less the prompt and reply before it, where it holds them."""
    if before is None or not row.has_history or row.input_tokens is None:
        return row.input_tokens
    new = row.input_tokens - (before.input_tokens or 0) - (before.output_tokens or 0)
    return new if new > 0 else None
