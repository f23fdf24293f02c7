"""Picking events of one kind out of a log."""

from __future__ import annotations

from typing import TypeVar

from antiphon.metrics.log import Event, LogEvent

Kind = TypeVar("Kind", bound=LogEvent)


def of(kind: type[Kind], events: list[Event]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]
