"""The deciding half knows no device, clock, thread, socket or random source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import antiphon

HOUSE = Path(antiphon.__file__).parent
ROOMS = (
    "core",
    "kv",
    "latency",
    "policy",
    "stage",
    "flow",
    "assembly",
    "graphs",
    "interaction",
    "metrics",
    "wire",
    "workload",
    "people",
    "sim",
)
FORBIDDEN = {"torch", "asyncio", "threading", "socket", "time", "datetime", "random", "uuid", "secrets"}
FILES = sorted(path for room in ROOMS for path in (HOUSE / room).rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_pure(path: Path) -> None:
    names = imported(path)
    assert not {name for name in names if name.split(".")[0] in FORBIDDEN or name.startswith("numpy.random")}
    if path != HOUSE / "core" / "rng.py":  # the one maker of random streams
        assert not re.search(r"np\.random\.(?!Generator\b)", path.read_text())
