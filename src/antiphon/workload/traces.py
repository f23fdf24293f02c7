"""Traces of real services, whatever their format, as sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from antiphon.core.errors import ConfigError, system_words
from antiphon.workload.spec import Trace
from antiphon.workload.trace_json import mooncake, sharegpt
from antiphon.workload.trace_rows import Row, TraceSession, TraceTurn, sessions_from
from antiphon.workload.trace_tables import table_format, table_rows


def rows(path: Path, format: str | None = None) -> Iterator[Row]:
    """The requests of a trace, in file order; without `format` it is found by how the file begins.

    Raises ConfigError with file and line, what was found and what was expected.
    """
    try:
        found = format or format_of(path)
        if found == "mooncake":
            yield from mooncake(path)
        elif found == "sharegpt":
            yield from sharegpt(path)
        else:
            yield from table_rows(path, found)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read as a trace ({system_words(error)})") from error


def format_of(path: Path) -> str:
    """A list is ShareGPT's, an object a line Mooncake's, anything else a table."""
    with path.open(encoding="utf-8-sig") as file:
        begin = file.read(256).lstrip()[:1]
    return {"[": "sharegpt", "{": "mooncake"}.get(begin) or table_format(path)


def sessions_of(trace: Trace) -> tuple[TraceSession, ...]:
    """The sessions of a workload's trace, arrivals as in the file, thinking at the trace's speed.

    Raises ConfigError, also for a trace without rows.
    """
    path = Path(trace.file)
    sessions = sessions_from(rows(path, trace.format))[: trace.sessions]
    if not sessions:
        raise ConfigError(f"{path}: the trace has no requests")
    return tuple(_played(session, trace) for session in sessions)


def _played(session: TraceSession, trace: Trace) -> TraceSession:
    turns = tuple(_used(turn, trace) for turn in session.turns)
    return TraceSession(session.arrival_s, turns, "turns" in trace.use)


def _used(turn: TraceTurn, trace: Trace) -> TraceTurn:
    """Without the parts that the workload doesn't take from the trace."""
    think_s = _think_s(turn, trace) if "think" in trace.use else None
    if "lengths" not in trace.use:
        return TraceTurn(think_s, None, None)
    return msgspec.structs.replace(turn, think_s=think_s)


def _think_s(turn: TraceTurn, trace: Trace) -> float | None:
    if turn.think_s is None:
        return None
    think_s = turn.think_s / trace.speed
    return think_s if trace.max_think_s is None else min(think_s, trace.max_think_s)
