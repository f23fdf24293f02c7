"""Starts a process of an engine: `python -m antiphon.runtime worker FOLDER`, or `stage_worker DESCRIPTOR`.

Modules live as long as the process. The garbage collector is off while they are imported, and does not walk
them afterwards.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable


def main(program: str, argument: str) -> int:
    """Returns the process's exit status. Raises ValueError for a program that is none."""
    gc.disable()
    try:
        run = _imported(program)
        gc.freeze()
    finally:
        gc.enable()
    return run(argument)


def _imported(program: str) -> Callable[[str], int]:
    if program == "worker":
        from antiphon.runtime.stage_child import end_with_parent
        from antiphon.runtime.worker import GRACE_S
        from antiphon.runtime.worker import main as run_engine

        return lambda folder: run_engine(folder, end_with_parent(GRACE_S))
    if program == "stage_worker":
        from antiphon.runtime.stage_worker import main as run_stage

        return lambda descriptor: run_stage(int(descriptor))
    raise ValueError(f"no program {program!r}: there are worker and stage_worker")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
