"""How a process ends with its parent, which holds the other end of its standard input, however that ends."""

from __future__ import annotations

import os
import threading
import time


def end_with_parent(grace_s: float = 0.0) -> threading.Event:
    """End this process `grace_s` after its parent, unless it has ended by then. In a thread of its own, so
    that no load and no step is too long for it. Returns what is set once the parent is gone."""
    gone = threading.Event()
    threading.Thread(target=_wait, args=(gone, grace_s), daemon=True).start()
    return gone


def _wait(gone: threading.Event, grace_s: float) -> None:
    while os.read(0, 1):
        pass
    gone.set()
    time.sleep(grace_s)
    os._exit(1)
