"""A process that is told to end while it still imports, as Ctrl-C tells the whole group of processes."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import forked


def signalled(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
    """In the place of `subprocess.Popen`."""
    process = forked.spawned(*words, **options)
    process.send_signal(signal.SIGTERM)
    return process
