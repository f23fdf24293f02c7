"""The program `antiphon`, and `python -m antiphon`. Ctrl-C while it starts shows no traceback."""

from __future__ import annotations

import sys

STOPPED = 130


def main() -> None:
    try:
        from antiphon.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
