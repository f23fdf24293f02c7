"""The program `antiphon`, and `python -m antiphon`. Ctrl-C while it starts shows no traceback."""

from __future__ import annotations

import gc
import sys

STOPPED = 130


def main() -> None:
    try:
        gc.disable()  # imports make no garbage worth a search
        try:
            from antiphon.cli import app

            gc.freeze()
        finally:
            gc.enable()
        app()
    except KeyboardInterrupt:
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
