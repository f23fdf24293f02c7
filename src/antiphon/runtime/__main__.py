"""Starts a process of an engine: `python -m antiphon.runtime worker FOLDER`, or `stage_worker DESCRIPTOR`.

Modules live as long as the process. The garbage collector is off while they are imported, and does not walk
them afterwards.
"""

from __future__ import annotations

import gc
import sys


def main(program: str, argument: str) -> int:
    """Returns the process's exit status."""
    gc.disable()
    if program == "worker":
        from antiphon.runtime.stage_child import end_with_parent
        from antiphon.runtime.worker import GRACE_S
        from antiphon.runtime.worker import main as run_engine

        _collect_from_now_on()
        return run_engine(argument, end_with_parent(GRACE_S))
    from antiphon.runtime.stage_worker import main as run_stage

    _collect_from_now_on()
    return run_stage(int(argument))


def _collect_from_now_on() -> None:
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
