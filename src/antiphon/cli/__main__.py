"""`python -m antiphon.cli`."""

from __future__ import annotations

from antiphon.cli import app

app()
