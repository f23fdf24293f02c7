"""What is shown while a model is loaded."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from antiphon.cli import shared


@pytest.mark.parametrize("is_terminal", [False, True])
def test_where_nobody_watches_each_part_is_a_line(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(shared, "console", Console(file=said, force_terminal=is_terminal, width=80))
    with shared.LoadingBar() as bar:
        for done in (0, 5, 10):
            bar.show("loading thinker", done, 10)
        bar.show("compiling kernels", 3, 0)
        bar.show("", 0, 0)
    lines = said.getvalue().splitlines()
    if not is_terminal:
        assert lines == ["loading thinker …", "compiling kernels …"]
    else:
        assert "10/10 bytes" in said.getvalue()
