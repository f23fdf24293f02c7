"""Pages name what is there: files, other pages, and what answers a newcomer's questions."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
FILE = re.compile(r"`([\w.-]+/[\w./-]+\.(?:py|yaml|md))`")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
PLACES = (ROOT, ROOT / "src/antiphon", ROOT / "docs")
OF_A_RUN = "OUT/"
"""Where pages tell of files that a command writes."""
MOST_FILES = 3
"""That a newcomer opens for one question."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = [name for name in FILE.findall(text) if not name.startswith(OF_A_RUN)]
    assert not [name for name in named if not any((place / name).exists() for place in PLACES)]
    assert not [link for link in LINK.findall(text) if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", ["README.md", "docs/http.md"])
def test_what_a_client_is_shown_needs_only_the_openai_client(page: str) -> None:
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    nodes = [node for block in blocks for node in ast.walk(ast.parse(dedent(block)))]
    imported = {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert "openai" in imported
    assert imported - sys.stdlib_module_names <= {"openai", "antiphon"}


def defined(file: Path) -> set[str]:
    """Functions and classes in it."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)}


def test_four_questions_are_answered_by_three_files_each() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == 4
    for row in rows:
        answer = row.split("|")[2]
        files = [*FILE.finditer(answer), *LINK.finditer(answer)]
        assert len(files) <= MOST_FILES + len(re.findall(r"\bor\b", answer))
        starts = sorted((found.start(), found[1]) for found in files)
        ends = [start for start, _ in starts[1:]] + [len(answer)]
        for (start, file), end in zip(starts, ends, strict=True):
            beside = answer[start:end].partition("`" + file + "`")[2]
            for name in re.findall(r"`([\w.]+)`", beside):
                assert set(name.split(".")) <= defined(ROOT / "src/antiphon" / file), f"{file}: {name}"
