"""What a process holds on to without using it."""

from __future__ import annotations

import contextlib
import ctypes


def give_back() -> None:
    """Memory that was used and freed goes back to the system, which glibc does only when asked. Loading a
    model leaves hundreds of megabytes of it behind. Elsewhere nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
