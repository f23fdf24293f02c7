"""A signal to a whole group of processes is for the first of them, which drains and ends the others: Ctrl-C
reaches them all, whatever they are at."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """A process that is started meanwhile hears none until `leave_to_parent`, however long its imports take.
    This one hears them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*NUMBERS} - before)


def leave_to_parent() -> None:
    """This process and what it starts are ended by others, and by none of them."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
